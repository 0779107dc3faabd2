"""Grade `process`: each slice a tree of plain processes with ports, an address and a directory of its own.

It keeps accidents apart, not attackers: see `grade_notes`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from polyray.core.errors import Unavailable
from polyray.tenants.cluster import (
    SliceDirs,
    check_socket_path,
    driver_environment,
    ray_start_command,
    site_customization,
    slice_environment,
)
from polyray.tenants.sandbox import Grade, Probe
from polyray.tenants.sandboxes.privileges import Uid, uid_for
from polyray.tenants.slices import PORTS_PER_SLICE, DriverSpec, DriverStatus, SliceSpec

MEMORY_EVERY_SECONDS = 10.0
#: An event longer than this is no event of ours.
_MAX_EVENT_BYTES = 1 << 16
_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
#: In the words of its two halves: `[DATE TIME,MS I PID THREAD] (raylet) ...` and `DATE TIME,MS INFO scripts.py...`.
_RAY_INFO = re.compile(r"\[?\d{4}-\d\d-\d\d [\d:,]+ (?:I \d+ \d+\]|INFO )")
_BETWEEN = " | "
_KEEPER = "polyray.tenants.sandboxes.slice_init"
#: Names the keeper of a slice's directory, outside of it, so that nothing in a slice can forge it.
_OWNER_SUFFIX = ".owner"


class ProcessSandbox:
    """Implements `Sandbox` for one node. `ray_dir` is the short parent of all slices' directories, mode 0700."""

    def __init__(self, ray_dir: Path, *, python: str = sys.executable) -> None:
        self._ray_dir, self._python = ray_dir, python

    @property
    def grade(self) -> Grade:
        return Grade.PROCESS

    def grade_notes(self) -> list[str]:
        return [
            "Slices of all tenants run under one user, so tenants must trust each other"
            " and could read the platform's own secrets.",
            "Each slice has its own processes, ports, loopback address and 0700 directory; nothing else keeps them"
            " apart.",
            "Cpus and memory are counted, not limited: a workload that takes more than it asked for slows the others"
            " down, and one that fills the machine's memory may cost them their workers.",
            "Declared datasets are linked into a run's directory; that is no boundary in this grade.",
            *self._uid_note(),
        ]

    def _uid_note(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        uid = uid_for(65534, self._ray_dir, self._python)
        return [uid.note] if uid.note else []

    def start(self, spec: SliceSpec) -> ProcessSlice:
        dirs = SliceDirs(self._ray_dir / slice_directory_name(spec))
        check_socket_path(dirs.ray)
        if (port := first_port_in_use(spec.address.first_port)) is not None:
            raise Unavailable(f"port_in_use: {port}", hint="give the slice another block of ports")
        sweep(self._ray_dir)
        uid = uid_for(spec.tenant_uid, Path(spec.run_dir), self._python)
        _make_directories(dirs, spec, uid)
        return ProcessSlice(spec, dirs, self._python, uid.number)


class ProcessSlice:
    """Implements `RunningSlice`: a child keeper process and a thread that reads its events."""

    def __init__(self, spec: SliceSpec, dirs: SliceDirs, python: str, uid: int | None) -> None:
        self._spec, self._dirs, self._python = spec, dirs, python
        self._mutex = threading.Lock()
        self._runtime_started = self._gone = False
        self._detail = self._reason = ""
        self._driver: DriverStatus | None = None
        self._memory_bytes, self._measure_at = 0, 0.0
        # No preexec_fn and no shell: the holder may have gRPC's threads, which do not survive a plain fork.
        self._keeper = subprocess.Popen(
            # The argument is for who looks for a platform's processes, people too.
            [python, "-m", _KEEPER, f"--temp-dir={dirs.ray}"],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONSAFEPATH": "1"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        write_owner(dirs.root, self._keeper.pid)
        self._send(
            {
                "argv": ray_start_command(spec, dirs, python),
                "env": slice_environment(spec, dirs, python),
                "cwd": str(dirs.home),
                "directory": str(dirs.root),
                "owner": str(owner_file(dirs.root)),
                "uid": uid,
                "pid_namespace": True,
            }
        )
        threading.Thread(target=self._read, name=f"slice-{spec.lease_id}", daemon=True).start()

    def probe(self) -> Probe:
        now = time.monotonic()
        if now >= self._measure_at and not self._gone:
            self._measure_at, self._memory_bytes = now + MEMORY_EVERY_SECONDS, _tree_memory_bytes(self._keeper.pid)
        with self._mutex:
            memory = 0 if self._gone else self._memory_bytes
            return Probe(self._runtime_started, self._gone, self._detail, self._driver, memory)

    def start_driver(self, spec: DriverSpec) -> None:
        with self._mutex:
            if self._driver is not None and self._driver.driver_id == spec.driver_id:
                return
            self._driver = DriverStatus(driver_id=spec.driver_id, running=True)
        self._send(
            {
                "do": "start_driver",
                "driver_id": spec.driver_id,
                "argv": spec.argv,
                "cwd": spec.cwd,
                "env": driver_environment(self._spec, self._dirs, self._python, spec.env),
                "log_path": spec.log_path,
                "log_limit_bytes": spec.log_limit_bytes,
            }
        )

    def stop_driver(self, driver_id: str, grace_seconds: float) -> None:
        self._send({"do": "stop_driver", "driver_id": driver_id, "grace_seconds": grace_seconds})

    def kill(self, reason: str) -> None:
        with self._mutex:
            self._reason = self._reason or reason
        # The keeper answers SIGTERM by killing all the rest with -9, and cleans up.
        self._keeper.terminate()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(message).encode() + b"\n")
            self._keeper.stdin.flush()
        except OSError:
            pass  # It is ending; the reader tells.

    def _read(self) -> None:
        assert self._keeper.stdout is not None
        while line := self._keeper.stdout.readline(_MAX_EVENT_BYTES):
            try:
                event = json.loads(line)
                self._on_event(event)
            except (ValueError, KeyError, TypeError):
                continue
        code = self._keeper.wait()
        # The keeper removed it, unless it was killed itself.
        remove_slice_directory(self._dirs.root)
        with self._mutex:
            self._detail = self._reason or self._detail or f"its keeper ended with code {code}"
            if self._driver is not None and self._driver.running:
                self._driver = DriverStatus(driver_id=self._driver.driver_id, running=False, exit_code=-9)
            self._gone = True

    def _on_event(self, event: dict[str, Any]) -> None:
        with self._mutex:
            if event["event"] == "runtime_started":
                self._runtime_started = True
            elif event["event"] == "exited":
                self._detail = f"exit code {event['code']}: {last_lines(event['tail'])}"
            elif event["event"] == "driver_exited":
                self._driver = DriverStatus(driver_id=event["driver_id"], running=False, exit_code=event["code"])


def slice_directory_name(spec: SliceSpec) -> str:
    """Return a short name, unique per lease and generation: it is part of socket paths."""
    return hashlib.sha256(f"{spec.lease_id}.{spec.generation}".encode()).hexdigest()[:10]


def first_port_in_use(first_port: int) -> int | None:
    """Return the first port of the block that something listens on, on whatever address."""
    for port in range(first_port, first_port + PORTS_PER_SLICE):
        with socket.socket() as probe:
            # Connections that are only waiting to be forgotten (TIME_WAIT) do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                return port
    return None


def sweep(ray_dir: Path) -> list[Path]:
    """Remove what slices left behind whose keeper was killed, and their holder with it; return what was removed."""
    removed = []
    for owner in ray_dir.glob(f"*{_OWNER_SUFFIX}"):
        root = owner.with_suffix("")
        if not _owner_lives(owner):
            remove_slice_directory(root)
            removed.append(root)
    return removed


def write_owner(root: Path, pid: int) -> None:
    """Note whose directory this is: a process id and its start, since ids are used again."""
    try:
        started = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        started = 0.0
    owner_file(root).write_text(json.dumps({"pid": pid, "started": started}))


def owner_file(root: Path) -> Path:
    return root.with_name(root.name + _OWNER_SUFFIX)


def remove_slice_directory(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    owner_file(root).unlink(missing_ok=True)


def last_lines(text: str, limit: int = 600) -> str:
    """Return the last lines of an output as one bounded line, without colours; Ray's own INFO only if it is all."""
    lines = [line for raw in text.splitlines() if (line := " ".join(_COLOUR.sub("", raw).split()))]
    told, room = list[str](), limit
    for line in reversed([line for line in lines if not _RAY_INFO.match(line)] or lines):
        room -= len(line) + (len(_BETWEEN) if told else 0)
        if room < 0:
            break
        told.insert(0, line)
    return _BETWEEN.join(told) or (lines[-1][-limit:] if lines else "")


def _owner_lives(owner: Path) -> bool:
    try:
        noted = json.loads(owner.read_text())
        return bool(abs(psutil.Process(noted["pid"]).create_time() - noted["started"]) < 0.1)
    except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
        return False


def _make_directories(dirs: SliceDirs, spec: SliceSpec, uid: Uid) -> None:
    remove_slice_directory(dirs.root)
    for path in (dirs.root, dirs.ray, dirs.home, dirs.tmp, dirs.site):
        path.mkdir(mode=0o700, parents=True)
    with open(os.open(dirs.token, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o400), "w") as file:
        file.write(spec.cluster_secret)
    (dirs.site / "sitecustomize.py").write_text(site_customization(spec.address))
    Path(spec.run_dir).mkdir(parents=True, exist_ok=True)
    if uid.number is not None:
        _own(dirs.root, uid.number)
        _own(Path(spec.run_dir), uid.number)


def _own(root: Path, uid: int) -> None:
    """Give a tree to a uid, links themselves and not what they name."""
    chown: Callable[[str], None] = lambda path: os.chown(path, uid, uid, follow_symlinks=False)  # noqa: E731
    chown(str(root))
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            chown(os.path.join(parent, name))


def _tree_memory_bytes(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.Error, OSError, AttributeError):
            continue
    return total
