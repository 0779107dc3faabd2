"""The parent of a slice's processes: whatever happens to whom, nothing is left.

A small program stands for Ray here; it leaves an orphan that runs away from everything but its namespace
and the subreaper.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from polyray.tenants.sandboxes.driver_log import segment_start
from support.processes import argv_of, parent_of
from support.wait import until

RUNAWAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
print("Ray runtime started.", flush=True)
time.sleep(600)
"""


class Slice:
    def __init__(self, root: Path, *, pid_namespace: bool, program: str = RUNAWAY) -> None:
        self.directory = root / "slice"
        self.directory.mkdir()
        self.mark = f"mark-of-{root.name}"
        self.events: list[dict[str, Any]] = []
        self.keeper = subprocess.Popen(
            [sys.executable, "-m", "polyray.tenants.sandboxes.slice_init"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.send(
            argv=[sys.executable, "-c", program, self.mark],
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            directory=str(self.directory),
            owner=str(root / "slice.owner"),
            uid=None,
            pid_namespace=pid_namespace,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, **message: object) -> None:
        assert self.keeper.stdin is not None
        self.keeper.stdin.write(json.dumps(message).encode() + b"\n")
        self.keeper.stdin.flush()

    def start_driver(self, program: str, log: Path, **changes: object) -> None:
        self.send(
            **{
                "do": "start_driver",
                "driver_id": "d1",
                "argv": [sys.executable, "-u", "-c", program, self.mark],
                "cwd": "/",
                "env": {"PATH": "/usr/bin:/bin"},
                "log_path": str(log),
                "log_limit_bytes": 1 << 20,
                **changes,
            }
        )

    def processes(self) -> list[psutil.Process]:
        """Return what Ray's stand-in and drivers started."""
        return [p for p in psutil.process_iter(["cmdline"]) if self.mark in (p.info["cmdline"] or [])]

    def init(self) -> psutil.Process:
        return psutil.Process(self.keeper.pid).children()[0]

    def said(self, event: str) -> dict[str, Any] | None:
        return next((one for one in self.events if one["event"] == event), None)

    def wait_started(self) -> None:
        until(lambda: self.said("runtime_started") and len(self.processes()) == 2, what="the program and its orphan")

    def wait_gone(self) -> None:
        until(lambda: self.keeper.poll() is not None and not self.processes(), what="every process to end")
        self._reader.join(10)

    def _read(self) -> None:
        assert self.keeper.stdout is not None
        for line in self.keeper.stdout:
            self.events.append(json.loads(line))


@pytest.fixture(params=[True, False], ids=["pid namespace", "subreaper"])
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slice]:
    started = Slice(tmp_path, pid_namespace=request.param)
    started.wait_started()
    yield started
    started.keeper.kill()
    started.wait_gone()


def test_when_its_holder_goes_away_everything_goes(one: Slice) -> None:
    assert one.keeper.stdin is not None
    one.keeper.stdin.close()
    one.wait_gone()
    assert not one.directory.exists()
    assert one.said("gone")


def test_when_it_is_asked_to_end_everything_goes(one: Slice) -> None:
    one.keeper.terminate()
    one.wait_gone()
    assert not one.directory.exists()


def test_when_its_init_is_killed_everything_goes(one: Slice) -> None:
    one.init().kill()
    one.wait_gone()
    assert not one.directory.exists()


def test_when_its_keeper_is_killed_no_process_is_left(one: Slice) -> None:
    one.keeper.kill()
    one.wait_gone()


def test_when_ray_ends_it_says_how_and_cleans_up(one: Slice) -> None:
    init = one.init()
    next(p for p in one.processes() if parent_of(p) == init and argv_of(p)[1:2] == ["-c"]).kill()
    one.wait_gone()
    assert not one.directory.exists()
    exited = one.said("exited")
    assert exited is not None
    assert exited["code"] == -9
    assert "Ray runtime started" in exited["tail"]


def test_a_holder_that_is_killed_takes_its_slice_along(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'polyray.tenants.sandboxes.slice_init'],"
        " stdin=subprocess.PIPE, start_new_session=True)\n"
        "child.stdin.write(sys.argv[1].encode() + b'\\n'); child.stdin.flush(); time.sleep(600)\n"
    )
    mark, directory = f"mark-of-{tmp_path.name}", tmp_path / "slice"
    directory.mkdir()
    launch = {
        "argv": [sys.executable, "-c", RUNAWAY, mark],
        "env": {"PATH": "/usr/bin:/bin"},
        "cwd": "/",
        "directory": str(directory),
        "owner": str(tmp_path / "slice.owner"),
        "uid": None,
        "pid_namespace": True,
    }
    holder = subprocess.Popen([sys.executable, "-c", program, json.dumps(launch)], stdout=subprocess.DEVNULL)

    def marked() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]

    until(lambda: len(marked()) == 2, what="the slice")
    holder.kill()
    holder.wait()
    until(lambda: not marked() and not directory.exists(), what="the slice to end with its holder")


