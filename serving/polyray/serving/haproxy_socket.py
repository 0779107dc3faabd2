"""Speaking to HAProxy through its master's socket, which reaches every worker, the old ones too."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyray.core.errors import Unavailable
from polyray.core.faultpoints import outside
from polyray.serving.haproxy_config import CLASSES, MAPS
from polyray.serving.haproxy_plan import ServerState, Stream, WorkerState

_TIMEOUT_SECONDS = 5.0
#: Answers are bounded by what we put in; this is against a socket that never ends.
_MAX_ANSWER_BYTES = 64 * 2**20
_RELOAD_TIMEOUT_SECONDS = 20.0
_STREAM = re.compile(r"(0x[0-9a-f]+): .*? be=(\S*) srv=(\S*) ")


@dataclass(frozen=True)
class Worker:
    pid: int
    #: False for one that was replaced by a reload and only keeps its open streams.
    current: bool


class MasterSocket:
    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, command: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> str:
        """Return the answer to one command, which must be one line without ';'.

        Raises:
            Unavailable: if HAProxy does not answer. The message names the verb alone: commands hold secrets.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout_seconds)
                connection.connect(str(self._path))
                connection.sendall(command.encode() + b"\n")
                # The master closes only when it knows that no command follows.
                connection.shutdown(socket.SHUT_WR)
                answer = bytearray()
                while chunk := connection.recv(65536):
                    answer += chunk
                    if len(answer) > _MAX_ANSWER_BYTES:
                        raise OSError("the answer does not end")
        except OSError as error:
            raise Unavailable(
                f"the gateway does not answer: {error}", hint="is it running? see 'polyray status'"
            ) from error
        return answer.decode("utf-8", "replace").strip()

    def workers(self) -> tuple[Worker, ...]:
        """Return the living workers, the current one first."""
        workers, current = [], True
        for line in self.send("show proc").splitlines():
            if line.startswith("# "):
                current = line == "# workers"
            fields = line.split()
            if len(fields) > 1 and fields[1] == "worker":
                workers.append(Worker(int(fields[0]), current))
        return tuple(workers)

    def observe(self, worker: Worker) -> WorkerState:
        """Return what a worker holds.

        Raises:
            Unavailable: if it ended meanwhile.
        """
        description = ""
        for line in self._tell(worker.pid, "show info").splitlines():
            if line.startswith("description: "):
                description = line.removeprefix("description: ").strip('"')
        maps = {name: _entries(self._tell(worker.pid, f"show map maps/{name}.map")) for name in MAPS}
        servers: dict[tuple[str, str], ServerState] = {}
        for kind in CLASSES:
            servers |= _servers(kind, self._tell(worker.pid, f"show servers state {kind}"))
        streams: tuple[Stream, ...] = ()
        if not worker.current:
            found = _STREAM.findall(self._tell(worker.pid, "show sess"))
            streams = tuple(Stream(pointer, kind, server) for pointer, kind, server in found)
        return WorkerState(worker.pid, worker.current, description, maps, servers, streams)

    def run(self, pid: int, commands: Sequence[str]) -> list[str]:
        """Send commands to a worker, all of them; return what was not answered as it should be.

        Raises:
            Unavailable: if it ended meanwhile.
        """
        refused = []
        for command in commands:
            with outside("gateway.command"):
                answer = self._tell(pid, command)
            if answer and not any(fine in answer for fine in _FINE):
                refused.append(f"{' '.join(command.split()[:2])}: {answer[:200]}")
        return refused

    def _tell(self, pid: int, command: str) -> str:
        """Return a worker's answer to one command.

        Raises:
            Unavailable: if it has ended: the master then answers in its place.
        """
        answer = self.send(f"@!{pid} {command}")
        if _WORKER_GONE in answer:
            raise Unavailable(f"the gateway's worker {pid} has ended")
        return answer

    def reload(self) -> str:
        """Load the configuration anew in a new worker; return the reason if it failed, else nothing."""
        with outside("gateway.reload"):
            answer = self.send("reload", timeout_seconds=_RELOAD_TIMEOUT_SECONDS)
        return "" if "Success=1" in answer else answer[:500] or "no answer"


#: What the master says of a worker that is no more.
_WORKER_GONE = "find the target PID"
#: Answers of success, and of what was so already.
_FINE = (
    "New server registered.",
    "No such server.",
    "No such session",
    "Key not found.",
    "Already exists a server",
)


def _entries(answer: str) -> dict[str, str]:
    entries = {}
    for line in answer.splitlines():
        _pointer, _, entry = line.partition(" ")
        key, _, value = entry.partition(" ")
        if key:
            entries[key] = value
    return entries


def _servers(kind: str, answer: str) -> dict[tuple[str, str], ServerState]:
    """Read `show servers state`: see the column names in its second line."""
    servers = {}
    columns: list[str] = []
    for line in answer.splitlines():
        if line.startswith("# "):
            columns = line[2:].split()
        elif columns and len(fields := line.split()) == len(columns):
            row = dict(zip(columns, fields, strict=True))
            # Bit 0 of the administrative state: put into maintenance.
            servers[kind, row["srv_name"]] = ServerState(maintenance=bool(int(row["srv_admin_state"]) & 0x01))
    return servers
