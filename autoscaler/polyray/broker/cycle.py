"""The books of one planning cycle: what is free, held, pledged, launched and decided so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from polyray.broker import explanations
from polyray.broker.burst import Market, Purchase, shop
from polyray.broker.fit import Fit, Gang, Room, deduct, devices_of, gpu_flavor, place, room_of, room_of_offering
from polyray.broker.snapshot import Grant, Launch, NodeView, Placement, Refusal, Snapshot, Waiting
from polyray.core.explain import Explanation
from polyray.core.resources import CPU, MEMORY, Resources, total
from polyray.core.spec import CapacityType, Kind

#: Requests that are alike in all that decides where they fit; the bundles by number.
GangKey = tuple[int, frozenset[CapacityType], Kind]


class Cycle:
    """Rooms only shrink within a cycle, so what did not fit once is not tried again for a like gang."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.tenants = {tenant.tenant: tenant for tenant in snapshot.tenants}
        self.nodes = {node.node_id: node for node in sorted(snapshot.nodes, key=lambda node: node.node_id)}
        self.offerings = tuple(sorted(snapshot.offerings, key=lambda offering: offering.name))
        self.gpu_flavors = {
            flavor
            for resources in [
                *(node.resources for node in snapshot.nodes),
                *(each.resources for each in self.offerings),
            ]
            if (flavor := gpu_flavor(resources)) is not None
        }
        queued = {waiting.workload_id for waiting in snapshot.queue}
        self._owners = {node.launched_for for node in snapshot.nodes} & queued
        #: What may still be given out: nodes less leases, grants and holds.
        self.rooms = {
            node_id: replace(room_of(node), held_for=node.launched_for if node.launched_for in queued else None)
            for node_id, node in self.nodes.items()
        }
        #: The same without holds: what there is, whoever is first.
        self.without_holds = {node_id: replace(room, held_for=None) for node_id, room in self.rooms.items()}
        self.used = defaultdict(Resources, {name: tenant.used for name, tenant in self.tenants.items()})
        #: Quota that an earlier workload waits to use, and the first such workload.
        self.pledged: dict[str, Resources] = defaultdict(Resources)
        self.pledged_for: dict[str, str] = {}
        self.quota_blocked: set[str] = set()
        #: Micro-dollars of this cycle's launches per tenant.
        self.committed: Counter[str] = Counter()
        #: Tenants of which a workload has a place held on what others still use.
        self.reserving: set[str] = set()
        self._reserved: list[Placement] = []
        #: Nodes that somebody is going to use.
        self.kept: set[str] = set()
        self.grants: list[Grant] = []
        self.launches: list[Launch] = []
        self.refusals: list[Refusal] = []
        self.waiting: list[tuple[Waiting, Explanation]] = []
        #: Rises with every decision that the next one may depend on.
        self.version = 0
        self.changes_ms: int | None = None
        self._hopeless: set[tuple[str, object]] = set()
        self._lacking: dict[GangKey, Resources] = {}
        #: Until the next grant.
        self._fits_but_for_holds: dict[GangKey, bool] = {}
        #: As of a version.
        self._market: tuple[int, Market] | None = None
        self._bundles_by_id: dict[int, tuple[int, tuple[Resources, ...]]] = {}
        self._bundles: dict[tuple[Resources, ...], int] = {}

    def number(self, bundles: tuple[Resources, ...]) -> int:
        """Return one number for bundles that are equal. Each object is hashed once: a gang's hash costs."""
        known = self._bundles_by_id.get(id(bundles))
        if known is None:
            known = self._bundles.setdefault(bundles, len(self._bundles)), bundles
            self._bundles_by_id[id(bundles)] = known
        return known[0]

    def changes(self, at_ms: int) -> None:
        """Note that time alone may change a decision at `at_ms`."""
        if at_ms > self.snapshot.now_ms:
            self.changes_ms = at_ms if self.changes_ms is None else min(self.changes_ms, at_ms)

    def fit_now(self, gang: Gang) -> Fit | None:
        """Return where a gang fits whole on ready nodes."""
        return self._fit("now", gang, lambda: {node_id: room for node_id, room in self.rooms.items() if room.ready})

    def fit_soon(self, gang: Gang) -> Fit | None:
        """Return where it fits whole once the nodes on their way are there."""
        return self._fit("soon", gang, lambda: self.rooms)

    def fits_but_for_holds(self, gang: Gang) -> bool:
        key = self._key(gang)
        if key not in self._fits_but_for_holds:
            ready = {node_id: room for node_id, room in self.without_holds.items() if room.ready}
            self._fits_but_for_holds[key] = place(gang, ready).whole
        return self._fits_but_for_holds[key]

    def shop(self, gangs: tuple[Gang, ...]) -> Purchase | None:
        keys = [("shop", self._key(gang)) for gang in gangs]
        if all(key in self._hopeless for key in keys):
            return None
        purchase = shop(gangs, self.rooms, self.market())
        if purchase is None:
            self._hopeless.update(key for key, gang in zip(keys, gangs, strict=True) if not self._has_own(gang))
        return purchase

    def market(self) -> Market:
        if self._market is None or self._market[0] != self.version:
            self._market = self.version, self._new_market()
        return self._market[1]

    def _new_market(self) -> Market:
        taken = Counter(node.offering for node in self.nodes.values())
        taken.update(dict(self.snapshot.leaving))
        taken.update(launch.offering.name for launch in self.launches)
        cooling = {name: until for name, until in self.snapshot.cooling if until > self.snapshot.now_ms}
        cloud = tuple(each for each in self.offerings if each.capacity_type is not CapacityType.RESERVED)
        return Market(cloud, {each.name: each.max_nodes - taken[each.name] for each in cloud}, cooling)

    def grant(self, waiting: Waiting, grant: Grant) -> None:
        self.version += 1
        self.grants.append(grant)
        asked = total(placement.resources for placement in grant.placements)
        self.used[waiting.tenant] = self.used[waiting.tenant] + asked
        deduct(self.rooms, grant.placements)
        deduct(self.without_holds, grant.placements)
        self._fits_but_for_holds.clear()
        self.kept.update(placement.node_id for placement in grant.placements)
        for node_id, room in self.rooms.items():
            if room.held_for == waiting.workload_id:
                self.rooms[node_id] = replace(room, held_for=None)
                self._hopeless.clear()

    def hold(self, waiting: Waiting, gang: Gang, fit: Fit, *, keep: bool = True) -> None:
        """Keep later workloads off what `fit` is going to use, in rooms and in quota."""
        deduct(self.rooms, fit.placements)
        self.pledge(waiting, total(gang.bundles))
        if keep:
            self.kept.update(fit.node_ids)

    def reserve(self, waiting: Waiting, gang: Gang, fit: Fit) -> None:
        """Hold a place on what others still use; each tenant's first that lacks capacity has one."""
        self.reserving.add(waiting.tenant)
        self._reserved += fit.placements
        self.hold(waiting, gang, fit, keep=False)

    def pledge(self, waiting: Waiting, asked: Resources) -> None:
        self.version += 1
        self.pledged[waiting.tenant] = self.pledged[waiting.tenant] + asked
        self.pledged_for.setdefault(waiting.tenant, waiting.workload_id)

    def launch(self, waiting: Waiting, launches: Iterable[Launch], estimate: int) -> None:
        self.version += 1
        self.launches += launches
        self.committed[waiting.tenant] += estimate

    def wait(self, waiting: Waiting, explanation: Explanation) -> None:
        self.waiting.append((waiting, explanation))

    def arriving(self, fit: Fit) -> list[NodeView]:
        return [node for node_id, node in self.nodes.items() if node_id in fit.node_ids and not node.ready]

    def lacking(self, gang: Gang, *, burst_ms: int | None = None) -> Explanation:
        """Return what a gang is short of, and why no offering helps."""
        key = self._key(gang)
        if key not in self._lacking:
            unplaced = place(gang, self.rooms).unplaced
            self._lacking[key] = total(gang.bundles[rank] for rank in unplaced)
        market = self.market()
        cloud = {each.name: reason for each in market.offerings if (reason := market.closed_because(gang, each))}
        return explanations.waiting_for_capacity(self._lacking[key], cloud=cloud, burst_ms=burst_ms)

    def rooms_after_jobs(self, gang: Gang) -> list[tuple[str, Room]]:
        """Return what nodes would have if all jobs ended, less what is reserved of it, the least used first."""

        def use(node: NodeView) -> tuple[object, ...]:
            gpus = sum(amount for flavor, amount in node.used.items() if flavor not in {CPU, MEMORY})
            return not node.ready, gpus, node.used[CPU], node.used[MEMORY], node.node_id

        rooms = []
        for node in sorted(self.nodes.values(), key=use):
            held_for = self.rooms[node.node_id].held_for
            if held_for not in {None, gang.workload_id}:
                continue
            devices = node.lasting_free_devices or devices_of(node.resources)
            free = node.resources.minus_clamped(node.lasting)
            # Arriving nodes count as ready here: what matters is which will be free, not which is up.
            rooms.append((node.node_id, replace(room_of(node), free=free, devices=devices, ready=True)))
        return self._less_reserved(rooms)

    def _less_reserved(self, rooms: list[tuple[str, Room]]) -> list[tuple[str, Room]]:
        if not self._reserved:
            return rooms
        left = dict(rooms)
        deduct(left, [placement for placement in self._reserved if placement.node_id in left])
        return [(node_id, left[node_id]) for node_id, _ in rooms]

    def rooms_to_buy(self, gang: Gang) -> dict[str, Room]:
        """Return rooms for what may still be launched, offerings that cool down included."""
        market = self.market()
        rooms = {}
        for offering in market.offerings:
            for number in range(min(market.left[offering.name], len(gang.bundles))):
                rooms[f"{offering.name}#{number}"] = room_of_offering(offering, f"{offering.name}#{number}")
        return rooms

    def _fit(self, when: str, gang: Gang, rooms: Callable[[], Mapping[str, Room]]) -> Fit | None:
        key = (when, self._key(gang))
        if key in self._hopeless and not self._has_own(gang):
            return None
        fit = place(gang, rooms())
        if fit.whole:
            return fit
        if not self._has_own(gang):
            self._hopeless.add(key)
        return None

    def owns(self, workload_id: str) -> bool:
        """Return whether a node was launched for it."""
        return workload_id in self._owners

    def _has_own(self, gang: Gang) -> bool:
        return self.owns(gang.workload_id)

    def _key(self, gang: Gang) -> GangKey:
        return self.number(gang.bundles), gang.capacity, gang.kind
