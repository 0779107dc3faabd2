"""What the broker sees and what it decides: immutable, integers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from polyray.broker.places import placed
from polyray.core.explain import Explanation
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType, Kind


@dataclass(frozen=True)
class Offering:
    """Something that a provider can launch. Prices are micro-dollars an hour."""

    name: str
    pool: str
    provider: str
    instance_type: str
    zone: str
    capacity_type: CapacityType
    usd_micros_per_hour: int
    resources: Resources
    boot_seconds: int = 60
    join_limit_seconds: int = 600
    #: How many of it may run at once.
    max_nodes: int = 1000
    simulated: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` reads it back."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"capacity_type": self.capacity_type.value, "resources": self.resources.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Offering:
        resources, capacity_type = Resources(values["resources"]), CapacityType(values["capacity_type"])
        return cls(**{**values, "resources": resources, "capacity_type": capacity_type})


@dataclass(frozen=True)
class NodeView:
    """A node that takes leases (`ready`), or one that is on its way."""

    node_id: str
    pool: str
    capacity_type: CapacityType
    resources: Resources
    #: What live leases hold of it.
    used: Resources
    #: Milli-units left per GPU index; a lease's whole GPUs need whole devices.
    free_devices: tuple[int, ...]
    ready: bool
    offering: str
    #: The workload it was launched for: it has the first right to it.
    launched_for: str | None = None
    #: Milliseconds since the epoch when it became idle; None while it is used or was never ready.
    idle_since_ms: int | None = None
    #: Milliseconds since the epoch when it was asked for.
    since_ms: int | None = None
    #: Of `used`, what sessions and services hold: it does not free itself as jobs end.
    lasting: Resources = field(default_factory=Resources)
    #: Milli-units left per GPU index if all jobs ended; empty means all of every device.
    lasting_free_devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """A queued workload. `bundles` are the gang, head first; a higher `priority` goes first."""

    workload_id: str
    tenant: str
    bundles: tuple[Resources, ...]
    capacity: tuple[CapacityType, ...]
    priority: int
    #: When it was queued first: its age. A lost attempt does not make it younger.
    queued_ms: int
    max_wait_ms: int | None = None
    max_cost_usd_micros: int | None = None
    max_duration_ms: int | None = None
    kind: Kind = Kind.JOB
    #: Micro-dollars that its cloud nodes have cost so far or are expected to.
    spent_usd_micros: int = 0
    #: It rests until then, and blocks nobody meanwhile.
    not_before_ms: int | None = None
    #: When its present wait began, if that is not when it was queued first.
    again_ms: int | None = None

    @property
    def since_ms(self) -> int:
        """When its present wait began."""
        return self.queued_ms if self.again_ms is None else self.again_ms


@dataclass(frozen=True)
class TenantView:
    tenant: str
    nominal: Resources
    borrowing_limit: Resources
    #: Of its live leases.
    used: Resources
    #: Micro-dollars left this month for cloud nodes; None without a budget.
    budget_left_usd_micros: int | None = None
    suspended: bool = False


@dataclass(frozen=True)
class Snapshot:
    now_ms: int
    tenants: tuple[TenantView, ...]
    nodes: tuple[NodeView, ...]
    #: Oldest first within a priority.
    queue: tuple[Waiting, ...]
    offerings: tuple[Offering, ...] = ()
    #: Names of offerings that failed lately, with when they may be tried again.
    cooling: tuple[tuple[str, int], ...] = ()
    idle_seconds: int = 300
    #: Offering -> nodes of it that take no more leases but still count against its `max_nodes`.
    leaving: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Placement:
    """One bundle on one node. `devices` are (GPU index, milli-share) pairs."""

    rank: int
    node_id: str
    resources: Resources
    devices: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Grant:
    workload_id: str
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class Launch:
    """A node to launch for a workload, with the receipt of the choice."""

    workload_id: str
    offering: Offering
    receipt: dict[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Drain:
    node_id: str
    reason: str


@dataclass(frozen=True)
class Refusal:
    """A workload that can never run, whatever is freed or launched."""

    workload_id: str
    explanation: Explanation


@dataclass(frozen=True)
class Plan:
    grants: tuple[Grant, ...] = ()
    launches: tuple[Launch, ...] = ()
    drains: tuple[Drain, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    #: Everything left in the queue, in turn, and why it waits.
    waits: tuple[tuple[Waiting, Explanation], ...] = field(default=(), hash=False)
    #: Milliseconds since the epoch at which the same queue on the same machines may be decided otherwise.
    changes_ms: int | None = None

    @property
    def explanations(self) -> dict[str, Explanation]:
        """Workload -> why it waits, and its place among those that wait."""
        result: dict[str, Explanation] = {}
        ahead: dict[str, list[str]] = {}
        for position, (waiting, explanation) in enumerate(self.waits, start=1):
            own = ahead.setdefault(waiting.tenant, [])
            result[waiting.workload_id] = placed(explanation, position, own, position - 1 - len(own))
            own.append(waiting.workload_id)
        return result
