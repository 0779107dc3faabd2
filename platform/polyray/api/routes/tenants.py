"""Tenants as the platform has them, and the operator's file that makes them."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.api.deps import Caller, Given, guarded_router, may
from polyray.api.views import Page, QuotaView, TenantView
from polyray.core.lifecycle import LeaseState
from polyray.core.platform_file import PlatformFile
from polyray.core.resources import Resources, total
from polyray.identity.policy import Action
from polyray.store.tables import Budget, Lease, Project, Quota, Tenant

router = guarded_router("/v1", "tenants")


class Applied(BaseModel):
    #: What was changed, a sentence each; empty if all was so already.
    changes: list[str]


@router.get("/tenants", **may(Action.READ_TENANTS))
def tenants(services: Given, caller: Caller) -> Page[TenantView]:
    """Show the caller's own tenant; operators see all."""
    query = select(Tenant).order_by(Tenant.name)
    if caller.tenant is not None:
        query = query.where(Tenant.name == caller.tenant)
    with services.store.read() as session:
        return Page[TenantView](items=[_view(session, row) for row in session.scalars(query)])


@router.post("/platform", **may(Action.APPLY_PLATFORM))
def apply(services: Given, body: PlatformFile) -> Applied:
    """Make tenants, quotas, budgets, people and pools what the operator's file says. Sent again, it changes nothing."""
    changes = services.apply_platform(body)
    services.wake("routes", "all")
    services.wake("broker", "cycle")
    return Applied(changes=changes)


def _view(session: Session, row: Tenant) -> TenantView:
    live = select(Lease.resources).where(Lease.tenant == row.name, Lease.state != LeaseState.RELEASED.value)
    used = total(Resources(resources) for resources in session.scalars(live))
    budget = session.get(Budget, row.name)
    quotas = session.scalars(select(Quota).where(Quota.tenant == row.name).order_by(Quota.flavor))
    return TenantView(
        name=row.name,
        display_name=row.display_name,
        suspended=row.suspended,
        cohort=row.cohort,
        quotas=[
            QuotaView(flavor=q.flavor, nominal=q.nominal, borrowing_limit=q.borrowing_limit, used=used[q.flavor])
            for q in quotas
        ],
        budget_usd_micros_per_month=budget.usd_micros_per_month if budget else None,
        projects=list(session.scalars(select(Project.name).where(Project.tenant == row.name).order_by(Project.name))),
    )
