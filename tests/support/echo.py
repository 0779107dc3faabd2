"""Clusters that echo: an HTTP server and a gRPC server which say what reached them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc


class EchoServer:
    """Answers every request with what it got, as JSON. `/stream` sends a line every 50 ms and never ends."""

    def __init__(self, name: str, ip: str = "127.0.0.1", port: int = 0) -> None:
        self.name = name
        self.requests: list[dict[str, object]] = []
        echo = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                seen: dict[str, object] = {
                    "server": echo.name,
                    "method": self.command,
                    "path": self.path,
                    "headers": [[key.lower(), value] for key, value in self.headers.items()],
                    "body": self.rfile.read(length).decode("latin-1"),
                }
                echo.requests.append(seen)
                self.send_response(200)
                self.send_header("Set-Cookie", "ray-authentication-token=secret")
                if self.path == "/stream":
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self._stream()
                    return
                body = json.dumps(seen).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _stream(self) -> None:
                pause = threading.Event()
                try:
                    while not echo.closed.is_set():
                        self.wfile.write(b"2\r\n.\n\r\n")
                        self.wfile.flush()
                        pause.wait(0.05)
                except OSError:
                    pass
                self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = answer

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.closed = threading.Event()
        self._server = ThreadingHTTPServer((ip, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


class EchoGrpc:
    """Answers any gRPC method: unary calls with their own bytes, and streams with a message every 50 ms for ever."""

    def __init__(self, name: str, ip: str = "127.0.0.1", port: int = 0) -> None:
        self.name = name
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.closed = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((_AnyMethod(self),))
        self.port = int(self._server.add_insecure_port(f"{ip}:{port}"))
        self._server.start()

    def close(self) -> None:
        self.closed.set()
        self._server.stop(grace=0).wait()


class _AnyMethod(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, echo: EchoGrpc) -> None:
        self._echo = echo

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        metadata = {key: str(value) for key, value in call.invocation_metadata}
        self._echo.calls.append((call.method, metadata))
        if call.method.endswith("/Datapath"):
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)

    def _stream(self, _requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        pause = threading.Event()
        while context.is_active() and not self._echo.closed.is_set():
            yield self._echo.name.encode()
            pause.wait(0.05)
