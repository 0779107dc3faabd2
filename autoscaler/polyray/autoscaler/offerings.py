"""What the operator's pools offer."""

from __future__ import annotations

from polyray.broker.snapshot import Offering
from polyray.core.money import parse_usd
from polyray.core.platform_file import PlatformFile, PoolSpec
from polyray.core.spec import CapacityType

#: Providers whose machines, prices and GPUs are simulated.
SIMULATED = frozenset({"local"})


def offerings_of(platform: PlatformFile) -> tuple[Offering, ...]:
    """Return an offering per pool, by name. A reserved pool offers as many nodes as it keeps."""
    return tuple(offering_of(pool, platform.pools[pool]) for pool in sorted(platform.pools))


def offering_of(pool: str, spec: PoolSpec) -> Offering:
    return Offering(
        name=pool,
        pool=pool,
        provider=spec.provider,
        instance_type=spec.instance_type or pool,
        zone=spec.zone,
        capacity_type=spec.capacity_type,
        usd_micros_per_hour=parse_usd(spec.usd_per_hour, field=f"pools.{pool}.usd_per_hour"),
        resources=spec.bundle,
        boot_seconds=spec.boot_seconds,
        join_limit_seconds=spec.join_limit_seconds,
        max_nodes=spec.count if spec.capacity_type is CapacityType.RESERVED else spec.max_nodes,
        simulated=spec.provider in SIMULATED,
    )
