"""What a run wrote: its log as bytes or as a stream of lines, and its records."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from polyray.api.deps import Caller, Given, may
from polyray.api.following import Followers, Source, follow
from polyray.api.gate import bearer
from polyray.api.outputs import (
    DEFAULT_LOG_BYTES,
    MAX_LOG_BYTES,
    MAX_RECORDS_BYTES,
    parse_records,
    read_file,
)
from polyray.api.run_log import Piece, read_log
from polyray.api.scoping import own_workload, require_history
from polyray.api.views import RecordsView
from polyray.core.lifecycle import WORKLOAD, WorkloadState
from polyray.core.spec import Kind
from polyray.identity.policy import Action

Offset = Annotated[int, Query(ge=0, le=2**60)]
#: A log may hold anything, a page with a script too: never to be shown as one.
LOG_HEADERS = {"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff"}


def add_output_routes(router: APIRouter, kind: Kind) -> None:
    @router.get(
        "/{workload}/logs",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}, "text/event-stream": {}}}},
        **may(Action.READ_LOGS),
    )
    def logs(
        services: Given,
        caller: Caller,
        request: Request,
        workload: str,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_LOG_BYTES)] = DEFAULT_LOG_BYTES,
        follow_on: Annotated[bool, Query(alias="follow")] = False,
        last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^\d{1,18}$")] = None,
    ) -> Response:
        """Return the log's bytes as they are; `X-Next-Offset` is where to go on. With `follow`, a stream of events.

        Of a log without end the beginning and the end are kept: where some is missing the answer is a line that says
        how much, and `X-Log-Cut` the number of bytes.
        """
        with services.store.read() as session:
            row = own_workload(session, caller, kind, workload)
        require_history(row)
        path = services.layout.driver_log(row.tenant, row.workload_id)
        piece = read_log(services.layout, path, offset=offset, limit=limit)
        if not follow_on:
            headers = {**LOG_HEADERS, "X-Next-Offset": str(piece.next_offset), "X-Log-Size": str(piece.size)}
            if piece.cut:
                headers["X-Log-Cut"] = str(piece.cut)
            return Response(piece.data, headers=headers, media_type="text/plain; charset=utf-8")

        token = bearer(Headers(scope=request.scope))

        def check() -> tuple[str, bool]:
            services.tokens.verify(token)
            with services.store.read() as session:
                state = WorkloadState(own_workload(session, caller, kind, row.workload_id).state)
            return state.value, state in WORKLOAD.terminal

        def read(start: int, at_most: int) -> Piece:
            return read_log(services.layout, path, offset=start, limit=at_most)

        start = int(last_event_id) if last_event_id else offset
        followers: Followers = request.app.state.followers
        stream = followers.admit(row.tenant, follow(Source(read, check), start))
        return StreamingResponse(stream, media_type="text/event-stream", headers=LOG_HEADERS)

    @router.get("/{workload}/records", response_model=RecordsView, **may(Action.READ_RECORDS))
    def records(services: Given, caller: Caller, workload: str, offset: Offset = 0) -> Response:
        """Return what the run recorded (metrics, checkpoints) from a byte offset on."""
        with services.store.read() as session:
            row = own_workload(session, caller, kind, workload)
        require_history(row)
        path = services.layout.records(row.tenant, row.workload_id)
        data, size = read_file(services.layout, path, offset=offset, limit=MAX_RECORDS_BYTES)
        found = parse_records(data, offset=offset, whole_file=offset + len(data) >= size)
        return Response(found.encode(), media_type="application/json")