def test_a_driver_writes_its_log_and_tells_its_exit_code(one: Slice, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    one.start_driver("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", log)
    until(lambda: one.said("driver_exited"))
    exited = one.said("driver_exited")
    assert exited is not None
    assert exited["code"] == 3
    assert sorted(log.read_text().split()) == ["err", "out"]


def test_of_a_driver_that_prints_without_end_the_beginning_and_the_end_are_kept(one: Slice, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    one.start_driver("for n in range(100_000): print(n)", log, log_limit_bytes=4000)
    until(lambda: one.said("driver_exited"))
    files = list(log.parent.iterdir())
    assert sum(file.stat().st_size for file in files) <= 4000
    assert log.read_bytes().startswith(b"0\n1\n2\n")
    last = max(files, key=lambda file: segment_start(file.name, log.name) or 0)
    assert last.read_bytes().endswith(b"\n99998\n99999\n")
    whole = sum(len(str(n)) + 1 for n in range(100_000))
    assert (segment_start(last.name, log.name) or 0) + last.stat().st_size == whole, (
        "offsets count all that was written"
    )


def test_a_log_that_cannot_be_written_ends_neither_driver_nor_slice(one: Slice, tmp_path: Path) -> None:
    full = tmp_path / "driver.log"
    full.symlink_to("/dev/full")
    one.start_driver("import sys; print('lost'); sys.exit(3)", full)
    until(lambda: one.said("driver_exited"))
    exited = one.said("driver_exited")
    assert exited is not None
    assert exited["code"] == 3
    assert one.keeper.poll() is None


def test_a_drivers_end_is_told_though_a_child_that_left_its_group_prints_without_end(
    one: Slice, tmp_path: Path
) -> None:
    log = tmp_path / "driver.log"
    program = (
        "import os, time\nprint('first')\n"
        "if os.fork() == 0:\n    os.setsid()\n    while True:\n        os.write(1, b'x' * 65536)\n"
        "time.sleep(0.5)"
    )
    one.start_driver(program, log)
    until(lambda: one.said("driver_exited"), what="the driver's end")
    one.start_driver("print('second')", tmp_path / "second.log", driver_id="d2")
    until(lambda: (tmp_path / "second.log").exists() and (tmp_path / "second.log").read_text() == "second\n")
    assert log.read_bytes().startswith(b"first\n")
    assert log.stat().st_size < 1.1 * (1 << 20)


def test_a_driver_is_asked_to_end_and_may_say_goodbye(one: Slice, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('goodbye'), sys.exit(0)))\nprint('up')\ntime.sleep(600)"
    )
    one.start_driver(program, log)
    until(lambda: log.exists() and "up" in log.read_text())
    one.send(do="stop_driver", driver_id="d1", grace_seconds=30)
    until(lambda: one.said("driver_exited"))
    exited = one.said("driver_exited")
    assert exited is not None
    assert exited["code"] == 0
    assert "goodbye" in log.read_text()


def test_a_driver_that_does_not_end_is_killed_after_its_grace_with_its_children(one: Slice, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    program = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork()\n"
        "print('up')\ntime.sleep(600)"
    )
    one.start_driver(program, log)
    until(lambda: log.exists() and log.read_text().count("up") == 2)
    one.send(do="stop_driver", driver_id="d1", grace_seconds=0.1)
    until(lambda: one.said("driver_exited") and len(one.processes()) == 2, what="driver and child to end")
    exited = one.said("driver_exited")
    assert exited is not None
    assert exited["code"] == -signal.SIGKILL


def test_asking_a_driver_to_end_again_and_again_does_not_prolong_its_grace(one: Slice, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    one.start_driver(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)", log
    )
    until(lambda: log.exists() and "up" in log.read_text())

    def ended_though_asked_again() -> bool:
        one.send(do="stop_driver", driver_id="d1", grace_seconds=2.0)
        return one.said("driver_exited") is not None

    until(ended_though_asked_again, what="driver to be killed")


def test_a_driver_that_cannot_start_fails_alone(one: Slice, tmp_path: Path) -> None:
    one.start_driver("", tmp_path / "driver.log", argv=["/does/not/exist"])
    until(lambda: one.said("driver_exited"))
    exited = one.said("driver_exited")
    assert exited is not None
    assert exited["code"] == 127
    assert one.keeper.poll() is None


def test_a_slice_in_a_namespace_sees_its_own_processes_only(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("run this test as root: other users may not be allowed a pid namespace")
    one = Slice(tmp_path, pid_namespace=True)
    one.wait_started()
    log = tmp_path / "driver.log"
    one.start_driver("import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit())[:9])", log)
    until(lambda: one.said("driver_exited"))
    seen = json.loads(log.read_text())
    assert seen[0] == 1
    # The init, the program, its first child that nobody reaped, the orphan, the driver.
    assert len(seen) <= 5
    one.keeper.kill()
    one.wait_gone()
