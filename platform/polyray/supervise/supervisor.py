"""The supervisor's loop: look, plan, act, until asked to stop and nothing is left.

It keeps no state of its own but back-off: kill it with -9 and its components go on; the next one adopts them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import PolyrayError
from polyray.supervise.logfiles import rotate
from polyray.supervise.plan import FAILING_AFTER, Action, Component, Memory, Observed, Verb, all_ended, plan
from polyray.supervise.processes import (
    ALREADY_RUNNING_EXIT,
    ProcessRef,
    Record,
    all_stats,
    is_alive,
    read_record,
    reap,
    ref_of,
    send,
    session_rest,
    spawn,
    write_json,
)

log = structlog.get_logger(__name__)

#: Adopted components are not our children, so their end is seen by looking.
LOOK_SECONDS = 0.25
ROTATE_SECONDS = 5.0
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """Keeps components alive under `<state>/run` and `<state>/logs`.

    `base_env` is what every component starts from; its own `env` is added.
    """

    def __init__(
        self,
        components: Sequence[Component],
        *,
        state_dir: Path,
        base_env: Mapping[str, str],
        clock: Clock | None = None,
    ) -> None:
        self._components = {component.name: component for component in components}
        self._run_dir, self._log_dir = state_dir / "run", state_dir / "logs"
        self._records = self._run_dir / "components"
        self._base_env, self._clock = dict(base_env), clock or SystemClock()
        self._memory = {component.name: Memory() for component in components}
        #: What was alive at the last look.
        self._alive: dict[str, ProcessRef] = {}
        #: Exit codes by pid of what was reaped since the last look; pids of what we started and did not reap yet.
        self._exits: dict[int, int] = {}
        self._children: set[int] = set()
        self._told: object = None
        self._stop_signals = 0
        for directory in (self._run_dir, self._log_dir, self._records):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def run(self) -> None:
        """Supervise until SIGTERM, SIGINT or SIGHUP; then end all components in their order and return.

        A second signal ends them at once.
        """
        become_subreaper()
        awaited = {*_STOP_SIGNALS, signal.SIGCHLD}
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        next_rotation = 0.0
        try:
            while True:
                now = self._clock.monotonic()
                if now >= next_rotation:
                    self._rotate()
                    next_rotation = now + ROTATE_SECONDS
                if self.step(stopping=self._stop_signals > 0, hurried=self._stop_signals > 1):
                    return
                info = signal.sigtimedwait(awaited, LOOK_SECONDS)
                if info is not None and info.si_signo in _STOP_SIGNALS:
                    self._stop_signals += 1
                    log.info("asked_to_stop", signal=info.si_signo)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def step(self, *, stopping: bool = False, hurried: bool = False) -> bool:
        """Look and act once; return whether, when stopping, nothing of the components is left."""
        for pid, code in reap():
            self._exits[pid] = code
            self._children.discard(pid)
        observed = self._look()
        if stopping and all_ended(observed):
            end_children()
            self._clear()
            return True
        now = self._clock.monotonic()
        components = tuple(self._components.values())
        for action in plan(components, observed, self._memory, stopping=stopping, hurried=hurried, now=now):
            self._act(action, observed[action.component])
        self._tell(observed, stopping)
        return False

    def _look(self) -> dict[str, Observed]:
        seen = {}
        records = self._all_records()
        for name in {**self._components, **records}:
            record = records.get(name)
            if record is None:
                seen[name] = Observed()
                continue
            # A child of ours is over when it is reaped: its threads may take a moment longer than itself.
            alive = is_alive(record.process) or record.process.pid in self._children
            self._note(name, record, alive)
            if alive:
                seen[name] = Observed(record.process, record.command_digest)
            else:
                seen[name] = Observed(rest=session_rest(record.process))
        self._exits.clear()
        return seen

    def _all_records(self) -> dict[str, Record]:
        """Return the records, also those of components that there are no longer (of another version)."""
        found = {}
        for path in self._records.glob("*.json"):
            if (record := read_record(path)) is not None:
                found[path.stem] = record
                if path.stem not in self._components:
                    self._components[path.stem] = Component(path.stem, ("gone",))  # its digest matches no process
                    self._memory[path.stem] = Memory(retry_at=float("inf"))
        return found

    def _note(self, name: str, record: Record, alive: bool) -> None:
        """Remember that a component began or ended since the last look."""
        before, now = self._alive.get(name), self._clock.monotonic()
        if alive and before != record.process:
            self._alive[name] = record.process
            if self._memory[name].started_at is None:
                self._memory[name] = self._memory[name].after_start(now)
                log.info("adopted", name=name, pid=record.process.pid)
        elif not alive and before is not None:
            del self._alive[name]
            code = self._exits.get(before.pid)
            reason = _told(code)
            asked = self._memory[name].asked_at is not None
            self._memory[name] = Memory(last_exit=reason) if asked else self._memory[name].after_exit(now, reason)
            log.info("ended", name=name, pid=before.pid, reason=reason, asked=asked)
            if self._memory[name].failures == FAILING_AFTER:
                log.error("keeps_failing", name=name, reason=reason, see=str(self._log_dir / f"{name}.log"))

    def _act(self, action: Action, seen: Observed) -> None:
        component, now = self._components[action.component], self._clock.monotonic()
        log.info(action.verb.value, name=component.name, pid=seen.process.pid if seen.process else None)
        match action.verb:
            case Verb.START:
                self._start(component)
            case Verb.ASK:
                assert seen.process is not None
                past = self._memory[component.name]
                self._memory[component.name] = Memory(past.failures, past.retry_at, past.started_at, now)
                send(seen.process, signal.SIGTERM)
            case Verb.KILL:
                assert seen.process is not None
                for process in (seen.process, *session_rest(seen.process)):
                    send(process, signal.SIGKILL)
            case Verb.SWEEP:
                for process in seen.rest:
                    send(process, signal.SIGKILL)

    def _start(self, component: Component) -> None:
        now = self._clock.monotonic()
        try:
            if component.prepare is not None:
                component.prepare()
            child = spawn(
                component.argv,
                {**self._base_env, **component.env},
                record=self._records / f"{component.name}.json",
                command_digest=component.digest,
                log=self._log_dir / f"{component.name}.log",
            )
        except (OSError, subprocess.SubprocessError, PolyrayError) as error:
            self._memory[component.name] = self._memory[component.name].after_exit(now, f"cannot start: {error}")
            log.error("cannot_start", name=component.name, error=str(error))
            return
        self._children.add(child.pid)
        child.returncode = ALREADY_RUNNING_EXIT  # we reap ourselves: keep Popen from waiting for it too
        self._memory[component.name] = self._memory[component.name].after_start(now)
        started = ref_of(child.pid)
        if started is not None:
            self._alive[component.name] = started

    def _tell(self, observed: Mapping[str, Observed], stopping: bool) -> None:
        """Write what `polyray up`, `down` and `status` show, when it changed."""
        told = {
            "stopping": stopping,
            "components": {
                name: {
                    "pid": seen.process.pid if seen.process else None,
                    "failures": self._memory[name].failures,
                    "failing": self._memory[name].failing,
                    "last_exit": self._memory[name].last_exit,
                }
                for name, seen in observed.items()
            },
        }
        if told == self._told:
            return
        try:
            write_json(self._run_dir / "supervisor.json", told)
            self._told = told
        except OSError:
            pass  # a full disk; it is tried again at the next look

    def _rotate(self) -> None:
        for path in self._log_dir.glob("*.log"):
            rotate(path)

    def _clear(self) -> None:
        for path in (*self._records.glob("*"), self._run_dir / "supervisor.json"):
            path.unlink(missing_ok=True)


def _told(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exit code {code}"
    # Most real-time signals have no name.
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def become_subreaper() -> None:
    """Make orphans of the platform our children, so that none is left as a zombie where pid 1 reaps nobody."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill what is still a child of ours: orphans of components, for the components themselves have ended."""
    for _ in range(20):  # killing a parent hands its children to us
        mine = [stat for stat in all_stats() if stat.parent == os.getpid() and stat.state not in "ZX"]
        if not mine:
            break
        for stat in mine:
            if (process := ref_of(stat.pid)) is not None:
                send(process, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
    for _ in reap():
        pass
