"""Where the API listens, and telling this machine's other processes of it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from polyray.core.faultpoints import outside
from polyray.core.settings import Settings


def listen(settings: Settings) -> socket.socket:
    """Return the API's listening socket. A port that was chosen freely is kept: tokens name it as issuer."""
    record = settings.state_dir / "run" / "api.json"
    port = settings.api_port
    if port == 0:
        try:
            port = int(json.loads(record.read_text())["port"])
        except (OSError, ValueError, KeyError, TypeError):
            port = 0
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((settings.host, port))
    write_private(record, {"port": listener.getsockname()[1]})
    return listener


def write_private(path: Path, content: dict[str, object]) -> None:
    """Write a small JSON file, 0600, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    with outside("file.endpoints"):
        partial.replace(path)
