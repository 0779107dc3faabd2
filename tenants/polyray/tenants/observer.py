"""What the core shows, looked at once for everybody.

One thread asks the fabric every half second, more seldom while there is nothing in the core; reconcilers read
the latest view and are woken when something they care about changed. A view that is too old is no view: nothing
is decided on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import structlog

from polyray.core.clock import Clock
from polyray.core.errors import Unavailable
from polyray.core.faultpoints import outside
from polyray.tenants.slices import Fabric, FabricNode, GangStatus, SliceStatus

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 0.5
#: While the core holds no gang.
IDLE_INTERVAL_SECONDS = 2.0
#: Older than this, a view is not decided on.
STALE_SECONDS = 10.0


#: What can be told of one cluster; equal if nothing that matters has changed.
Look = frozenset[tuple[object, ...]]
NOTHING: Look = frozenset()


@dataclass(frozen=True)
class View:
    """The core at one moment (monotonic seconds)."""

    at: float
    nodes: Mapping[str, FabricNode] = field(default_factory=dict)
    gangs: Mapping[str, GangStatus] = field(default_factory=dict)
    slices: Mapping[str, SliceStatus] = field(default_factory=dict)

    @cached_property
    def looks(self) -> Mapping[str, Look]:
        """How each cluster looks: its gang, its slices and whether their nodes are alive; memory use aside."""
        found: dict[str, set[tuple[object, ...]]] = {}
        for gang in self.gangs.values():
            found.setdefault(gang.cluster_id, set()).add((gang.state,))
        for status in self.slices.values():
            node = self.nodes.get(status.node_id)
            alive = node is not None and node.alive
            fact = (status.lease_id, status.generation, status.state, status.driver, alive)
            found.setdefault(status.cluster_id, set()).add(fact)
        return {cluster_id: frozenset(facts) for cluster_id, facts in found.items()}

    def look(self, cluster_id: str | None) -> Look:
        return NOTHING if cluster_id is None else self.looks.get(cluster_id, NOTHING)


class Observer:
    """Holds the latest view. `on_change(cluster_id)` is called for each cluster that looks different."""

    def __init__(self, fabric: Fabric, clock: Clock, on_change: Callable[[str], None]) -> None:
        self._fabric = fabric
        self._clock = clock
        self._on_change = on_change
        self._view: View | None = None
        self._stopping = False
        self._hurried = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._hurried.set()

    def hurry(self) -> None:
        """Look again at once: the core was asked for something."""
        self._hurried.set()

    def view(self) -> View:
        """Return the latest view.

        Raises:
            Unavailable: if the core has not answered for `STALE_SECONDS`.
        """
        view = self._view
        if view is None or self._clock.monotonic() - view.at > STALE_SECONDS:
            raise Unavailable("the core has not answered lately", hint="see 'polyray status'")
        return view

    def latest(self) -> View | None:
        """Return the latest view; None if it is too old to be decided on."""
        try:
            return self.view()
        except Unavailable:
            return None

    def refresh(self) -> None:
        """Look once, and tell what changed."""
        at = self._clock.monotonic()
        with outside("fabric.view"):
            new = View(
                at=at,
                nodes={node.node_id: node for node in self._fabric.nodes()},
                gangs={gang.cluster_id: gang for gang in self._fabric.gangs()},
                slices={status.lease_id: status for status in self._fabric.slices()},
            )
        old, self._view = self._view, new
        for cluster_id in sorted(changed_clusters(old, new)):
            self._on_change(cluster_id)

    def _run(self) -> None:
        answered = True
        while not self._stopping:
            try:
                self.refresh()
                answered = True
            except Exception as error:
                if answered:
                    log.warning("core_does_not_answer", error=str(error))
                answered = False
            idle = self._view is not None and not self._view.gangs
            self._hurried.wait(IDLE_INTERVAL_SECONDS if idle else INTERVAL_SECONDS)
            self._hurried.clear()


def changed_clusters(old: View | None, new: View) -> set[str]:
    """Return the clusters that look different in two views."""
    before = {} if old is None else old.looks
    return {
        cluster_id
        for cluster_id in {*before, *new.looks}
        if before.get(cluster_id, NOTHING) != new.looks.get(cluster_id, NOTHING)
    }
