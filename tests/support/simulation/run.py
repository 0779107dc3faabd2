"""One life of a world under a seed, checked all along; at its end the faults stop and it must come to rest."""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import select

from polyray.core import faultpoints, ids
from polyray.core.errors import Unavailable
from polyray.jobs import scheduling
from polyray.store.engine import Store
from polyray.store.tables import Workload
from support.invariants import QUIET_SECONDS, check, check_quiet, is_quiet
from support.simulation.chance import Chance
from support.simulation.clients import Clients
from support.simulation.outside import PLATFORM, Outside
from support.simulation.plane import THREADS, Plane
from support.simulation.tasks import NEVER, Killed, Process, Task, Tasks
from support.simulation.trace import Trace
from support.simulation.watch import Watch
from support.simulation.weather import Weather
from support.world import World

#: The whole checker runs after so many steps that changed something; the part that costs little, after each of them.
CHECK_EVERY = 25
#: Where memory is a file system, SQLite's journal costs nothing.
_MEMORY = Path("/dev/shm")
#: Nothing is switched in a transaction: SQLite's one writer would wait for itself.
_INSIDE = "store.commit.before"
#: After these points rows or the core may be otherwise.
_CHANGES = {"store.commit.after", "fabric.grant.after", "fabric.start_slice.after", "fabric.start_driver.after"}
#: Where a process is stopped most harmfully: it has decided, and others decide meanwhile.
_DECIDED = {"store.write.before", "fabric.grant.before", "fabric.start_slice.before", "cloud.launch.before"}
REPLAY = "PYTHONPATH=tests python -m support.simulation --seed {seed} --steps {steps}"


class SimulationFailed(AssertionError):
    """Something that must always hold did not."""


@dataclass(frozen=True)
class Report:
    seed: int
    #: Steps made, those at the end included.
    steps: int
    #: Seconds of the virtual clock.
    seconds: float
    #: The same for the same seed.
    digest: str
    submitted: int
    ended: Mapping[str, int]
    #: Control planes that lived.
    planes: int
    weather: Weather


