"""Jobs, sessions and services: one set of routes, made once for each kind."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import CompoundSelect, literal, select, tuple_, union
from sqlalchemy.orm import Session
from starlette.responses import Response

from polyray.api.deps import Caller, Given, Services, guarded_router, may, member_tenant
from polyray.api.idempotency import KeyHeader, Request, once
from polyray.api.paging import DEFAULT_LIMIT, MAX_LIMIT, Cursor, CursorText, Limit, parse_cursor
from polyray.api.pricing import priced_plan
from polyray.api.routes.outputs import add_output_routes
from polyray.api.scoping import own_workload
from polyray.api.submission import insert, parse_for_tenant, refuse_infeasible
from polyray.api.views import EventView, Page, WhyView, WorkloadView
from polyray.api.workload_views import workload_view, workload_views
from polyray.core.errors import Conflict, Invalid
from polyray.core.lifecycle import WORKLOAD, LeaseState, WorkloadState
from polyray.core.spec import Kind
from polyray.identity.policy import Action
from polyray.store.steps import note, step
from polyray.store.tables import Cluster, Event, Lease, Workload


class KillWorker(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: Which slice: 0 is the head.
    rank: int = Field(strict=True, ge=0, le=100_000)


def workload_router(kind: Kind) -> APIRouter:
    """Return the routes of one kind of workload."""
    router = guarded_router(f"/v1/{kind}s", f"{kind}s")

    @router.post("", status_code=201, response_model=WorkloadView, **may(Action.SUBMIT_WORKLOAD))
    def submit(
        services: Given,
        caller: Caller,
        content: Annotated[dict[str, Any], Body(description="A workload, as in its YAML file")],
        idempotency_key: KeyHeader = None,
        dry_run: bool = False,
    ) -> Response:
        """Queue a workload; with `dry_run` only say what it would ask for and cost."""
        if dry_run:
            return _dry_run(services, member_tenant(caller), kind, content)
        now_ms = services.clock.now_ms()
        tenant = member_tenant(caller)
        request = Request(caller, idempotency_key, f"POST /v1/{kind}s", content)
        with services.store.write() as session:

            def work() -> WorkloadView:
                spec = parse_for_tenant(session, tenant, kind, dict(content))
                refuse_infeasible(services.feasible(session, tenant, spec))
                row = insert(session, spec, tenant=tenant, submitted_by=caller.subject, now_ms=now_ms)
                return workload_view(session, row, caller, gateway_url=services.endpoints().gateway_url)

            answer = once(session, request, now_ms=now_ms, status=201, work=work)
        services.wake("broker", "cycle")
        return answer

    @router.get("", **may(Action.READ_WORKLOAD))
    def listing(
        services: Given,
        caller: Caller,
        state: WorkloadState | None = None,
        name: Annotated[str | None, Query(max_length=40)] = None,
        cursor: CursorText = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Page[WorkloadView]:
        """List workloads, the newest first. Operators see those of all tenants."""
        after = parse_cursor(cursor)
        query = select(Workload).where(Workload.kind == kind.value)
        query = query.order_by(Workload.created_ms.desc(), Workload.workload_id.desc()).limit(limit + 1)
        if caller.tenant is not None:
            query = query.where(Workload.tenant == caller.tenant)
        if state is not None:
            query = query.where(Workload.state == state.value)
        if name is not None:
            query = query.where(Workload.name == name)
        if after is not None:
            query = query.where(tuple_(Workload.created_ms, Workload.workload_id) < (after.order, after.id))
        with services.store.read() as session:
            rows = session.scalars(query).all()
            shown = rows[:limit]
            items = workload_views(session, shown, caller, gateway_url=services.endpoints().gateway_url)
        more = Cursor(shown[-1].created_ms, shown[-1].workload_id).encode() if len(rows) > limit else None
        return Page[WorkloadView](items=items, next_cursor=more)

    @router.get("/{workload}", **may(Action.READ_WORKLOAD))
    def one(services: Given, caller: Caller, workload: str) -> WorkloadView:
        with services.store.read() as session:
            row = own_workload(session, caller, kind, workload)
            return workload_view(session, row, caller, gateway_url=services.endpoints().gateway_url)

    @router.post("/{workload}/stop", **may(Action.STOP_WORKLOAD))
    def stop(services: Given, caller: Caller, workload: str) -> WorkloadView:
        """Ask a workload to end; one that waits is stopped at once, one that ended stays as it is."""
        now_ms = services.clock.now_ms()
        with services.store.write() as session:
            row = own_workload(session, caller, kind, workload)
            _request_stop(session, row, by=caller.subject, now_ms=now_ms)
            session.flush()
            view = workload_view(session, row, caller, gateway_url=services.endpoints().gateway_url)
        services.wake("workload", row.workload_id)
        services.wake("broker", "cycle")
        return view

    @router.get("/{workload}/why", **may(Action.READ_WORKLOAD))
    def why(services: Given, caller: Caller, workload: str) -> WhyView:
        """Say why a workload is where it is, and what would unblock it."""
        with services.store.read() as session:
            row = own_workload(session, caller, kind, workload)
            waits = row.state == WorkloadState.QUEUED
            explanation = (row.explanation if waits else None) or {}
            return WhyView(
                id=row.workload_id,
                state=row.state,
                state_reason=row.state_reason,
                code=explanation.get("code", row.state),
                cause=explanation.get("cause", row.state_reason),
                unblocks=explanation.get("unblocks", ""),
                facts=explanation.get("facts", {}),
                position=_place(services, session, row) if waits else None,
            )

    @router.get("/{workload}/events", **may(Action.READ_WORKLOAD))
    def events(
        services: Given, caller: Caller, workload: str, cursor: CursorText = None, limit: Limit = MAX_LIMIT
    ) -> Page[EventView]:
        """List what happened to a workload, its clusters and leases, the oldest first."""
        after = parse_cursor(cursor)
        with services.store.read() as session:
            row = own_workload(session, caller, kind, workload)
            query = select(Event).where(Event.entity_id.in_(_entities(row.workload_id)), Event.tenant == row.tenant)
            if after is not None:
                query = query.where(Event.event_id > after.order)
            rows = session.scalars(query.order_by(Event.event_id).limit(limit + 1)).all()
        shown = rows[:limit]
        more = Cursor(shown[-1].event_id, "event").encode() if len(rows) > limit else None
        return Page[EventView](items=[_event(event) for event in shown], next_cursor=more)

    add_output_routes(router, kind)
    if kind is Kind.JOB:

        @router.post("/{workload}/kill-worker", status_code=202, **may(Action.KILL_WORKER))
        def kill_worker(services: Given, caller: Caller, workload: str, body: KillWorker) -> WorkloadView:
            """Kill one slice as a crash would, to see the job go on without it."""
            now_ms = services.clock.now_ms()
            with services.store.write() as session:
                row = own_workload(session, caller, kind, workload)
                _check_rank(session, row, body.rank)
                reason = f"{caller.subject} had the worker of rank {body.rank} killed"
                note(session, WORKLOAD.kind, row.workload_id, tenant=row.tenant, now_ms=now_ms, reason=reason)
                session.flush()
                view = workload_view(session, row, caller, gateway_url=services.endpoints().gateway_url)
            services.kill_worker(row.workload_id, body.rank)
            return view

    return router


def _dry_run(services: Services, tenant: str, kind: Kind, content: dict[str, Any]) -> Response:
    with services.store.read() as session:
        spec = parse_for_tenant(session, tenant, kind, dict(content))
        refuse_infeasible(services.feasible(session, tenant, spec))
    plan = priced_plan(spec, tenant, services.offerings())
    return Response(plan.model_dump_json(), media_type="application/json")


def _place(services: Services, session: Session, row: Workload) -> int | None:
    """Return a waiting workload's place in the whole queue (1 is next); None for one that the broker cannot read."""
    return services.turns.order(session, services.clock.now_ms()).places.get(row.workload_id)


