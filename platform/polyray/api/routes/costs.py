"""What was spent, in micro-dollars."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel

from polyray.api.deps import Caller, Given, guarded_router, may
from polyray.api.scoping import own_workload
from polyray.core.errors import Invalid, NotFound
from polyray.core.ids import KINDS, is_id, shown
from polyray.core.spec import Kind
from polyray.identity.policy import Action
from polyray.reports.costs import costs_of_month, costs_of_workload
from polyray.reports.metering import month_of

router = guarded_router("/v1/costs", "costs")

_KIND_OF = {KINDS[kind]: kind for kind in Kind}


class CostsView(BaseModel):
    """Micro-dollars and the lines they come from: a payer's part of one node's price in [start, end)."""

    workload: str | None
    tenant: str | None
    month: str | None
    usd_micros: int
    reserved_usd_micros: int
    cloud_usd_micros: int
    lines: list[dict[str, Any]]


@router.get("", **may(Action.READ_COSTS))
def costs(
    services: Given,
    caller: Caller,
    workload: Annotated[str | None, Query(max_length=40)] = None,
    month: Annotated[
        str | None, Query(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$", description="UTC; this one without")
    ] = None,
) -> CostsView:
    """Return what one workload, or the tenant in one month, has cost so far; operators see all tenants' months."""
    if workload is not None and month is not None:
        raise Invalid("a workload's costs are those of its whole life", field="month", hint="leave it out")
    now_ms = services.clock.now_ms()
    if workload is None:
        month = month or month_of(now_ms)
    with services.store.read() as session:
        if workload is not None:
            kind = _KIND_OF.get(workload[:3]) if is_id(workload) else None
            if kind is None:
                raise NotFound("workload", shown(workload)[1:-1])
            found = costs_of_workload(session, own_workload(session, caller, kind, workload).workload_id, now_ms)
        else:
            assert month is not None
            found = costs_of_month(session, month, now_ms, tenant=caller.tenant)
    return CostsView(workload=workload, tenant=caller.tenant, month=month, **found.as_dict())