class Simulation:
    def __init__(self, seed: int, steps: int, directory: Path, weather: Weather | None = None) -> None:
        self.seed, self.limit = seed, steps
        self.rng = random.Random(seed)
        self.weather = weather or Weather.of(self.rng)
        self.world = World(directory / "state", PLATFORM)
        self.watch = Watch(self.world)
        self.clock = self.world.clock
        self.tasks = Tasks(self.clock, lambda task, error: self._fail(error))
        self.clients = Clients(self.tasks, random.Random(self.rng.random()), self.clock.monotonic, self._serving)
        self.outside = Outside(self.world, self.clients, self.rng, self.weather)
        self.network = Process("network")
        self.planes: list[Plane] = []
        self._born = 0
        #: When the next control plane is started (monotonic seconds), for each that was killed.
        self._births: list[float] = [0.0] * self.weather.planes
        self._databases: list[Store] = []
        self._doomed: Plane | None = None
        self.steps = 0
        self.calm = False
        #: Whether something may be otherwise since the last look, and how many such steps the whole checker missed.
        self._changed = False
        self._unchecked = 0
        self._error: BaseException | None = None
        self.trace = Trace(self.clock, self._who, self._fail)

    # The run.

    def run(self) -> Report:
        """Live `steps` steps, and then until everything is at rest.

        Raises:
            SimulationFailed: with the seed, the step, the last lines of the trace, and how to see it again.
        """
        with self._installed():
            try:
                while self.steps < self.limit:
                    self._step()
                self._come_to_rest()
            except Exception as error:
                raise self._told(error) from error
            finally:
                for plane in [*self.planes]:
                    self._kill(plane)
                for process in (self.network, self.clients.process):
                    self.tasks.kill(process)
                self.watch.close()
                for database in (*self._databases, self.world.store):
                    database.close()
        return self._report

    def _step(self) -> None:
        rng = self.rng
        for line in self.outside.pass_outages():
            self._tell(f"-- {line}")
        self._bear()
        if not self.calm and rng.random() < self.weather.events:
            self._event()
        elif ready := self.tasks.ready():
            self._turn(rng.choice(ready))
        else:
            self._wait()
        if self._error is not None:
            raise self._error
        if self._doomed is not None:
            self._kill(self._doomed)
        self._check()

    def _turn(self, task: Task) -> None:
        task.at_point = False
        self.tasks.run(task)
        self._changed = self._changed or task.process is self.network or task.at in _CHANGES
        if task.at_point or task.turn.dead:
            self._count(f"{task.process.name}/{task.name} {'ends' if task.turn.dead else task.at}")

    def _wait(self) -> None:
        """Nothing can run now: let the time pass until something can, and a little more."""
        until = min(self.tasks.next_start(), self.outside.next_end(), *self._births, NEVER)
        assert until < NEVER, "nothing will ever run again"
        late = 0.0 if self.calm else self.rng.choice([0.0, 0.01, 0.5])
        self.clock.advance(max(until - self.clock.monotonic(), 0.0) + late + 1e-6)

    def _event(self) -> None:
        what = self.rng.random()
        plane = self.rng.choice(self.planes) if self.planes else None
        if what < 0.03 and plane and "crashes" in self.weather.kinds:
            self._kill(plane)
        elif told := self.outside.happen():
            self._changed = True
            self._count(f"-- {told}")

    def _come_to_rest(self) -> None:
        self.calm = True
        self._tell("-- all faults end")
        self.outside.heal()
        self._births = [min(at, self.clock.monotonic()) for at in self._births]
        for plane in self.planes:
            plane.process.paused_until = self.clock.monotonic()
        # What hangs goes on, and what is still under way arrives.
        for task in self.tasks.all:
            if task.process is self.network or task.at_point:
                task.due = min(task.due, self.clock.monotonic())
        began = self.clock.monotonic()
        while self.clock.monotonic() < began + QUIET_SECONDS:
            self.outside.quieten()
            self._live(6.0)
            if is_quiet(self.world):
                break
        self._live(12.0)
        check(self.world)
        check_quiet(self.world)
        self._nothing_acknowledged_is_lost()

    def _live(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self._step()

    # Control planes.

    def _serving(self) -> list[Plane]:
        return [plane for plane in self.planes if not plane.process.dead]

    def _bear(self) -> None:
        now = self.clock.monotonic()
        for at in [at for at in self._births if at <= now]:
            self._births.remove(at)
            self._born += 1
            # Connections that a dead process left do not cost a new one their making.
            database = self._databases.pop() if self._databases else Store(self.world.settings.store_url)
            plane = Plane(
                f"plane-{self._born}",
                self.world,
                database,
                self.tasks,
                rng=self.rng,
                fate=self._fate,
                later=self._later,
            )
            self.planes.append(plane)
            plane.start()
            self._count(f"-- {plane.process.name} starts")

    def _kill(self, plane: Plane) -> None:
        self._doomed = None
        plane.kill()
        self._databases.append(plane.database)
        self.planes.remove(plane)
        seconds = 0.0 if self.calm else self.rng.choice([0.1, 3.0, 20.0])
        self._births.append(self.clock.monotonic() + seconds)
        self._count(f"-- {plane.process.name} is killed")

    # Faults at points and on wires.

    def _strike(self, point: str) -> None:
        """Give way at a point, and decide whether its task comes back from it, and how."""
        task = self.tasks.current
        if task is None:
            return
        if task.process.dead:
            raise Killed
        rng, weather = self.rng, self.weather
        if not self.calm and rng.random() < weather.crashes and self._doom(task.process):
            self._tell(f"{task.process.name}/{task.name} dies at {point}")
            raise Killed
        reconciles = task.name.rpartition("-")[0] in THREADS
        if point == _INSIDE and reconciles:
            self.watch.the_leader_writes(task.process.name)
        if point != _INSIDE:
            stall = 0.0
            if not self.calm and rng.random() < weather.stalls:
                stall = rng.choice([0.5, 5.0, 20.0, 40.0])
                self._tell(f"{task.process.name}/{task.name} hangs at {point} for {stall} s")
            if not self.calm and reconciles and point in _DECIDED and rng.random() < weather.pauses:
                self._pause(task.process)
            self.tasks.give_way(point, until=self.clock.monotonic() + stall, at_point=True)
        if not self.calm and rng.random() < weather.fails:
            self._tell(f"{task.process.name}/{task.name} fails at {point}")
            raise Unavailable(f"a fault strikes at {point}")

    def _pause(self, process: Process) -> None:
        """Stop a process where it is, as SIGSTOP does; most often another goes on meanwhile, long enough to lead."""
        now = self.clock.monotonic()
        others = any(plane.process is not process and plane.process.paused_until <= now for plane in self.planes)
        if others or self.rng.random() < 0.2:
            seconds = self.rng.choice([1, 20, 30, 45])
            process.paused_until = now + seconds
            self._tell(f"-- {process.name} is stopped for {seconds} s")

    def _doom(self, process: Process) -> bool:
        for plane in self.planes:
            if plane.process is process and self._doomed is None:
                self._doomed, process.dead = plane, True
                return True
        return False

    def _fate(self) -> str:
        if self.calm or self.rng.random() >= self.weather.late:
            return ""
        return self.rng.choice(["late", "twice"])

    def _later(self, name: str, call: Any) -> None:
        task = self.tasks.spawn(name, self.network, call)
        task.due = self.clock.monotonic() + self.rng.choice([0.05, 1.0, 6.0, 25.0, 60.0])
        self._tell(f"-- {name}")

    # What must hold.

    def _check(self) -> None:
        if self._changed:
            self._changed = False
            self._unchecked += 1
            self.watch.look()
        if self._unchecked >= CHECK_EVERY:
            self._unchecked = 0
            check(self.world)

    def _nothing_acknowledged_is_lost(self) -> None:
        with self.world.store.read() as session:
            there = {row.workload_id: row.state for row in session.scalars(select(Workload))}
        lost = {key: each for key, each in self.clients.acknowledged.items() if each not in there}
        assert not lost, f"I3: these were acknowledged and are not there: {lost}"
        ended: dict[str, int] = {}
        for state in there.values():
            ended[state] = ended.get(state, 0) + 1
        self._ended = ended

    @property
    def _report(self) -> Report:
        return Report(
            seed=self.seed,
            steps=self.steps,
            seconds=self.clock.monotonic(),
            digest=self.trace.digest,
            submitted=len(self.clients.acknowledged),
            ended=self._ended,
            planes=self._born,
            weather=self.weather,
        )

    # The trace.

    def _count(self, line: str) -> None:
        """Count a step, which takes its time. A task that only looks whether there is work makes none."""
        self.steps += 1
        if not self.calm:
            self.clock.advance(self.rng.expovariate(1 / self.weather.tempo))
        self._tell(line)

    def _tell(self, line: str) -> None:
        self.trace.tell(self.steps, line)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def _who(self) -> str:
        task = self.tasks.current
        return task.process.name if task else "hub"

    def _told(self, error: BaseException) -> SimulationFailed:
        where = "".join(traceback.format_exception(error)[-6:])
        again = REPLAY.format(seed=self.seed, steps=self.limit)
        return SimulationFailed(
            f"seed {self.seed}, step {self.steps} ({self.weather}):\n{where}\nThe last steps:\n{self.trace}\n"
            f"{error}\nSee it again: {again}"
        )

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Let the seed decide what the product asks of chance, and hear what it logs."""
        before = structlog.get_config()
        chance = Chance(random.Random(self.rng.random()))
        with pytest.MonkeyPatch.context() as patch, faultpoints.striking(self._strike):
            patch.setattr(ids, "secrets", chance)
            patch.setattr(scheduling, "secrets", chance)
            structlog.configure(processors=[self.trace.hear])
            try:
                yield
            finally:
                structlog.configure(**before)


def simulate(seed: int, steps: int, weather: Weather | None = None) -> Report:
    """Live one world, in a weather that the seed chooses if none is given. The same arguments give the same life.

    Raises:
        SimulationFailed: as `Simulation.run`.
    """
    under = _MEMORY if _MEMORY.is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="polyray-simulation-", dir=under))
    try:
        return Simulation(seed, steps, directory, weather).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