def _request_stop(session: Session, row: Workload, *, by: str, now_ms: int) -> None:
    """Mark a workload as asked to stop. There are three cases: it waits, it has ended or was asked before, it runs."""
    state = WorkloadState(row.state)
    if state is WorkloadState.QUEUED:
        row.stop_requested_ms = row.ended_ms = now_ms
        row.live_name = None
        step(session, row, WorkloadState.STOPPED, now_ms=now_ms, reason=f"stopped by {by} while it waited")
    elif state not in WORKLOAD.terminal and row.stop_requested_ms is None:
        row.stop_requested_ms = now_ms
        note(session, WORKLOAD.kind, row.workload_id, tenant=row.tenant, now_ms=now_ms, reason=f"{by} asked it to stop")


def _check_rank(session: Session, row: Workload, rank: int) -> None:
    if row.state not in {WorkloadState.STARTING, WorkloadState.RUNNING} or row.cluster_id is None:
        raise Conflict(f"it is {row.state} and has no workers", hint="wait until it runs")
    ranks = session.scalars(
        select(Lease.rank)
        .where(Lease.cluster_id == row.cluster_id)
        .where(Lease.state.in_([LeaseState.GRANTED.value, LeaseState.ACTIVE.value]))
        .order_by(Lease.rank)
    ).all()
    if rank not in ranks:
        raise Invalid(
            f"there is no rank {rank}", field="rank", hint=f"one of {', '.join(map(str, ranks))}; 0 is the head"
        )


def _entities(workload_id: str) -> CompoundSelect[str]:
    """Return the ids of a workload and of all that was ever made for it."""
    return union(
        select(literal(workload_id)),
        select(Cluster.cluster_id).where(Cluster.workload_id == workload_id),
        select(Lease.lease_id).where(Lease.workload_id == workload_id),
    )


def _event(row: Event) -> EventView:
    return EventView(
        event_id=row.event_id,
        at_ms=row.at_ms,
        kind=row.kind,
        entity_id=row.entity_id,
        start=row.start,
        finish=row.finish,
        reason=row.reason,
    )
