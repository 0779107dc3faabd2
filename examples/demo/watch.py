"""What the platform of one state directory takes of this machine: its processes and their memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path


class Watch:
    """Samples the proportional memory (PSS) of every process that names the platform's directories."""

    def __init__(self, *directories: Path, every_seconds: float = 3.0) -> None:
        self._names = tuple(str(directory).encode() for directory in directories)
        self._every_seconds = every_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_bytes = 0
        self.most_processes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def processes(self) -> list[int]:
        """Return the pids of the platform's processes."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if any(name in told for name in self._names):
                found.append(int(entry.name))
        return found

    def _run(self) -> None:
        while not self._stopping.wait(self._every_seconds):
            pids = self.processes()
            self.most_processes = max(self.most_processes, len(pids))
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss_bytes, pids)))


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
