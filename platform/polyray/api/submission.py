"""Taking a workload in: everything that can be refused is refused before a row is written."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.errors import Conflict, Infeasible, Invalid, NotFound
from polyray.core.explain import Explanation
from polyray.core.ids import is_id, new_id
from polyray.core.layout import parse_sha256
from polyray.core.spec import DatasetRef, Kind, WorkloadSpec, parse_workload
from polyray.store.steps import created
from polyray.store.tables import Blob, DatasetVersion, ModelVersion, Project, Tenant, Workload


def parse_for_tenant(session: Session, tenant: str, kind: Kind, content: dict[str, object]) -> WorkloadSpec:
    """Return the spec that a body describes, if all it names is the tenant's own and there.

    Raises:
        Invalid: naming the field.
    """
    if content.setdefault("kind", kind.value) != kind:
        raise Invalid(f"this takes a {kind}", field="kind", hint=f"send it to /v1/{content['kind']}s"[:60])
    spec = parse_workload(content)
    if is_id(spec.name):
        raise Invalid("a name may not look like an id", field="name", hint="choose another name")
    # Columns, not rows: a submit holds the database's one writer meanwhile.
    if session.scalar(select(Project.name).where(Project.tenant == tenant, Project.name == spec.project)) is None:
        known = session.scalars(select(Project.name).where(Project.tenant == tenant).order_by(Project.name).limit(10))
        raise Invalid(f"there is no project {spec.project}", field="project", hint=f"known are: {', '.join(known)}")
    for ref in spec.dataset_refs:
        if session.get(DatasetVersion, (tenant, ref.name, ref.version)) is None:
            raise Invalid(f"there is no {ref}", field="datasets", hint="list them with 'polyray data ls'")
    if spec.model is not None:
        model = DatasetRef.parse(spec.model, field="model")
        if session.get(ModelVersion, (tenant, model.name, model.version)) is None:
            raise Invalid(f"there is no {model}", field="model", hint="list them with 'polyray model ls'")
    if spec.working_dir is not None:
        sha256 = parse_sha256(spec.working_dir, field="working_dir")
        if session.get(Blob, (tenant, sha256)) is None:
            raise Invalid(
                "these bytes were not sent", field="working_dir", hint=f"PUT them to /v1/blobs/{sha256} first"
            )
    return spec


def insert(session: Session, spec: WorkloadSpec, *, tenant: str, submitted_by: str, now_ms: int) -> Workload:
    """Queue a workload, in the caller's write transaction.

    Raises:
        Conflict: if a live session or service of that name is there already.
    """
    suspended = session.scalar(select(Tenant.suspended).where(Tenant.name == tenant))
    if suspended is None:
        raise NotFound("tenant", tenant)
    if suspended:
        raise Conflict(f"tenant {tenant} is suspended", hint="ask the operator")
    lives_on = spec.kind in {Kind.SESSION, Kind.SERVICE}
    if lives_on and live(session, tenant, spec.kind, spec.name) is not None:
        raise Conflict(
            f"there is a live {spec.kind} {spec.name}",
            field="name",
            hint=f"use it, or stop it first: 'polyray {spec.kind} stop {spec.name}'",
        )
    workload = Workload(
        workload_id=new_id(spec.kind),
        kind=spec.kind.value,
        tenant=tenant,
        project=spec.project,
        name=spec.name,
        live_name=spec.name if lives_on else None,
        submitted_by=submitted_by,
        spec=spec.model_dump(mode="json"),
        state_reason="waits for capacity",
        attempt=0,
        retries=0,
        created_ms=now_ms,
        queued_ms=now_ms,
    )
    created(session, workload, now_ms=now_ms, reason=f"submitted by {submitted_by}")
    if lives_on:
        session.flush()
    return workload


def live(session: Session, tenant: str, kind: Kind, name: str) -> Workload | None:
    """Return the live session or service of that name."""
    return session.scalar(
        select(Workload).where(Workload.tenant == tenant, Workload.kind == kind.value, Workload.live_name == name)
    )


def refuse_infeasible(explanation: Explanation | None) -> None:
    """Raise the broker's word that a workload can never run.

    Raises:
        Infeasible: naming the nearest that could.
    """
    if explanation is not None:
        nearest = explanation.facts.get("nearest")
        field = next(iter(nearest), "resources") if isinstance(nearest, dict) else "resources"
        raise Infeasible(explanation.cause, hint=explanation.unblocks, field=field)
