"""What every request passes before a route sees it.

In this order: an id; the Host allow-list (a page that rebinds its name to a loopback address is refused);
who is asking (everything is closed but the few public paths); the body, read whole within its bound, so
that a client which leaves in the middle of sending has sent nothing. Afterwards: security headers, figures,
one log line. An error that nobody foresaw ends here as a problem that tells nothing but the request's id.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyray.api.problems import internal, problem
from polyray.core.errors import Code, Forbidden, PolyrayError, Unauthenticated
from polyray.core.faultpoints import reach
from polyray.core.ids import new_id, shown

log = structlog.get_logger(__name__)

#: Said of every answer. No CORS header is ever sent: no page of another origin may read an answer.
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Gate:
    """The rules. Paths are exact, prefixes end at a slash."""

    authenticate: Callable[[str], Any]
    allowed_host: Callable[[str], bool]
    observe: Callable[[str, str, int, float], None]
    public_paths: Collection[str]
    public_prefixes: Collection[str]
    #: Bytes a body may have, by path; None: the route reads its body itself, as a stream.
    body_limit: Callable[[str, str], int | None]


class GateMiddleware:
    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            await self._admit(exchange)
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = 499
        except PolyrayError as error:
            await exchange.answer(problem(error, exchange.request_id))
        except Exception:
            log.exception("request_failed", request_id=exchange.request_id, method=scope["method"])
            if exchange.status:
                raise  # half an answer is out: only breaking the connection tells the client
            await exchange.answer(internal(exchange.request_id))
        finally:
            self._tell(exchange)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the server's own start and stop on; there are no websockets here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _admit(self, exchange: _Exchange) -> None:
        scope, gate = exchange.scope, self._gate
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not gate.allowed_host(hosts[0]):
            raise Forbidden(
                f"this API does not go by the name {shown(hosts[0]) if hosts else 'of nothing'}",
                hint="use the address that 'polyray status' shows",
            )
        path = scope["path"]
        if path not in gate.public_paths and not any(path.startswith(f"{p}/") for p in gate.public_prefixes):
            scope["polyray.principal"] = await run_in_threadpool(gate.authenticate, bearer(headers))
        limit = gate.body_limit(scope["method"], path)
        if limit is not None:
            await exchange.read_body(headers, limit)

    def _tell(self, exchange: _Exchange) -> None:
        scope, seconds = exchange.scope, time.perf_counter() - exchange.started
        principal = scope.get("polyray.principal")
        route = route_template(scope)
        self._gate.observe(scope["method"], route, exchange.status, seconds)
        log.info(
            "request",
            request_id=exchange.request_id,
            method=scope["method"],
            route=route,
            status=exchange.status,
            milliseconds=round(seconds * 1000, 1),
            subject=getattr(principal, "subject", None),
            tenant=getattr(principal, "tenant", None),
        )


class _Exchange:
    """One request and its answer, with what the gate adds to both."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.request_id = scope["polyray.request_id"] = new_id("request")
        self.started = time.perf_counter()
        #: 0 until an answer has begun.
        self.status = 0
        self._body: bytes | None = None

    async def read_body(self, headers: Headers, limit: int) -> None:
        """Read the whole body, to be handed on as one message.

        Raises:
            PolyrayError: `too_large`, before the body is read where its length is told.
            ClientDisconnect: if the client left before the end.
        """
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:20]) > limit:
            raise _too_large(limit)
        chunks, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
            more = message.get("more_body", False)
        self._body = b"".join(chunks)
        reach("api.body.after")

    async def receive(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            reach("api.answer.before")
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self.request_id
        await self._send(message)

    async def answer(self, response: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        await response(self.scope, self._receive, self.send)


def bearer(headers: Headers) -> str:
    """Return the request's bearer token.

    Raises:
        Unauthenticated: if there is none, or more than one `Authorization`: which one counts is ambiguous.
    """
    given = headers.getlist("authorization")
    if not given:
        raise Unauthenticated("no_token", "no credential was sent")
    scheme, _, token = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token or len(token) > 8192:
        raise Unauthenticated("malformed_credential", "send one 'Authorization: Bearer TOKEN'")
    return token


def route_template(scope: Scope) -> str:
    """Return the route's path as it is written in the API, without anybody's ids; `unmatched` if there is none."""
    route = scope.get("route")
    return getattr(route, "path", None) or "unmatched"


def _too_large(limit: int) -> PolyrayError:
    return PolyrayError(Code.TOO_LARGE, f"the body is larger than {limit} bytes", "send less", "body")
