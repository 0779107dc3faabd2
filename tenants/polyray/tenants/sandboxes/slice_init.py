"""The parent of all processes of one slice. A program of its own, of the standard library alone.

It is two processes. The *keeper* is the child of whoever holds the lease; it waits, and when the slice ends
for whatever reason it kills what is left of it, removes its directory and says `gone`. The *init* is the
keeper's child, process 1 of a pid namespace where the host allows one: it starts Ray, watches it, starts and
stops drivers, and takes everything down with itself.

    holder of the lease dies   -> keeper gets SIGTERM (parent-death signal) -> init killed, directory removed
    keeper killed with -9      -> init killed by its parent-death signal, all else with its namespace
    init killed, or Ray ended  -> keeper kills what is left, removes the directory

Without a pid namespace both adopt orphans (subreaper) and kill until no descendant is left.

The first line of standard input is the launch (JSON), each further one a command; end of file ends the
slice. Events are JSON lines on standard output.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from polyray.tenants.sandboxes.descendants import (
    adopt_orphans,
    die_with_parent,
    enter_pid_namespace,
    kill_descendants,
    mount_proc,
    pid_namespace_allowed,
    signal_group,
    spawn,
)
from polyray.tenants.sandboxes.driver_log import DriverLog

MAX_LINE_BYTES = 1 << 20
TAIL_BYTES = 4096
#: Read from a driver at a time, each of up to 64 KiB: the kernel's largest pipe.
MAX_CHUNKS = 16
STARTED = b"Ray runtime started"


def main() -> None:
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
    line = _first_line()
    if not line:
        return
    launch: dict[str, Any] = json.loads(line)
    own_namespace = launch["pid_namespace"] and pid_namespace_allowed()
    if own_namespace:
        enter_pid_namespace()
    init = os.fork()
    if init == 0:
        _run_init(launch, own_namespace)
    _keep(init, Path(launch["directory"]), Path(launch["owner"]))


def say(**event: object) -> None:
    """Report an event; a reader that is gone is no reason to fail."""
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except OSError:
        pass


# The keeper.


def _keep(init: int, directory: Path, owner: Path) -> None:
    os.close(0)
    waited = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
    while os.waitpid(init, os.WNOHANG)[0] != init:
        got = signal.sigtimedwait(waited, 1.0)
        if got is not None and got.si_signo != signal.SIGCHLD:
            os.kill(init, signal.SIGKILL)
    kill_descendants()
    shutil.rmtree(directory, ignore_errors=True)
    owner.unlink(missing_ok=True)
    say(event="gone")


# The init.


def _run_init(launch: dict[str, Any], own_namespace: bool) -> NoReturn:
    code = 1
    try:
        if own_namespace:
            mount_proc()
        if launch["uid"] is not None:
            os.setgroups([])
            os.setresgid(launch["uid"], launch["uid"], launch["uid"])
            os.setresuid(launch["uid"], launch["uid"], launch["uid"])
        # After the change of uid, which clears it. In a namespace the kernel ends all the rest.
        die_with_parent(signal.SIGKILL if own_namespace else signal.SIGTERM)
        adopt_orphans()
        say(event="init", pid_namespace=own_namespace)
        code = _Init(launch).run()
    except BaseException as error:
        say(event="exited", code=1, tail=f"the slice's init failed: {error!r}"[:TAIL_BYTES])
    finally:
        if not own_namespace:
            kill_descendants()
        os._exit(code)


class _Driver:
    """A driver's process, its output copied to its log."""

    def __init__(self, command: dict[str, Any]) -> None:
        self.driver_id: str = command["driver_id"]
        self.kill_at: float | None = None
        self._log = DriverLog(Path(command["log_path"]), command["log_limit_bytes"])
        self.process = spawn(command["argv"], command["env"], command["cwd"])

    def copy(self) -> bool:
        """Copy what there is to read; return whether there may be more later.

        Bounded, so that one who prints without end keeps nobody else waiting, and more than a pipe holds: of a
        program that has ended nothing is lost.
        """
        assert self.process.stdout is not None
        for _ in range(MAX_CHUNKS):
            try:
                chunk = os.read(self.process.stdout.fileno(), 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._log.write(chunk)
        return True


class _Init:
    def __init__(self, launch: dict[str, Any]) -> None:
        self._launch = launch
        self._selector = selectors.DefaultSelector()
        self._commands = b""
        self._tail = b""
        self._runtime_started = False
        self._driver: _Driver | None = None
        self._ended = False
        self._ray: subprocess.Popen[bytes]

    def run(self) -> int:
        read_end, write_end = os.pipe()
        for end in (read_end, write_end, 0):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        self._ray = spawn(self._launch["argv"], self._launch["env"], self._launch["cwd"])
        assert self._ray.stdout is not None
        self._selector.register(0, selectors.EVENT_READ, self._on_command)
        self._selector.register(read_end, selectors.EVENT_READ, lambda: _drained(read_end))
        self._selector.register(self._ray.stdout, selectors.EVENT_READ, self._on_ray_output)
        while not self._ended:
            for key, _ in self._selector.select(timeout=0.2 if self._driver and self._driver.kill_at else 5.0):
                key.data()
            self._reap()
            self._kill_overdue_driver()
        return 0

    def _on_end(self, *_: object) -> None:
        self._ended = True

    def _on_ray_output(self) -> None:
        assert self._ray.stdout is not None
        try:
            chunk = os.read(self._ray.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not chunk:
            if self._ray.stdout in self._selector.get_map():
                self._selector.unregister(self._ray.stdout)
            return
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]
        if not self._runtime_started and STARTED in self._tail:
            self._runtime_started = True
            say(event="runtime_started")

    def _on_command(self) -> None:
        try:
            chunk = os.read(0, 65536)
        except BlockingIOError:
            return
        self._commands += chunk
        if not chunk or len(self._commands) > MAX_LINE_BYTES:
            self._ended = True
            return
        *lines, self._commands = self._commands.split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "start_driver":
                self._start_driver(command)
            elif command["do"] == "stop_driver":
                self._stop_driver(command["driver_id"], command["grace_seconds"])

    def _start_driver(self, command: dict[str, Any]) -> None:
        try:
            driver = self._driver = _Driver(command)
        except OSError as error:
            say(event="driver_exited", driver_id=command["driver_id"], code=127, detail=str(error)[:500])
            return
        output = driver.process.stdout
        assert output is not None
        self._selector.register(
            output, selectors.EVENT_READ, lambda: driver.copy() or self._selector.unregister(output)
        )
        say(event="driver_started", driver_id=driver.driver_id)

    def _stop_driver(self, driver_id: str, grace_seconds: float) -> None:
        """Ask it to end, once. Asked again its grace runs on, or one who asks each second would never see it killed."""
        driver = self._driver
        if driver is None or driver.driver_id != driver_id or driver.process.returncode is not None:
            return
        if driver.kill_at is None:
            signal_group(driver.process.pid, signal.SIGTERM)
            driver.kill_at = time.monotonic() + grace_seconds

    def _kill_overdue_driver(self) -> None:
        driver = self._driver
        if driver is not None and driver.kill_at is not None and time.monotonic() >= driver.kill_at:
            driver.kill_at = None
            signal_group(driver.process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if self._driver is not None and pid == self._driver.process.pid:
                self._driver.process.returncode = code
                self._driver.copy()
                # Its children end with it: nobody is left who would.
                signal_group(pid, signal.SIGKILL)
                self._driver.kill_at = None
                say(event="driver_exited", driver_id=self._driver.driver_id, code=code, detail="")
            elif pid == self._ray.pid:
                self._ray.returncode = code
                self._on_ray_output()
                say(event="exited", code=code, tail=self._tail.decode(errors="replace"))
                self._ended = True


def _drained(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _first_line() -> bytes:
    """Read one byte at a time: what follows belongs to the init."""
    line = b""
    while len(line) < MAX_LINE_BYTES:
        byte = os.read(0, 1)
        if byte in {b"", b"\n"}:
            return line
        line += byte
    return b""


if __name__ == "__main__":
    main()
    sys.exit(0)
