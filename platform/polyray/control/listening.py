"""Where the API listens, and telling this machine's other processes of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from polyray.core.durable import put_file
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
    put_file(path, json.dumps(content).encode(), effect="file.endpoints")
