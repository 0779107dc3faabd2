"""The parent of one local node's processes: `python -m polyray.autoscaler.providers.local_node DIRECTORY`.

It stands for the machine: it detaches from whoever launched it, boots for a while, runs the node's raylet,
and when that ends, or when it is asked to (SIGTERM), leaves nothing behind. The standard library alone.

In its directory it finds `launch.json` and writes `process.json` (pid and start; its time is that of the last
sign of life), `node.log` and, last of all, `ended.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyray.tenants.sandboxes.descendants import adopt_orphans, die_with_parent, kill_descendants

#: Slices' own parents need a moment to see that their lease is gone, and to clean up.
GRACE_SECONDS = 3.0


def main() -> None:
    directory = Path(sys.argv[1])
    launch = json.loads((directory / "launch.json").read_text())
    now_ms = _time_since(launch["launched_ms"])
    read_end, write_end = os.pipe()
    if os.fork() != 0:
        # The launcher returns once the node's process is on record.
        os.close(write_end)
        os.read(read_end, 1)
        return
    os.close(read_end)
    os.setsid()
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
    write_json(directory / "process.json", {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
    os.close(write_end)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(directory / "node.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    detail = "terminated" if _asked_to_end(launch["boot_seconds"]) else _run(launch, directory / "process.json", now_ms)
    shutil.rmtree(launch["temp_dir"], ignore_errors=True)
    write_json(directory / "ended.json", {"ended_ms": now_ms(), "detail": detail})


def _time_since(launched_ms: int) -> Callable[[], int]:
    """Return a clock that goes on from the moment of launch, whatever is done to the machine's: it is billed by it."""
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return lambda: launched_ms + (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began) // 1_000_000


def _run(launch: dict[str, Any], sign_of_life: Path, now_ms: Callable[[], int]) -> str:
    """Run the raylet until it ends or until asked to end it; return how it ended.

    Meanwhile the time of the file `sign_of_life` is set each second: if all is killed it tells when that was.
    """
    raylet = subprocess.Popen(
        launch["argv"],
        env=launch["env"],
        cwd="/",
        start_new_session=True,
        # Safe here: this process has one thread.
        preexec_fn=_prepare_child,
    )
    asked = ended = False
    while not asked and not ended:
        _touch(sign_of_life, now_ms())
        asked = _asked_to_end(1.0)
        ended = _ended(raylet.pid)
    _kill_session(raylet.pid)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and _reap():
        time.sleep(0.02)
    kill_descendants()
    return "terminated" if asked else "its raylet ended by itself; see its node.log"


def _touch(path: Path, at_ms: int) -> None:
    try:
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
    except OSError:
        pass  # Bills are less exact then, no more.


def _prepare_child() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    die_with_parent(signal.SIGKILL)


def _asked_to_end(seconds: float) -> bool:
    """Wait for as long or until a child ends; return whether it was asked to end meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        got = signal.sigtimedwait({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}, left)
        if got is not None:
            return got.si_signo != signal.SIGCHLD
    return False


def _ended(pid: int) -> bool:
    """Return whether this child has ended, and reap adopted orphans on the way."""
    while (first := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if first.si_pid == pid:
            return True
        os.waitpid(first.si_pid, 0)
    return False


def _kill_session(session: int) -> None:
    """Kill the node's own processes; slices, which have sessions of their own, follow by themselves."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    os.kill(int(entry), signal.SIGKILL)
            except (OSError, IndexError):
                continue


def _reap() -> bool:
    """Reap what has ended; return whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; -1 if there is none, or only its corpse.

    Ids are used again; with this number they are not.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(content))
    os.replace(fresh, path)


if __name__ == "__main__":
    main()
