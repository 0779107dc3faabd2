"""Tells a stock Ray client why it was refused: the gateway hands denied `ray://` calls to this program.

Ray's client hides gRPC errors that come before Init (it waits 30 s and says "connection timeout"), so
the first ping is let pass and Init fails with the reason. Every other call, such as one of a session
whose token has expired since, fails with FAILED_PRECONDITION, which the client does not retry.

It carries no traffic and knows no secret. Ray itself is not imported: only its generated protobuf.

    python -m polyray.serving.responder --state-dir DIR
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from polyray.core.settings import Settings
from polyray.serving.denials import sentence

#: Set by the gateway; one of the words of `denials.DENIALS`.
REASON_HEADER = "x-polyray-deny"
#: A refused stream holds a thread, for so long at most.
_STREAM_SECONDS = 30.0
_THREADS = 64
_MAX_MESSAGE_BYTES = 4 * 2**20


def responder_socket(state_dir: Path) -> Path:
    """Return where the gateway looks for the responder."""
    return state_dir.absolute() / "run" / "haproxy" / "responder.sock"


def responder_command(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (argv, environment to add) that starts the responder."""
    argv = (sys.executable, "-m", "polyray.serving.responder", "--state-dir", str(settings.state_dir.absolute()))
    return argv, {"RAY_AUTH_MODE": "disabled"}


def build_server(socket: Path) -> grpc.Server:
    """Return a server that answers refused calls on a unix socket; it is not started yet."""
    protobuf = _generated("ray_client_pb2")
    services = _generated("ray_client_pb2_grpc")
    server = grpc.server(
        futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="refusal"),
        options=[("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)],
    )
    services.add_RayletDriverServicer_to_server(_driver(protobuf, services), server)
    services.add_RayletDataStreamerServicer_to_server(_DataStreamer(protobuf), server)
    services.add_RayletLogStreamerServicer_to_server(_LogStreamer(), server)
    server.add_insecure_port(f"unix:{socket}")
    socket.chmod(0o600)
    return server


def _driver(protobuf: Any, services: Any) -> Any:
    def ping_passes(_self: object, request: Any, context: grpc.ServicerContext) -> Any:
        if request.type != protobuf.ClusterInfoType.PING:
            _refuse(context)
        return protobuf.ClusterInfoResponse(json="{}")

    def init_fails(_self: object, _request: Any, context: grpc.ServicerContext) -> Any:
        return protobuf.InitResponse(ok=False, msg=_reason(context))

    def fails(_self: object, _request: Any, context: grpc.ServicerContext) -> Any:
        _refuse(context)

    calls = {name: fails for name in vars(services.RayletDriverServicer) if not name.startswith("_")}
    return type("Driver", (), calls | {"ClusterInfo": ping_passes, "Init": init_fails})()


class _DataStreamer:
    def __init__(self, protobuf: Any) -> None:
        self._protobuf = protobuf

    def Datapath(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        _end_later(context)
        for request in requests:
            if request.WhichOneof("type") != "init":
                _refuse(context)
            refusal = self._protobuf.InitResponse(ok=False, msg=_reason(context))
            yield self._protobuf.DataResponse(req_id=request.req_id, init=refusal)


class _LogStreamer:
    def Logstream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        _end_later(context)
        for _ in requests:
            pass
        yield from ()


def _reason(context: grpc.ServicerContext) -> str:
    code = dict(context.invocation_metadata()).get(REASON_HEADER, "")
    return sentence(code)


def _refuse(context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, _reason(context))


def _end_later(context: grpc.ServicerContext) -> None:
    """Cancel a stream that its client does not end, so that refused clients cannot hold all threads."""
    timer = threading.Timer(_STREAM_SECONDS, context.cancel)
    timer.daemon = True
    if context.add_callback(timer.cancel):
        timer.start()


def _generated(name: str) -> Any:
    return importlib.import_module(f"ray.core.generated.{name}")


def _without_ray() -> None:
    """Let Ray's generated modules be imported without `import ray`, which costs seconds and 100 MB."""
    found = importlib.util.find_spec("ray")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("Ray is not installed")
    package = types.ModuleType("ray")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["ray"] = package


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state-dir", type=Path, required=True, help="state directory of the platform")
    socket = responder_socket(parser.parse_args().state_dir)
    signals = {signal.SIGTERM, signal.SIGINT}
    # Before any thread exists, since threads inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.umask(0o177)
    socket.unlink(missing_ok=True)
    _without_ray()
    server = build_server(socket)
    server.start()
    signal.sigwait(signals)
    server.stop(grace=0.5).wait()


if __name__ == "__main__":
    main()
