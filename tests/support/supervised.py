"""A supervisor of small real programs, in a process of its own, as `polyray up` runs the big one.

python -m support.supervised STATE_DIR COMPONENTS_JSON
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyray.supervise.lock import SupervisorLock, running_supervisor
from polyray.supervise.plan import Component
from polyray.supervise.processes import ProcessRef, is_alive, read_record, send, session_rest
from polyray.supervise.supervisor import Supervisor
from support.wait import until

PYTHON = sys.executable
#: Runs until it is asked to end.
STEADY = "import signal; signal.sigwait({signal.SIGTERM})"
#: Is up, and when asked to end says when.
POLITE = (
    "import signal, time; signal.pthread_sigmask(0, {15}); print('up', flush=True)\n"
    "signal.sigwait({15}); print(time.monotonic_ns(), flush=True)"
)
#: Does not hear SIGTERM.
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
#: Has a child in its session, and one that left it.
PARENT = (
    "import subprocess, sys, signal\n"
    "child = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
    "inner, outer = subprocess.Popen(child), subprocess.Popen(child, start_new_session=True)\n"
    "print('child', inner.pid, 'orphan', outer.pid, flush=True)\n"
    "signal.pthread_sigmask(0, {15}); signal.sigwait({15})"
)


def first_true(make: Callable[[], Any], what: str, *, seconds: float = 20.0) -> Any:
    """Return the first true value that `make` gives, within a bound."""
    found: list[Any] = []

    def made() -> bool:
        found[:] = [make()]
        return bool(found[0])

    until(made, what=what, seconds=seconds)
    return found[0]


class Supervised:
    """Starts supervisors on one state directory, and sees to it that none of its processes outlives the test."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        (state_dir / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seen: set[ProcessRef] = set()

    def start(self, *components: dict[str, Any]) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        log = (self.state_dir / "supervisor.out").open("ab")
        command = [PYTHON, "-m", "support.supervised", str(self.state_dir), json.dumps(components)]
        child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        first_true(lambda: child.poll() is not None or self.supervisor, "the supervisor has its lock")
        return child

    @property
    def supervisor(self) -> ProcessRef | None:
        return running_supervisor(self.state_dir / "run" / "supervisor.pid")

    def process(self, name: str) -> ProcessRef | None:
        """Return the component's live process."""
        record = read_record(self.state_dir / "run" / "components" / f"{name}.json")
        if record is None:
            return None
        self._seen.add(record.process)
        return record.process if is_alive(record.process) else None

    def running(self, name: str) -> ProcessRef:
        process = first_true(lambda: self.process(name), f"{name} runs")
        assert isinstance(process, ProcessRef)
        return process

    def told(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.state_dir / "run" / "supervisor.json").read_text())
        except FileNotFoundError:
            return {}
        return dict(content["components"].get(name) or {})

    def log(self, name: str) -> str:
        path = self.state_dir / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        if (supervisor := self.supervisor) is not None:
            send(supervisor, signal.SIGKILL)
        for path in (self.state_dir / "run" / "components").glob("*.json"):
            self.process(path.stem)
        for process in self._seen:
            for one in (process, *session_rest(process)):
                send(one, signal.SIGKILL)


def main() -> None:
    state_dir, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    lock = SupervisorLock(state_dir / "run" / "supervisor.pid")
    if not lock.take():
        sys.exit(3)
    components = [Component(**{**one, "argv": tuple(one["argv"])}) for one in given]
    Supervisor(components, state_dir=state_dir, base_env=dict(os.environ)).run()
    lock.release()


if __name__ == "__main__":
    main()
