"""One supervisor for each state directory: a locked pid file.

The lock is the truth (the kernel drops it with its holder); pid and start time in the file let `polyray down`
signal exactly that process. The file is emptied at the end and never removed: a removed one could be
locked by one process and made anew by another.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from polyray.supervise.processes import ProcessRef, is_alive, ref_of


class SupervisorLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """Take the lock and write who we are; return whether it was free.

        Raises:
            OSError: if that cannot be written; then the lock is not held.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        me = ref_of(os.getpid())
        assert me is not None
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{me.pid} {me.start_ticks} {me.boot_id}\n".encode(), 0)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def running_supervisor(path: Path) -> ProcessRef | None:
    """Return the supervisor that the pid file names, if it lives."""
    try:
        pid, start_ticks, boot = path.read_text().split()
        process = ProcessRef(int(pid), int(start_ticks), boot)
    except (FileNotFoundError, ValueError):
        return None
    return process if is_alive(process) else None
