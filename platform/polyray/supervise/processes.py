"""Processes by pid *and* start time: a pid alone may be another's by now.

A component is started in a session of its own, and writes its record itself, between fork and exec. So a
supervisor that dies at any point leaves no process that its successor does not know, and of two supervisors'
children with the same name the second finds the first's record and does not start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

#: How a child says that a live process of its name exists already.
ALREADY_RUNNING_EXIT = 75


@dataclass(frozen=True)
class ProcessRef:
    """One process of one boot of this machine, for all time. `start_ticks` are clock ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


class Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> Stat | None:
    """Return what the kernel says of a process, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def all_stats() -> Iterator[Stat]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            yield stat


def ref_of(pid: int) -> ProcessRef | None:
    stat = read_stat(pid)
    return None if stat is None else ProcessRef(pid, stat.start_ticks, boot_id())


def is_alive(process: ProcessRef) -> bool:
    """Return whether the process runs; one that ended and was not reaped does not."""
    stat = read_stat(process.pid)
    return (
        stat is not None
        and stat.start_ticks == process.start_ticks
        and stat.state not in "ZX"
        and process.boot_id == boot_id()
    )


def session_rest(leader: ProcessRef) -> tuple[ProcessRef, ...]:
    """Return the live processes of the session that `leader` began, without it.

    A session keeps its number while it has members, so they are the leader's even after its end, unless a
    new leader has the number by now.
    """
    now = read_stat(leader.pid)
    if leader.boot_id != boot_id() or (now is not None and now.start_ticks != leader.start_ticks):
        return ()
    return tuple(
        ProcessRef(stat.pid, stat.start_ticks, leader.boot_id)
        for stat in all_stats()
        if stat.session == leader.pid and stat.pid != leader.pid and stat.state not in "ZX"
    )


def send(process: ProcessRef, number: signal.Signals) -> None:
    """Signal exactly this process; nothing if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except (ProcessLookupError, OSError):
        return
    try:
        if is_alive(process):  # the descriptor pins it: whoever it is now, it stays so
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Record:
    """What is written of a component's process."""

    process: ProcessRef
    #: Digest of what it was started with: a process of another command is replaced, not adopted.
    command_digest: str


def read_record(path: Path) -> Record | None:
    try:
        content = json.loads(path.read_text())
        return Record(ProcessRef(**content["process"]), content["command_digest"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # only a torn disk writes half a record: they are renamed into place


def spawn(
    argv: Sequence[str], env: Mapping[str, str], *, record: Path, command_digest: str, log: Path
) -> subprocess.Popen[bytes]:
    """Start a component in a session of its own, its record written, its output appended to `log`.

    Raises:
        OSError: if the program cannot be started.
    """
    log_fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    boot = boot_id()

    def claim() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _claim(record, command_digest, boot)

    try:
        return subprocess.Popen(  # the supervisor has one thread, so running code after the fork is sound
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,
            preexec_fn=claim,
            umask=0o077,
        )
    finally:
        os.close(log_fd)


def _claim(record: Path, command_digest: str, boot: str) -> None:
    """Write this process's record, or leave if a live process has one."""
    fd = os.open(record.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    other = read_record(record)
    if other is not None and is_alive(other.process):
        os._exit(ALREADY_RUNNING_EXIT)
    stat = read_stat(os.getpid())
    assert stat is not None
    write_json(
        record,
        {"process": asdict(ProcessRef(stat.pid, stat.start_ticks, boot)), "command_digest": command_digest},
    )
    os.close(fd)  # exec would close it too: the lock guards the claim, the record the life


def write_json(path: Path, content: object) -> None:
    """Replace a 0600 file at once.

    Raises:
        OSError: if it cannot be written; the old one stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(content, file)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def reap() -> Iterator[tuple[int, int]]:
    """Yield (pid, exit code) of every child that ended; negative is a signal. Never waits."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)
