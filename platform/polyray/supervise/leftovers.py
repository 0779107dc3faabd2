"""What of a platform is left on this machine, found without trusting any of its records.

A process is the platform's if its standard output or error goes to a file below the platform's own
directories, if it was given Ray's temporary directory of this platform, or if it bears a name that Ray gives
and has a file there open. One of these holds for whatever the platform starts, and none for anything else but
by intent.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from polyray.supervise.processes import ProcessRef, all_stats, boot_id, read_stat, send

_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class Leftovers:
    processes: tuple[tuple[ProcessRef, str], ...] = ()
    #: Ports on which somebody still answers.
    ports: tuple[int, ...] = ()
    directories: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.directories)

    def told(self) -> list[str]:
        return [
            *(f"process {process.pid}: {name}" for process, name in self.processes),
            *(f"port {port} answers" for port in self.ports),
            *(f"directory {directory}" for directory in self.directories),
        ]


def find_leftovers(state_dir: Path, ray_dir: Path, ports: tuple[int, ...]) -> Leftovers:
    return Leftovers(
        tuple(_processes(state_dir, ray_dir)),
        tuple(port for port in ports if port and _answers(port)),
        (ray_dir,) if ray_dir.exists() else (),
    )


def end_leftovers(state_dir: Path, ray_dir: Path) -> None:
    """Kill the platform's processes and remove Ray's temporary directory once nobody uses it."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (found := tuple(_processes(state_dir, ray_dir))) and time.monotonic() < deadline:
        for process, _ in found:
            send(process, signal.SIGKILL)
        time.sleep(0.05)
    if not found and _is_own_directory(ray_dir):
        shutil.rmtree(ray_dir, ignore_errors=True)


def _processes(state_dir: Path, ray_dir: Path) -> list[tuple[ProcessRef, str]]:
    boot, spared = boot_id(), _self_and_ancestors()
    marks = (f"{os.path.realpath(state_dir)}/", f"{os.path.realpath(ray_dir)}/")
    found = []
    for process in all_stats():
        if process.pid in spared or process.state in "ZX":
            continue
        argv = _argv(process.pid)
        writes = any(_open_file(process.pid, fd).startswith(marks) for fd in ("1", "2"))
        if writes or _has_temp_dir(argv, ray_dir) or _is_rays_own(process.pid, argv, marks[1]):
            name = _name(argv)
            found.append((ProcessRef(process.pid, process.start_ticks, boot), name))
    return found


def _name(argv: list[str]) -> str:
    """Return what a process is called: its module, where Python runs one, or its program."""
    module = argv[argv.index("-m") + 1] if "-m" in argv[:-1] else ""
    return module or (Path(argv[0]).name.strip() if argv else "") or "?"


def _has_temp_dir(argv: list[str], ray_dir: Path) -> bool:
    """Ray's own processes get their directories as options, `--temp-dir=...`, `--session_dir=...`."""
    values = [argument.partition("=")[2] for argument in argv if argument.startswith("--")]
    return any(value == str(ray_dir) or value.startswith(f"{ray_dir}/") for value in values)


def _is_rays_own(pid: int, argv: list[str], mark: str) -> bool:
    """Say whether it is one of Ray's agents: their names hide their arguments, and their output goes to a raylet.

    One whose raylet was killed lives on for a while, and its ports with it.
    """
    if not argv or not argv[0].startswith("ray::"):
        return False
    try:
        return any(_open_file(pid, fd).startswith(mark) for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _open_file(pid: int, fd: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def _self_and_ancestors() -> set[int]:
    spared, pid = set(), os.getpid()
    while pid > 0 and pid not in spared:
        spared.add(pid)
        process = read_stat(pid)
        pid = process.parent if process is not None else 0
    return spared


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_own_directory(path: Path) -> bool:
    """The parent is shared by all users: only what is ours, and no link, is removed."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
