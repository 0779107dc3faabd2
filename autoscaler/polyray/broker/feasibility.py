"""Whether a request could ever run, on the whole fleet with nothing else on it; and what could instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyray.broker import quota
from polyray.broker.fit import DEVICE, Gang, Room, empty_room, gpu_flavor, gpu_of, place, resolve
from polyray.broker.snapshot import NodeView, Offering, TenantView
from polyray.core.explain import Explanation
from polyray.core.resources import CPU, MEMORY, Resources, format_amount, is_gpu, total
from polyray.core.spec import CapacityType, Kind


@dataclass(frozen=True)
class _Miss:
    """Why one reading of the request cannot be met; a higher `stage` came nearer to it."""

    stage: int
    reason: str
    cause: str
    facts: dict[str, object]
    #: Capacity types that there are, where none of those asked for is.
    capacity: tuple[str, ...] = ()


def feasible(
    bundles: Sequence[Resources],
    capacity: Iterable[CapacityType],
    tenant: TenantView,
    nodes: Iterable[NodeView],
    offerings: Iterable[Offering],
    *,
    kind: Kind = Kind.JOB,
) -> Explanation | None:
    """Return why a gang (head first) can never run, with the nearest one that can; None if it can.

    Neither load, cooling offerings nor a budget matter here, since they pass.
    """
    rooms = fleet(nodes, offerings, len(bundles))
    flavors = {room.gpu for room in rooms if room.gpu is not None}
    gangs = [Gang("", resolved, frozenset(capacity), kind) for resolved in resolve(bundles, flavors)]
    misses = []
    for gang in gangs:
        miss = _miss(gang, tenant, rooms)
        if miss is None:
            return None
        misses.append((miss, gang))
    miss, gang = max(misses, key=lambda pair: pair[0].stage)
    nearest = {"capacity": list(miss.capacity)} if miss.capacity else _nearest(gang, tenant, rooms)
    asked = "ask for " + ", ".join(f"{name}: {_told(value)}" for name, value in nearest.items()) if nearest else ""
    otherwise = "an operator can raise the quota" if miss.reason == "quota" else "an operator can add machines"
    unblocks = f"{asked}; or {otherwise}" if asked else otherwise
    return Explanation("infeasible", miss.cause, unblocks, {"reason": miss.reason, "nearest": nearest, **miss.facts})


def fleet(nodes: Iterable[NodeView], offerings: Iterable[Offering], most: int) -> tuple[Room, ...]:
    """Return empty rooms for all that could be there at once, at most `most` of a kind.

    There are two cases: what an offering describes may be there as often as it allows; a node that no
    offering describes (any more) is there once.
    """
    offered = {offering.name: offering for offering in offerings}
    living = dict.fromkeys(offered, 0)
    rooms = []
    for node in sorted(nodes, key=lambda node: node.node_id):
        offering = offered.get(node.offering)
        if offering is not None and offering.resources == node.resources:
            living[node.offering] += 1
        else:
            rooms.append(empty_room(node.node_id, node.capacity_type, node.resources))
    for name in sorted(offered):
        offering = offered[name]
        count = min(max(offering.max_nodes, living[name]), most)
        rooms += [empty_room(f"{name}#{n}", offering.capacity_type, offering.resources) for n in range(count)]
    return tuple(rooms)


def _miss(gang: Gang, tenant: TenantView, rooms: tuple[Room, ...]) -> _Miss | None:
    return _over_quota(gang, tenant) or _no_machine(gang, rooms) or _too_many(gang, rooms)


def _over_quota(gang: Gang, tenant: TenantView) -> _Miss | None:
    excess = quota.excess(tenant, Resources(), total(gang.bundles))
    if excess is None:
        return None
    bundles = "it asks" if len(gang.bundles) == 1 else f"its {len(gang.bundles)} bundles ask"
    cause = (
        f"{bundles} for {excess.flavor} {format_amount(excess.flavor, excess.asked)}, more than the tenant's"
        f" quota could ever allow ({format_amount(excess.flavor, excess.limit)})"
    )
    return _Miss(0, "quota", cause, excess.facts())


def _no_machine(gang: Gang, rooms: tuple[Room, ...]) -> _Miss | None:
    types = ", ".join(sorted(gang.capacity))
    for rank, bundle in enumerate(gang.bundles):
        allowed = [room for room in rooms if gang.allows(rank, room)]
        if any(room.take(bundle) for room in allowed):
            continue
        facts: dict[str, object] = {"rank": rank, "bundle": bundle.as_dict()}
        if allowed:
            cause = f"no machine of capacity type {types} can hold {bundle} on one node"
            return _Miss(1, "no_machine", cause, facts)
        cause = f"there is no machine of capacity type {types}" + (" that its head may use" if rank == 0 else "")
        there = tuple(sorted({room.capacity_type.value for room in rooms} - {CapacityType.SPOT.value}))
        return _Miss(1, "no_machine", cause, facts, there)
    return None


def _too_many(gang: Gang, rooms: tuple[Room, ...]) -> _Miss | None:
    fit = place(gang, {room.node_id: room for room in rooms})
    if fit.whole:
        return None
    cause = f"its {len(gang.bundles)} bundles do not fit at once, even if nothing else ran"
    return _Miss(2, "fleet", cause, {"bundles": len(gang.bundles), "fitting": len(fit.placements)})


def _nearest(gang: Gang, tenant: TenantView, rooms: tuple[Room, ...]) -> dict[str, object]:
    """Return what to change (as a spec writes it) for the nearest request that can run; nothing if there is none.

    First as many like workers as can run; if not even one can, the largest part of one.
    """
    worker, asked = gang.bundles[-1], max(len(gang.bundles) - 1, 1)
    if workers := _most_workers(gang, worker, asked, tenant, rooms):
        return {"workers": workers}
    allowed = [room for room in rooms if gang.allows(0, room)]
    within_quota = _at_most(worker, quota.limit(tenant))
    smaller = max((_at_most(within_quota, room.free) for room in allowed), key=_size, default=Resources())
    amount = gpu_of(smaller)
    if (flavor := gpu_flavor(smaller)) and amount > DEVICE:
        # A part of a GPU is less than one; what is more is whole.
        smaller = Resources({**smaller, flavor: amount // DEVICE * DEVICE})
    workers = _most_workers(gang, smaller, asked, tenant, rooms) if smaller[CPU] and smaller[MEMORY] else 0
    if not workers:
        return {}
    named = {name: format_amount(name, n) for name, n in smaller.items() if not is_gpu(name)}
    if flavor:
        named["gpu"] = f"{flavor}:{format_amount(flavor, smaller[flavor])}"
    return {"resources": named} if workers == asked else {"resources": named, "workers": workers}


def _most_workers(gang: Gang, worker: Resources, asked: int, tenant: TenantView, rooms: tuple[Room, ...]) -> int:
    """Return the most workers, up to `asked`, that could run at once."""

    def runs(workers: int) -> bool:
        bundles = (worker,) if workers == 1 else (gang.bundles[0], *([worker] * workers))
        return _miss(Gang("", bundles, gang.capacity, gang.kind), tenant, rooms) is None

    low, high = 0, asked
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if runs(middle) else (low, middle - 1)
    return low


def _at_most(bundle: Resources, room: Resources) -> Resources:
    return Resources({flavor: min(asked, room[flavor]) for flavor, asked in bundle.items()})


def _size(bundle: Resources) -> tuple[int, int, int]:
    return gpu_of(bundle), bundle[CPU], bundle[MEMORY]


def _told(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {each}" for key, each in value.items()) + "}"
    return "[" + ", ".join(str(each) for each in value) + "]" if isinstance(value, list) else str(value)
