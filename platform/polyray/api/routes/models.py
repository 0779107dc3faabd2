"""Model versions, registered from what a job wrote."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from polyray.api.deps import Caller, Given, guarded_router, may, member_tenant
from polyray.api.idempotency import Conclude, KeyHeader, Request, once_long
from polyray.api.paging import DEFAULT_LIMIT, CursorText, Limit
from polyray.api.scoping import own_workload, require_history
from polyray.api.versions import versions_page
from polyray.api.views import ModelView, Page
from polyray.core.errors import Invalid, NotFound
from polyray.core.ids import parse_slug, shown
from polyray.core.spec import Kind
from polyray.identity.policy import Action
from polyray.registry import versions
from polyray.store.tables import ModelVersion

router = guarded_router("/v1/models", "models")


class Register(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    job_id: str
    #: A file or directory in the job's run directory, such as `artifacts/model`.
    path: str = Field(min_length=1, max_length=1000)


@router.post("", status_code=201, response_model=ModelView, **may(Action.REGISTER_MODEL))
def register(services: Given, caller: Caller, body: Register, idempotency_key: KeyHeader = None) -> Response:
    """Make the next version of a model from files of a run; they are copied, so the run may change its own."""
    tenant, now_ms = member_tenant(caller), services.clock.now_ms()
    name = parse_slug(body.name, field="name")
    with services.store.read() as session:
        try:
            job = own_workload(session, caller, Kind.JOB, body.job_id)
        except NotFound as error:
            raise Invalid(error.message, field="job_id", hint=error.hint) from None
    require_history(job)

    def work(conclude: Conclude) -> ModelView:
        def registered(session: Session, row: ModelVersion) -> None:
            conclude(session, ModelView(**_fields(row)))

        row = versions.register(
            services.store,
            services.layout,
            tenant=tenant,
            name=name,
            job=job,
            path=body.path,
            created_by=caller.subject,
            now_ms=now_ms,
            registered=registered,
        )
        return ModelView(**_fields(row))

    request = Request(caller, idempotency_key, "POST /v1/models", body.model_dump())
    return once_long(services.store, request, now_ms=now_ms, status=201, work=work)


@router.get("", **may(Action.READ_MODEL))
def listing(
    services: Given,
    caller: Caller,
    name: Annotated[str | None, Query(max_length=40)] = None,
    cursor: CursorText = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[ModelView]:
    """List the tenant's model versions, by name, the newest version first."""
    tenant = member_tenant(caller)
    with services.store.read() as session:
        rows, more = versions_page(session, ModelVersion, tenant=tenant, name=name, cursor=cursor, limit=limit)
    return Page[ModelView](items=[ModelView(**_fields(row)) for row in rows], next_cursor=more)


@router.get("/{name}/{version}", **may(Action.READ_MODEL))
def one(services: Given, caller: Caller, name: str, version: Annotated[int, Path(ge=1, le=10**9)]) -> ModelView:
    with services.store.read() as session:
        row = session.get(ModelVersion, (member_tenant(caller), name, version))
    if row is None:
        raise NotFound("model", f"{shown(name)[1:-1]}@{version}")
    return ModelView(**_fields(row))


def _fields(row: ModelVersion) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ModelView.model_fields}
