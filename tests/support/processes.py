"""Looking at processes that may end at any moment: one that vanished between two questions is gone, no error."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def lives(process: psutil.Process) -> bool:
    """Return whether it still runs; one that ended and was not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def argv_of(process: psutil.Process | None) -> list[str]:
    """Return its command line; empty if it is gone."""
    try:
        return [] if process is None else process.cmdline()
    except psutil.Error:
        return []


def parent_of(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill each with -9; that one of them is gone already keeps none of the others alive."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
