"""The fabric as a process of its own: `python -m polyray.fabric.server`, on a unix socket of mode 0600.

Ray ends a driver that loses its raylet, and Ray's token is one per process: neither may happen to the API.
Each call is bounded: a core that hangs makes this answer `unavailable` within seconds. When the core is lost
the process ends, and its supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from polyray.core import faultpoints
from polyray.core.errors import OUTCOMES, Code, Invalid, PolyrayError, Unavailable
from polyray.core.log import configure
from polyray.core.private import private_directory
from polyray.core.settings import load_settings
from polyray.tenants.cluster import MAX_SOCKET_PATH_BYTES
from polyray.tenants.slices import DriverSpec, Fabric, Gang, SliceSpec

log = structlog.get_logger(__name__)

CALL_LIMIT_SECONDS = 8.0
#: Calls that hang hold a thread each; with all of them taken the answer is `unavailable` at once.
THREADS = 16
PROBE_EVERY_SECONDS = 2.0
#: A core that has not answered for so long is taken for lost.
LOST_AFTER_SECONDS = 30.0
MAX_BODY_BYTES = 4 * 2**20


class FabricApp:
    """The HTTP face of a `Fabric`. `fabric()` returns None while there is no core to speak to."""

    def __init__(self, fabric: Callable[[], Fabric | None], *, call_limit_seconds: float = CALL_LIMIT_SECONDS) -> None:
        self._fabric, self._limit = fabric, call_limit_seconds
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="call")
        self._busy = 0

    def routes(self) -> list[Route]:
        async def nodes(_: Request) -> JSONResponse:
            return await self._answer(lambda fabric: fabric.nodes())

        async def gangs(_: Request) -> JSONResponse:
            return await self._answer(lambda fabric: fabric.gangs())

        async def slices(_: Request) -> JSONResponse:
            return await self._answer(lambda fabric: fabric.slices())

        async def grant(request: Request) -> JSONResponse:
            gang = Gang.model_validate_json(await _body(request))
            return await self._answer(lambda fabric: fabric.grant(gang))

        async def release(request: Request) -> JSONResponse:
            return await self._answer(lambda fabric: fabric.release(request.path_params["cluster_id"]))

        async def start_slice(request: Request) -> JSONResponse:
            spec = SliceSpec.model_validate_json(await _body(request))
            return await self._answer(lambda fabric: fabric.start_slice(spec))

        async def kill_slice(request: Request) -> JSONResponse:
            return await self._answer(lambda fabric: fabric.kill_slice(request.path_params["lease_id"]))

        async def start_driver(request: Request) -> JSONResponse:
            spec = DriverSpec.model_validate_json(await _body(request))
            return await self._answer(lambda fabric: fabric.start_driver(request.path_params["lease_id"], spec))

        async def stop_driver(request: Request) -> JSONResponse:
            lease_id, driver_id = request.path_params["lease_id"], request.path_params["driver_id"]
            grace = _grace_seconds(request.query_params.get("grace_seconds", ""))
            return await self._answer(lambda fabric: fabric.stop_driver(lease_id, driver_id, grace))

        return [
            Route("/nodes", nodes),
            Route("/gangs", gangs),
            Route("/gangs", grant, methods=["POST"]),
            Route("/gangs/{cluster_id}", release, methods=["DELETE"]),
            Route("/slices", slices),
            Route("/slices", start_slice, methods=["POST"]),
            Route("/slices/{lease_id}", kill_slice, methods=["DELETE"]),
            Route("/slices/{lease_id}/driver", start_driver, methods=["POST"]),
            Route("/slices/{lease_id}/driver/{driver_id}", stop_driver, methods=["DELETE"]),
        ]

    def starlette(self, lifespan: Any = None) -> Starlette:
        return Starlette(
            routes=self.routes(),
            lifespan=lifespan,
            exception_handlers={PolyrayError: _problem, ValidationError: _invalid, Exception: _internal},
        )

    async def _answer(self, call: Callable[[Fabric], object]) -> JSONResponse:
        fabric = self._fabric()
        if fabric is None:
            raise Unavailable("the fabric is not connected to the core yet")
        if self._busy >= THREADS:
            raise Unavailable("the core does not answer", hint="it hangs; the fabric restarts by itself")
        self._busy += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, call, fabric)
        future.add_done_callback(self._freed)
        try:
            # Shielded: a thread cannot be cancelled, and counts as busy until it returns.
            result = await asyncio.wait_for(asyncio.shield(future), self._limit)
        except TimeoutError:
            raise Unavailable(f"the core did not answer within {self._limit:.0f} s") from None
        return JSONResponse(_plain(result))

    def _freed(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()


class Core:
    """Keeps the one connection to the core, and ends the process when it is lost."""

    def __init__(self, connect: Callable[[], Fabric]) -> None:
        self._connect = connect
        self._fabric: Fabric | None = None
        self._answered_at = time.monotonic()

    def fabric(self) -> Fabric | None:
        return self._fabric

    def watch(self) -> None:
        """Connect, then probe for ever. Runs in threads of its own, since both may hang."""
        threading.Thread(target=self._probe, name="core-probe", daemon=True).start()
        while time.monotonic() - self._answered_at < LOST_AFTER_SECONDS:
            time.sleep(0.5)
        log.error("core_lost", seconds=LOST_AFTER_SECONDS)
        os._exit(1)

    def _probe(self) -> None:
        try:
            self._fabric = self._connect()
            log.info("core_connected")
            while True:
                self._fabric.nodes()
                self._answered_at = time.monotonic()
                time.sleep(PROBE_EVERY_SECONDS)
        except BaseException as error:
            log.error("core_lost", error=repr(error)[:500])
            os._exit(1)


def _plain(result: object) -> object:
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json")
    if isinstance(result, tuple):
        return [_plain(item) for item in result]
    return result


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise PolyrayError(Code.TOO_LARGE, f"the request is larger than {MAX_BODY_BYTES} bytes")
    return body


def _grace_seconds(text: str) -> float:
    try:
        grace = float(text)
    except ValueError:
        grace = -1.0
    if not 0 <= grace <= 3600:
        raise Invalid("a grace is from 0 to 3600 seconds", field="grace_seconds")
    return grace


async def _problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PolyrayError)
    body = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "field": error.field,
        "retryable": error.retryable,
    }
    return JSONResponse(body, status_code=OUTCOMES[error.code].http_status)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    # Not the error's own text, which shows the input: a slice has a secret.
    assert isinstance(error, ValidationError)
    fields = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
    return await _problem(request, Invalid("the request does not fit its schema", field=fields[:300]))


async def _internal(request: Request, error: Exception) -> JSONResponse:
    log.error("call_failed", path=request.url.path, error=repr(error)[:500])
    return await _problem(request, Unavailable(f"the core failed: {type(error).__name__}"))


def bind(path: Path) -> socket.socket:
    """Return a listening unix socket of mode 0600, replacing one that a dead process left.

    Raises:
        Invalid: if the path is too long for a socket.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise Invalid(
            f"the path of the socket {path} has more than {MAX_SOCKET_PATH_BYTES} bytes",
            field="state_dir",
            hint="use a shorter state directory",
        )
    private_directory(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    return listener


def main() -> None:
    settings = load_settings()
    configure(settings.log_level, component="fabric")
    faultpoints.arm()

    def connect() -> Fabric:
        from polyray.fabric.ray_fabric import RayFabric  # imports Ray, which takes seconds

        fabric = RayFabric(settings)
        fabric.connect()
        return fabric

    core = Core(connect)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        threading.Thread(target=core.watch, name="core-watch", daemon=True).start()
        yield

    app = FabricApp(core.fabric).starlette(lifespan)
    listener = bind(settings.state_dir / "run" / "fabric.sock")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3))
    server.run(sockets=[listener])
    # Threads that hang in the core must not keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
