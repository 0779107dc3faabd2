"""Requests byte by byte: what no well-behaved client would send."""

from __future__ import annotations

import socket


def exchange(port: int, request: bytes, *, seconds: float = 5.0) -> bytes:
    """Send bytes and return all that comes back until the other side closes, or says nothing for a while."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(request)
        connection.settimeout(0.7)
        try:
            while chunk := connection.recv(65536):
                answer += chunk
        except TimeoutError:
            pass
    return answer


def status_of(answer: bytes) -> int:
    """Return the status of the first answer; 0 if there is none."""
    parts = answer.split(b" ", 2)
    return int(parts[1]) if len(parts) > 1 and parts[0].startswith(b"HTTP/") else 0
