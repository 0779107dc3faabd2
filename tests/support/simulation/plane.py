"""One control plane as its process runs it: the real loops, observer, leadership and API, as tasks."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from polyray.api.deps import Endpoints, Services
from polyray.autoscaler import sightings
from polyray.control import leadership
from polyray.control.leadership import KEY, Leadership
from polyray.core import reconcile
from polyray.core.layout import Layout
from polyray.core.reconcile import Loop
from polyray.jobs.refusals import Refusals
from polyray.jobs.workers import kill_worker
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from polyray.store.tables import Cluster
from polyray.tenants import observer
from polyray.tenants.definitions import apply_definitions
from polyray.tenants.observer import Observer
from support.simulation.tasks import Process, Tasks, Threads
from support.simulation.wire import CLOUD, FABRIC, GATEWAY, Fate, Later, Wire
from support.world import World, reconcilers_of

#: As the composition root has them.
THREADS = {"cluster": 4, "workload": 4, "node": 2, "routes": 1, "broker": 1}
RESYNC_SECONDS = 10.0


class Plane:
    """A control plane on a world's outside, with a memory of its own; it acts while it leads."""

    def __init__(
        self,
        name: str,
        world: World,
        database: Store,
        tasks: Tasks,
        *,
        rng: random.Random,
        fate: Fate,
        later: Later,
    ) -> None:
        self.process = Process(name)
        self._tasks = tasks
        self.database = database
        fabric = cast(Any, Wire(world.fabric, FABRIC, fate, later))
        cloud = cast(Any, Wire(world.cloud, CLOUD, fate, later))
        threads = Threads(tasks, self.process, world.clock)
        with pytest.MonkeyPatch.context() as patch:
            for module in (reconcile, observer, leadership, sightings):
                patch.setattr(module, "threading", threads)
            self.leadership = Leadership(self.database, world.clock)
            # All planes share one pid, but each is as on a machine of its own.
            self.leadership._owner = name
            self.observer = Observer(fabric, world.clock, self._cluster_changed)
            reconcilers = reconcilers_of(
                store=FencedStore(self.database, KEY, self.leadership.epoch),
                fabric=fabric,
                cloud=cloud,
                gateway=cast(Any, Wire(world.gateway, GATEWAY, fate, later)),
                observer=self.observer,
                clock=world.clock,
                settings=world.settings,
                platform=lambda: world.platform,
                probe=world.probe,
                wake=self.wake,
            )
            self.loops = {
                each.kind: Loop(
                    each,
                    threads=THREADS[each.kind],
                    clock=world.clock,
                    resync_seconds=RESYNC_SECONDS,
                    may_run=self.leadership.held,
                )
                for each in reconcilers
            }
        for loop in self.loops.values():
            loop._queue.rng = random.Random(rng.random())
        refusals = Refusals()
        self.services = Services(
            store=self.database,
            clock=world.clock,
            layout=Layout(world.settings.store_root),
            settings=world.settings,
            tokens=cast(Any, None),
            wake=self.wake,
            offerings=cloud.offerings,
            feasible=lambda session, tenant, spec: refusals.of(session, tenant, spec, world.cloud.offerings()),
            kill_worker=lambda workload_id, rank: kill_worker(self.database, fabric, workload_id, rank),
            apply_platform=lambda given: apply_definitions(self.database, given, now_ms=world.clock.now_ms()),
            endpoints=lambda: Endpoints("http://127.0.0.1:8470", "http://127.0.0.1:8471"),
            audit=cast(Any, None),
            probes={},
            grade=("process", ""),
        )

    def start(self) -> None:
        self.leadership.start()
        self.observer.start()
        for loop in self.loops.values():
            loop.start()

    def wake(self, kind: str, key: str) -> None:
        self.loops[kind].wake(key)

    def kill(self) -> None:
        self._tasks.kill(self.process)

    def _cluster_changed(self, cluster_id: str) -> None:
        self.wake("cluster", cluster_id)
        with self.database.read() as session:
            cluster = session.get(Cluster, cluster_id)
        if cluster is not None:
            self.wake("workload", cluster.workload_id)
