"""Makes tenants, quotas, budgets, projects and accounts what the operator's file says. Idempotent."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from polyray.core.money import format_usd, parse_usd
from polyray.core.platform_file import PlatformFile, TenantSpec
from polyray.core.resources import format_amount
from polyray.identity.accounts import apply_accounts
from polyray.store.engine import Store
from polyray.store.steps import note
from polyray.store.tables import Budget, Project, Quota, Tenant

#: Unix uids of tenants' slices begin here, above those of people and services.
FIRST_UID = 20_000
DEFAULT_PROJECT = "default"


def apply_definitions(store: Store, file: PlatformFile, *, now_ms: int) -> list[str]:
    """Apply the file and return what changed, a sentence each.

    What the file names is made so; a tenant that it does not name stays as it is, since its work and its
    bills do. Accounts follow in a transaction of their own: applied again, a half-applied file is whole.
    """
    changes: list[str] = []
    with store.write() as session:
        for name, spec in file.tenants.items():
            told = [*_tenant(session, name, spec, now_ms), *_projects(session, name, spec, now_ms)]
            told += [*_quotas(session, name, spec), *_budget(session, name, spec)]
            for change in told:
                note(session, "tenant", name, tenant=name, now_ms=now_ms, reason=change)
            changes += [f"tenant {name}: {change}" for change in told]
    apply_accounts(store, file, now_ms)
    return changes


def _tenant(session: Session, name: str, spec: TenantSpec, now_ms: int) -> list[str]:
    display_name = spec.display_name or name
    row = session.get(Tenant, name)
    if row is None:
        # A uid is never given out again: files of a tenant that is gone must not be readable to a new one.
        highest = session.scalar(select(func.max(Tenant.uid))) or 0
        uid = max(highest + 1, FIRST_UID)
        session.add(Tenant(name=name, display_name=display_name, uid=uid, cohort=spec.cohort, created_ms=now_ms))
        session.flush()
        session.add(Project(tenant=name, name=DEFAULT_PROJECT, created_ms=now_ms))
        return ["created"]
    told = []
    if row.display_name != display_name:
        row.display_name = display_name
        told.append("renamed")
    if row.cohort != spec.cohort:
        row.cohort = spec.cohort
        told.append(f"cohort {spec.cohort or 'none'}")
    return told


def _projects(session: Session, name: str, spec: TenantSpec, now_ms: int) -> list[str]:
    """Add the projects that are new; one that is not named any more stays, since its bills do."""
    told = []
    for project in spec.projects:
        if session.get(Project, (name, project)) is None:
            session.add(Project(tenant=name, name=project, created_ms=now_ms))
            told.append(f"project {project}")
    return told


def _quotas(session: Session, name: str, spec: TenantSpec) -> list[str]:
    """Set the quotas; a flavor that is not named any more allows nothing. Lowering one below use ends nothing."""
    wanted = spec.amounts(name)
    rows = {row.flavor: row for row in session.scalars(select(Quota).where(Quota.tenant == name))}
    told = []
    for flavor, (nominal, borrowing_limit) in wanted.items():
        row = rows.get(flavor)
        if row is None:
            session.add(Quota(tenant=name, flavor=flavor, nominal=nominal, borrowing_limit=borrowing_limit))
        elif (row.nominal, row.borrowing_limit) != (nominal, borrowing_limit):
            row.nominal, row.borrowing_limit = nominal, borrowing_limit
        else:
            continue
        told.append(f"quota of {flavor} {format_amount(flavor, nominal)}")
    for flavor in sorted(rows.keys() - wanted.keys()):
        session.execute(delete(Quota).where(Quota.tenant == name, Quota.flavor == flavor))
        told.append(f"no quota of {flavor}")
    return told


def _budget(session: Session, name: str, spec: TenantSpec) -> list[str]:
    wanted = parse_usd(spec.budget_usd_per_month, field=f"tenants.{name}.budget_usd_per_month")
    row = session.get(Budget, name)
    if row is None:
        session.add(Budget(tenant=name, usd_micros_per_month=wanted))
    elif row.usd_micros_per_month != wanted:
        row.usd_micros_per_month = wanted
    else:
        return []
    return [f"budget of {format_usd(wanted)} a month"]
