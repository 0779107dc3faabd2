"""A cloud that lives in memory, bills, and goes wrong in the ways clouds do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from polyray.autoscaler.provider import (
    Instance,
    InstanceState,
    InsufficientCapacity,
    NodeNotFound,
    ProviderQuotaExceeded,
)
from polyray.broker.snapshot import Offering
from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import Unavailable


@dataclass
class FakeInstance:
    shown: Instance
    launched_at: float
    offering: Offering
    joined: bool = False
    terminate_calls: int = 0
    hidden_lists: int = 0


class FakeProvider:
    """Implements `polyray.autoscaler.provider.NodeProvider`.

    A node runs once its offering's `boot_seconds` are over by the clock, and then `on_join(intent_id,
    offering)` is called (let it add a node to the fake core); `on_end(intent_id)` is called at its end.
    What goes wrong is set by attributes: names of offerings in `insufficient` or `over_quota`, intent ids
    or offering names in `never_joins`, `terminate_calls_needed` until a node is gone, `list_lag` calls of
    `list()` that do not show a new node yet, `available=False`, and `launch_times_out`: the node is made,
    but the call raises `Unavailable`.
    """

    def __init__(
        self,
        offerings: tuple[Offering, ...],
        *,
        name: str = "local",
        clock: Clock | None = None,
        on_join: Callable[[str, Offering], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self._name, self._offerings = name, offerings
        self.clock = clock or SystemClock()
        self.on_join, self.on_end = on_join, on_end
        self.insufficient: set[str] = set()
        self.over_quota: set[str] = set()
        self.never_joins: set[str] = set()
        self.terminate_calls_needed = 1
        self.list_lag = 0
        self.available = True
        self.launch_times_out = False
        #: (verb, intent id) of every call that reached the provider.
        self.calls: list[tuple[str, str]] = []
        self._instances: dict[str, FakeInstance] = {}
        self._mutex = threading.RLock()

    @property
    def name(self) -> str:
        return self._name

    def offerings(self) -> tuple[Offering, ...]:
        return self._offerings

    def reprice(self, offering_name: str, usd_micros_per_hour: int) -> None:
        self._offerings = tuple(
            replace(o, usd_micros_per_hour=usd_micros_per_hour) if o.name == offering_name else o
            for o in self._offerings
        )

    def offer(self, offerings: tuple[Offering, ...]) -> None:
        """From now on these can be launched; what runs stays as it is."""
        self._offerings = offerings

    def launch(self, intent_id: str, offering: Offering) -> Instance:
        with self._mutex:
            self._reached("launch", intent_id)
            if intent_id in self._instances:
                return self._instances[intent_id].shown
            living = [i for i in self._instances.values() if i.shown.state is not InstanceState.TERMINATED]
            if offering.name in self.over_quota:
                raise ProviderQuotaExceeded(offering.name)
            same = [i for i in living if i.offering.name == offering.name]
            if offering.name in self.insufficient or len(same) >= offering.max_nodes:
                raise InsufficientCapacity(offering.name)
            instance = Instance(
                instance_id=f"i-{intent_id}",
                intent_id=intent_id,
                offering=offering.name,
                state=InstanceState.PENDING,
                billed_from_ms=self.clock.now_ms(),
                billed_to_ms=None,
            )
            self._instances[intent_id] = FakeInstance(
                instance, self.clock.monotonic(), offering, hidden_lists=self.list_lag
            )
            self.tick()
            if self.launch_times_out:
                raise Unavailable("the provider did not answer in time")
            return self._instances[intent_id].shown

    def terminate(self, intent_id: str) -> Instance:
        with self._mutex:
            self._reached("terminate", intent_id)
            if intent_id not in self._instances:
                raise NodeNotFound(intent_id)
            instance = self._instances[intent_id]
            if instance.shown.state is InstanceState.TERMINATED:
                return instance.shown
            instance.terminate_calls += 1
            if instance.terminate_calls < self.terminate_calls_needed:
                instance.shown = replace(instance.shown, state=InstanceState.TERMINATING)
            else:
                self.end_instance(intent_id)
            return instance.shown

    def list(self) -> tuple[Instance, ...]:
        with self._mutex:
            self._reached("list", "")
            self.tick()
            shown = []
            for instance in self._instances.values():
                if instance.hidden_lists > 0:
                    instance.hidden_lists -= 1
                else:
                    shown.append(instance.shown)
            return tuple(shown)

    # What a test does to the cloud.

    def tick(self) -> None:
        """Let nodes whose boot time is over run and join. Every `list()` does so too."""
        with self._mutex:
            for intent_id, instance in self._instances.items():
                booted = self.clock.monotonic() - instance.launched_at >= instance.offering.boot_seconds
                if instance.shown.state is InstanceState.PENDING and booted:
                    instance.shown = replace(instance.shown, state=InstanceState.RUNNING)
                lost = {intent_id, instance.offering.name} & self.never_joins
                if instance.shown.state is InstanceState.RUNNING and not instance.joined and not lost:
                    instance.joined = True
                    if self.on_join is not None:
                        self.on_join(intent_id, instance.offering)

    def end_instance(self, intent_id: str, detail: str = "") -> None:
        """The machine ends, asked to or not: spot reclaimed, hardware gone."""
        with self._mutex:
            instance = self._instances[intent_id]
            instance.shown = replace(
                instance.shown, state=InstanceState.TERMINATED, billed_to_ms=self.clock.now_ms(), detail=detail
            )
            if instance.joined and self.on_end is not None:
                self.on_end(intent_id)

    def forget(self, intent_id: str) -> None:
        """The provider stops listing an ended machine, as clouds do after an hour."""
        with self._mutex:
            del self._instances[intent_id]

    def make_unknown_instance(self, intent_id: str, offering: Offering) -> None:
        """A machine with our tag that no row knows."""
        with self._mutex:
            self.launch(intent_id, offering)

    @property
    def running(self) -> tuple[str, ...]:
        with self._mutex:
            return tuple(
                i for i, instance in self._instances.items() if instance.shown.state is not InstanceState.TERMINATED
            )

    @property
    def billed(self) -> dict[str, tuple[int | None, int | None]]:
        """What each machine is billed for, as (from, to) in milliseconds since the epoch."""
        with self._mutex:
            return {
                intent_id: (each.shown.billed_from_ms, each.shown.billed_to_ms)
                for intent_id, each in self._instances.items()
            }

    def _reached(self, verb: str, intent_id: str) -> None:
        if not self.available:
            raise Unavailable("the provider does not answer")
        self.calls.append((verb, intent_id))
