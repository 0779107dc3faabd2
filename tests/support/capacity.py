"""Small snapshots for the broker: whole GPUs and cpus in, milli-units out."""

from __future__ import annotations

from typing import Any

from polyray.broker.fit import devices_of
from polyray.broker.snapshot import NodeView, Offering, Snapshot, TenantView, Waiting
from polyray.core.resources import Resources
from polyray.core.spec import HEAD, CapacityType

GIB = 2**30
NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000

RESERVED, SPOT, ON_DEMAND = CapacityType.RESERVED, CapacityType.SPOT, CapacityType.ON_DEMAND


def amounts(cpu: float = 1, memory_gib: int = 1, **gpus: float) -> Resources:
    """Return `cpu` cores, memory, and GPUs by flavor, such as `h100=0.1`."""
    milli = {flavor: round(count * 1000) for flavor, count in gpus.items()}
    return Resources({"cpu": round(cpu * 1000), "memory": memory_gib * GIB, **milli})


PLENTY = amounts(10_000, 10_000, h100=1000, a10=1000)


def tenant(name: str = "vision", nominal: Resources = PLENTY, **more: Any) -> TenantView:
    return TenantView(name, nominal, **{"borrowing_limit": Resources(), "used": Resources(), **more})


def node(node_id: str, resources: Resources, used: Resources | None = None, **more: Any) -> NodeView:
    """Return a ready reserved node; its first devices are those that `used` takes, as one lease."""
    taken = used or Resources()
    left = list(devices_of(resources))
    gpu = sum(amount for flavor, amount in taken.items() if flavor not in {"cpu", "memory"})
    for index in range(len(left)):
        here = min(left[index], gpu)
        left[index], gpu = left[index] - here, gpu - here
    defaults: dict[str, Any] = {"pool": "rack", "capacity_type": RESERVED, "ready": True, "offering": "rack"}
    return NodeView(node_id, resources=resources, used=taken, free_devices=tuple(left), **{**defaults, **more})


def cloud_node(node_id: str, resources: Resources, used: Resources | None = None, **more: Any) -> NodeView:
    return node(node_id, resources, used, **{"pool": "cloud", "offering": "cloud", "capacity_type": ON_DEMAND, **more})


def offering(name: str, resources: Resources, usd: float = 1.0, **more: Any) -> Offering:
    defaults: dict[str, Any] = {"provider": "local", "instance_type": name, "zone": "a", "capacity_type": ON_DEMAND}
    price = round(usd * 1_000_000)
    return Offering(name, pool=name, usd_micros_per_hour=price, resources=resources, **{**defaults, **more})


def gang(workers: int, worker: Resources) -> tuple[Resources, ...]:
    """Return the bundles as a spec makes them."""
    return (worker,) if workers == 1 else (HEAD, *([worker] * workers))


def waiting(workload_id: str, bundles: tuple[Resources, ...] | Resources, **more: Any) -> Waiting:
    given = (bundles,) if isinstance(bundles, Resources) else bundles
    defaults: dict[str, Any] = {"tenant": "vision", "capacity": (RESERVED, ON_DEMAND), "priority": 1}
    return Waiting(workload_id, bundles=given, **{**defaults, "queued_ms": NOW_MS - MINUTE_MS, **more})


def snapshot(*parts: TenantView | NodeView | Waiting | Offering, **more: Any) -> Snapshot:
    """Return a snapshot of parts in any order, with one well-off tenant if none is given."""
    return Snapshot(
        now_ms=more.pop("now_ms", NOW_MS),
        tenants=tuple(part for part in parts if isinstance(part, TenantView)) or (tenant(),),
        nodes=tuple(part for part in parts if isinstance(part, NodeView)),
        queue=tuple(part for part in parts if isinstance(part, Waiting)),
        offerings=tuple(part for part in parts if isinstance(part, Offering)),
        **more,
    )
