"""Processes that must not outlive their parent. Linux; the standard library alone, for programs that are parents."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int) -> None:
    """Get this signal when the *thread* that made this process ends. A change of uid undoes it."""
    _call(_libc.prctl, _PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (subreaper)."""
    _call(_libc.prctl, _PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants() -> None:
    """Kill children until there are none: a killed one's own children become ours (subreaper)."""
    while True:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    mine = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # The command name may hold blanks and parentheses; the parent is the second field after it.
                    if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        mine.append(int(entry))
            except OSError:
                pass
    return mine


def enter_pid_namespace() -> None:
    """Make the next child process 1 of a pid namespace; without root, in a user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        _call(_libc.unshare, _CLONE_NEWUSER)
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    _call(_libc.unshare, _CLONE_NEWPID)


def mount_proc() -> None:
    """Show the namespace's own processes only; must run inside it."""
    _call(_libc.unshare, _CLONE_NEWNS)
    _call(_libc.mount, b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call(_libc.mount, b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def pid_namespace_allowed() -> bool:
    """Return whether this host lets this user have a pid namespace with a /proc of its own."""
    return _works_in_child(_try_pid_namespace)


def _try_pid_namespace() -> None:
    enter_pid_namespace()
    if not _works_in_child(mount_proc):
        raise OSError("no /proc of its own")


def _works_in_child(action: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def spawn(argv: list[str], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Safe here: this process has one thread.
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def _call(function: Any, *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
