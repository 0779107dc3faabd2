"""Where bundles fit: rooms, gangs and best fit, in integers.

A gang of a head and like workers (all that a spec can ask for) is placed whenever it can be placed at
all: the head goes where it costs the workers least. Gangs of unlike bundles are placed largest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyray.broker.snapshot import NodeView, Offering, Placement
from polyray.core.resources import ANY_GPU, CPU, MEMORY, Resources, is_gpu
from polyray.core.spec import CapacityType, Kind

#: Milli-units of one GPU.
DEVICE = 1000

#: What costs nothing more goes first.
CAPACITY_ORDER = {CapacityType.RESERVED: 0, CapacityType.SPOT: 1, CapacityType.ON_DEMAND: 2}


@dataclass(frozen=True)
class Room:
    """What a node has left. `gpu` is the one GPU flavor of the node, `devices` the milli-units left by index."""

    node_id: str
    capacity_type: CapacityType
    free: Resources
    gpu: str | None
    devices: tuple[int, ...]
    ready: bool = True
    #: The waiting workload that alone may use it.
    held_for: str | None = None

    def take(self, bundle: Resources) -> tuple[Room, tuple[tuple[int, int], ...]] | None:
        """Return the room after `bundle` and the devices it took; None if it does not fit."""
        devices = self._devices_for(gpu_of(bundle))
        if devices is None or not bundle.fits(self.free):
            return None
        return self.without(bundle, devices), devices

    def without(self, bundle: Resources, devices: Iterable[tuple[int, int]]) -> Room:
        """Return the room less what `bundle` and its devices take, at least zero."""
        left = list(self.devices)
        for index, share in devices:
            left[index] = max(left[index] - share, 0)
        return replace(self, free=self.free.minus_clamped(bundle), devices=tuple(left))

    def count(self, bundle: Resources) -> int:
        """Return how many of `bundle` fit side by side."""
        amount = gpu_of(bundle)
        counts = [self.free[flavor] // asked for flavor, asked in bundle.items()]
        if 0 < amount < DEVICE:
            counts.append(sum(left // amount for left in self.devices))
        elif amount:
            whole = sum(left == DEVICE for left in self.devices)
            counts.append(whole // (amount // DEVICE) if amount % DEVICE == 0 else 0)
        return min(counts, default=0)

    def _devices_for(self, amount: int) -> tuple[tuple[int, int], ...] | None:
        """Return (index, share) pairs: a fraction within the fullest device that takes it, else whole free devices."""
        if amount == 0:
            return ()
        if amount < DEVICE:
            fitting = [(left, index) for index, left in enumerate(self.devices) if left >= amount]
            return ((min(fitting)[1], amount),) if fitting else None
        wanted, part = divmod(amount, DEVICE)
        whole = [index for index, left in enumerate(self.devices) if left == DEVICE]
        return None if part or len(whole) < wanted else tuple((index, DEVICE) for index in whole[:wanted])


@dataclass(frozen=True)
class Gang:
    """Bundles of one GPU flavor to be placed together, head first."""

    workload_id: str
    bundles: tuple[Resources, ...]
    capacity: frozenset[CapacityType]
    kind: Kind = Kind.JOB

    def allows(self, rank: int, room: Room) -> bool:
        """Return whether a bundle may sit there at all.

        A head whose loss would cost more than its own bundle (of several bundles, of a session, of a
        service) never sits on spot.
        """
        if room.capacity_type not in self.capacity or room.held_for not in {None, self.workload_id}:
            return False
        alone = self.kind is Kind.JOB and len(self.bundles) == 1
        return rank > 0 or alone or room.capacity_type is not CapacityType.SPOT


@dataclass(frozen=True)
class Fit:
    """Some bundles of a gang placed, and what is left."""

    placements: tuple[Placement, ...]
    unplaced: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return not self.unplaced

    @property
    def node_ids(self) -> frozenset[str]:
        return frozenset(placement.node_id for placement in self.placements)


def gpu_of(bundle: Resources) -> int:
    return sum(amount for flavor, amount in bundle.items() if is_gpu(flavor))


def gpu_flavor(resources: Resources) -> str | None:
    return next((flavor for flavor in resources if is_gpu(flavor)), None)


def room_of(node: NodeView) -> Room:
    """Return what a node has left now."""
    free = node.resources.minus_clamped(node.used)
    return Room(node.node_id, node.capacity_type, free, gpu_flavor(node.resources), node.free_devices, node.ready)


def empty_room(node_id: str, capacity_type: CapacityType, resources: Resources, *, ready: bool = True) -> Room:
    """Return a node with nothing on it."""
    return Room(node_id, capacity_type, resources, gpu_flavor(resources), devices_of(resources), ready)


def room_of_offering(offering: Offering, node_id: str) -> Room:
    return empty_room(node_id, offering.capacity_type, offering.resources, ready=False)


def devices_of(resources: Resources) -> tuple[int, ...]:
    return (DEVICE,) * (gpu_of(resources) // DEVICE)


def resolve(bundles: Sequence[Resources], flavors: Iterable[str]) -> tuple[tuple[Resources, ...], ...]:
    """Return the gang once for every GPU flavor that could stand for `gpu`; a gang is never of mixed flavors."""
    if not any(ANY_GPU in bundle for bundle in bundles):
        return (tuple(bundles),)
    found = sorted(set(flavors))
    return tuple(tuple(_as_flavor(bundle, flavor) for bundle in bundles) for flavor in found) or (tuple(bundles),)


def _as_flavor(bundle: Resources, flavor: str) -> Resources:
    amounts = bundle.as_dict()
    asked = amounts.pop(ANY_GPU, 0)
    return Resources({**amounts, flavor: amounts.get(flavor, 0) + asked})


def place(gang: Gang, rooms: Mapping[str, Room], ranks: Iterable[int] | None = None) -> Fit:
    """Place `ranks` (all by default) of a gang, as many as fit: reserved first, then by best fit."""
    wanted = sorted(range(len(gang.bundles)) if ranks is None else ranks)
    left = dict(rooms)
    placements: list[Placement] = []
    unplaced: list[int] = []
    groups = _groups(gang, [rank for rank in wanted if rank > 0])
    if wanted[:1] == [0]:
        room = _head_room(gang, left, groups)
        if room is None:
            unplaced.append(0)
        else:
            _put(gang, 0, room.node_id, left, placements)
    for ranks_alike in groups:
        placed = _fill(gang, ranks_alike, left, placements)
        unplaced += ranks_alike[placed:]
    return Fit(tuple(sorted(placements, key=lambda placement: placement.rank)), tuple(sorted(unplaced)))


def deduct(rooms: dict[str, Room], placements: Iterable[Placement]) -> None:
    """Take placements out of the rooms they name."""
    for placement in placements:
        room = rooms[placement.node_id]
        rooms[placement.node_id] = room.without(placement.resources, placement.devices)


def _groups(gang: Gang, ranks: list[int]) -> list[list[int]]:
    """Return ranks of like bundles, the largest bundles first."""
    alike: dict[Resources, list[int]] = {}
    for rank in ranks:
        alike.setdefault(gang.bundles[rank], []).append(rank)
    return [alike[bundle] for bundle in sorted(alike, key=_size, reverse=True)]


def _size(bundle: Resources) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    return gpu_of(bundle), bundle[CPU], bundle[MEMORY], tuple(bundle.items())


def _head_room(gang: Gang, rooms: Mapping[str, Room], groups: list[list[int]]) -> Room | None:
    """Return the preferred room among those that leave room for the most workers."""
    head = gang.bundles[0]
    candidates = [room for room in rooms.values() if gang.allows(0, room) and room.count(head)]
    if not candidates:
        return None
    if not groups:
        return min(candidates, key=lambda room: _preference(gang, room, head, 1))
    worker, wanted = gang.bundles[groups[0][0]], len(groups[0])
    counts = {room.node_id: room.count(worker) for room in rooms.values() if gang.allows(groups[0][0], room)}
    all_workers = sum(counts.values())

    def workers_left(room: Room) -> int:
        after = room.take(head)
        assert after is not None
        here = counts.get(room.node_id)
        loss = 0 if here is None else here - after[0].count(worker)
        return min(all_workers - loss, wanted)

    return min(candidates, key=lambda room: (-workers_left(room), _preference(gang, room, head, 1)))


def _fill(gang: Gang, ranks: list[int], rooms: dict[str, Room], placements: list[Placement]) -> int:
    """Place like bundles room by room, the preferred room first, and return how many were placed."""
    bundle = gang.bundles[ranks[0]]
    fitting = [room for room in rooms.values() if gang.allows(ranks[0], room) and room.count(bundle)]
    placed = 0
    for room in sorted(fitting, key=lambda room: _preference(gang, room, bundle, len(ranks))):
        for rank in ranks[placed : placed + room.count(bundle)]:
            _put(gang, rank, room.node_id, rooms, placements)
            placed += 1
        if placed == len(ranks):
            break
    return placed


def _put(gang: Gang, rank: int, node_id: str, rooms: dict[str, Room], placements: list[Placement]) -> None:
    taken = rooms[node_id].take(gang.bundles[rank])
    assert taken is not None, "the room was asked before"
    rooms[node_id], devices = taken
    placements.append(Placement(rank, node_id, gang.bundles[rank], devices))


def _preference(gang: Gang, room: Room, bundle: Resources, wanted: int) -> tuple[object, ...]:
    """Order rooms: what is there, what is cheap, what is ours; GPUs for those who use them; few nodes; a tight fit."""
    left = room.free.minus_clamped(bundle)
    needless_gpu = room.gpu is not None and gpu_of(bundle) == 0
    return (
        not room.ready,
        CAPACITY_ORDER[room.capacity_type],
        room.held_for != gang.workload_id,
        needless_gpu,
        -min(room.count(bundle), wanted),
        gpu_of(left),
        left[CPU],
        left[MEMORY],
        room.node_id,
    )
