"""People and programs that use the API: they ask again until they are answered, with the same idempotency key."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import unwrap
from typing import Any

from fastapi.routing import APIRoute

from polyray.api.routes.workloads import KillWorker, workload_router
from polyray.core.errors import Code, PolyrayError, Unavailable
from polyray.core.platform_file import PlatformFile
from polyray.core.spec import Kind
from polyray.identity.tokens import Principal
from support.simulation.plane import Plane
from support.simulation.tasks import Process, Tasks

#: Kind -> verb -> the route's function, called as the API's threads call it.
ROUTES: dict[str, dict[str, Callable[..., Any]]] = {
    kind.value: {
        route.name: unwrap(route.endpoint) for route in workload_router(kind).routes if isinstance(route, APIRoute)
    }
    for kind in Kind
}
MOST_TRIES = 60


@dataclass
class _Call:
    """A request that some control plane works on, or died over."""

    answer: Any = None
    refused: PolyrayError | None = None
    done: bool = False

    def make(self, work: Callable[[], Any]) -> None:
        try:
            self.answer = work()
        except PolyrayError as error:
            self.refused = error
        self.done = True


@dataclass
class Clients:
    tasks: Tasks
    rng: random.Random
    now: Callable[[], float]
    #: Those whose process lives.
    planes: Callable[[], list[Plane]]
    process: Process = field(default_factory=lambda: Process("clients"))
    #: Idempotency key -> the id that was answered: what may never be lost.
    acknowledged: dict[str, str] = field(default_factory=dict)
    refused: int = 0
    #: Ids of workloads whose stop was acknowledged.
    stopped: set[str] = field(default_factory=set)

    def submit(self, key: str, tenant: str, content: dict[str, Any]) -> None:
        kind = content["kind"]

        def work(plane: Plane) -> str:
            answer = ROUTES[kind]["submit"](plane.services, _caller(tenant), content, key, False)
            return str(json.loads(answer.body)["id"])

        def answered(workload_id: str) -> None:
            first = self.acknowledged.setdefault(key, workload_id)
            assert first == workload_id, f"I3: {key} was answered {first}, and then {workload_id}"

        self._ask(f"submit {key}", work, answered)

    def stop(self, kind: str, tenant: str, workload_id: str) -> None:
        self._ask(
            f"stop {workload_id}",
            lambda plane: ROUTES[kind]["stop"](plane.services, _caller(tenant), workload_id),
            lambda _: self.stopped.add(workload_id),
        )

    def kill_worker(self, tenant: str, workload_id: str, rank: int) -> None:
        self._ask(
            f"kill {workload_id} {rank}",
            lambda plane: ROUTES["job"]["kill_worker"](
                plane.services, _caller(tenant), workload_id, KillWorker(rank=rank)
            ),
            lambda _: None,
            tries=2,
        )

    def set_budget(self, tenant: str, definition: PlatformFile) -> None:
        self._ask(
            f"apply the platform for {tenant}", lambda plane: plane.services.apply_platform(definition), lambda _: None
        )

    def _ask(
        self, name: str, work: Callable[[Plane], Any], answered: Callable[[Any], None], tries: int = MOST_TRIES
    ) -> None:
        """Ask one control plane or the other, until one answers. Another try may begin while the last still runs."""

        def client() -> None:
            for _ in range(tries):
                if planes := self.planes():
                    plane, call = self.rng.choice(planes), _Call()
                    self.tasks.spawn(f"api {name}", plane.process, partial(call.make, partial(work, plane)))
                    patience = self.now() + self.rng.choice([0.3, 5.0, 30.0])
                    while not call.done and self.now() < patience:
                        self.tasks.give_way("waits for an answer", until=self.now() + 0.2)
                    if call.done and call.refused is None:
                        answered(call.answer)
                        return
                    if call.done and call.refused is not None and not isinstance(call.refused, Unavailable):
                        assert call.refused.code is not Code.INTERNAL, call.refused
                        self.refused += 1
                        return
                self.tasks.give_way("waits to ask again", until=self.now() + self.rng.uniform(0.1, 3.0))

        self.tasks.spawn(f"client {name}", self.process, client)


def _caller(tenant: str) -> Principal:
    return Principal(subject="ada", tenant=tenant, role="member", sid="sid-000000000001")
