"""Naming a process so that others can tell, on its own machine, whether it is gone."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def machine() -> str:
    """Return a name of what this process's pid is a pid of: hosts of one name, and containers, are told apart."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    pids = os.readlink("/proc/self/ns/pid")
    return f"{os.uname().nodename[:24]}-{hashlib.sha256((boot + pids).encode()).hexdigest()[:8]}"


def this_process() -> str:
    """Return `MACHINE/PID/START`, which is no other process's name, ever."""
    return f"{machine()}/{os.getpid()}/{_start_ticks(os.getpid())}"


def is_of_this_machine(owner: str) -> bool:
    return owner.partition("/")[0] == machine()


def is_gone(owner: str) -> bool:
    """Return whether `owner` was a process of this machine that is no more; of another machine's nothing is known."""
    pid, _, started = owner.partition("/")[2].partition("/")
    return is_of_this_machine(owner) and pid.isdigit() and _start_ticks(int(pid)) != started


def _start_ticks(pid: int) -> str | None:
    """Return when the kernel started a process, in ticks since boot; None if there is none, or only its zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else fields[19]
