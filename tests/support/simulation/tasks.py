"""Tasks that take turns where the hub says: each is a greenlet, and nothing else runs meanwhile.

A task gives way at every fault point that it passes outside a write transaction (SQLite's one writer would wait
for itself), and when it waits. What looks like threads to the product (`Threads`) are such tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from greenlet import GreenletExit, getcurrent, greenlet

from polyray.core.clock import VirtualClock

NEVER = float("inf")


class Killed(GreenletExit):
    """The process of this task is no more: nothing catches this, and no point is passed any more."""


@dataclass
class Process:
    """What lives and dies together."""

    name: str
    dead: bool = False
    #: Until then (monotonic seconds) none of its tasks runs, as after SIGSTOP.
    paused_until: float = float("-inf")


@dataclass(eq=False)
class Task:
    name: str
    process: Process
    #: Runs no earlier than then (monotonic seconds).
    due: float
    turn: greenlet = field(repr=False)
    #: Where it gave way last.
    at: str = "start"
    #: Whether it gave way at a point, and not to wait.
    at_point: bool = False

    @property
    def starts_at(self) -> float:
        return max(self.due, self.process.paused_until)


class Tasks:
    """All tasks, and the hub's hand on them. `failed(task, error)` is told what nothing caught."""

    def __init__(self, clock: VirtualClock, failed: Callable[[Task, BaseException], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._hub = getcurrent()
        self._tasks: dict[greenlet, Task] = {}
        #: In the order of their making.
        self.all: list[Task] = []

    @property
    def current(self) -> Task | None:
        """Return the task that runs; None for the hub."""
        return self._tasks.get(getcurrent())

    def spawn(self, name: str, process: Process, run: Callable[[], object]) -> Task:
        def body() -> None:
            try:
                run()
            except Killed:
                pass
            except BaseException as error:
                self._failed(task, error)

        task = Task(name, process, self._clock.monotonic(), greenlet(body, parent=self._hub))
        self._tasks[task.turn] = task
        self.all.append(task)
        return task

    def ready(self) -> list[Task]:
        now = self._clock.monotonic()
        return [task for task in self.all if task.due <= now and task.process.paused_until <= now]

    def next_start(self) -> float:
        """Return when the next task may run (monotonic seconds); `NEVER` if none will."""
        return min((task.starts_at for task in self.all), default=NEVER)

    def run(self, task: Task) -> None:
        """Let a task run until it gives way or ends."""
        task.due = self._clock.monotonic()
        task.turn.switch()
        self._bury(task)

    def give_way(self, at: str, *, until: float, at_point: bool = False) -> None:
        """Called by the running task: go on no earlier than `until` (monotonic seconds)."""
        task = self.current
        assert task is not None, "only a task gives way"
        task.at, task.due, task.at_point = at, until, at_point
        self._hub.switch()

    def kill(self, process: Process) -> None:
        """End all tasks of a process where they are, as kill -9 does."""
        process.dead = True
        for task in [task for task in self.all if task.process is process]:
            task.turn.throw(Killed)
            assert task.turn.dead, f"{task.name} outlived its process"
            self._bury(task)

    def _bury(self, task: Task) -> None:
        if task.turn.dead and task.turn in self._tasks:
            del self._tasks[task.turn]
            self.all.remove(task)


class Threads:
    """Stands in for the module `threading` where a process of the simulation is put together."""

    def __init__(self, tasks: Tasks, process: Process, clock: VirtualClock) -> None:
        self._tasks, self._process, self._clock = tasks, process, clock

    def Thread(self, *, target: Callable[[], object], name: str, daemon: bool) -> _Thread:
        return _Thread(lambda: self._tasks.spawn(name, self._process, target))

    def Lock(self) -> _Lock:
        return _Lock(self._tasks)

    def Event(self) -> _Waiters:
        return _Waiters(self._tasks, self._clock)

    #: Nothing else runs while a task holds one, since it gives way in `wait` alone.
    Condition = Event


class _Thread:
    def __init__(self, spawn: Callable[[], Task]) -> None:
        self._spawn = spawn

    def start(self) -> None:
        self._spawn()

    def is_alive(self) -> bool:
        return False


class _Lock:
    """A lock that is held across points; whoever waits for it gives way."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._locked = False
        self._waiting: list[Task] = []

    def __enter__(self) -> None:
        while self._locked:
            task = self._tasks.current
            assert task is not None, "the hub never waits"
            self._waiting.append(task)
            self._tasks.give_way("lock", until=NEVER)
        self._locked = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._locked = False
        for task in self._waiting:
            task.due = float("-inf")
        self._waiting.clear()


class _Waiters:
    """An event, or a condition with its lock. Whoever waits is counted from the longest on."""

    def __init__(self, tasks: Tasks, clock: VirtualClock) -> None:
        self._tasks, self._clock = tasks, clock
        self._set = False
        self._waiting: list[Task] = []

    def __enter__(self) -> None:
        """Nothing else runs meanwhile."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Nothing else ran meanwhile."""

    def wait(self, timeout: float) -> bool:
        if not self._set:
            task = self._tasks.current
            assert task is not None, "the hub never waits"
            self._waiting.append(task)
            self._tasks.give_way("wait", until=self._clock.monotonic() + timeout)
            if task in self._waiting:
                self._waiting.remove(task)
        return self._set

    def notify(self) -> None:
        if self._waiting:
            self._waiting.pop(0).due = float("-inf")

    def notify_all(self) -> None:
        while self._waiting:
            self.notify()

    def set(self) -> None:
        self._set = True
        self.notify_all()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set
