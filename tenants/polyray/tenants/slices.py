"""What runs under leases, and the seam to the core that holds them.

The control plane speaks to the core through `Fabric`. Every call is idempotent by the ids in it and
returns at once: what takes time is asked for, then observed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

#: Ports of one slice of grade `process`.
PORTS_PER_SLICE = 100


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Role(StrEnum):
    HEAD = "head"
    WORKER = "worker"


class Address(_Frozen):
    """Where a slice listens: an own loopback address in grade `process`, and a block of 100 ports."""

    ip: str
    first_port: int

    @property
    def gcs(self) -> str:
        return f"{self.ip}:{self.first_port}"

    @property
    def dashboard_port(self) -> int:
        return self.first_port + 1

    @property
    def client_port(self) -> int:
        return self.first_port + 2

    @property
    def agent_port(self) -> int:
        """The dashboard agent's HTTP port; `/api/local_raylet_healthz` there tells readiness."""
        return self.first_port + 5

    @property
    def serve_port(self) -> int:
        return self.first_port + 9


class SliceSpec(_Frozen):
    """Everything a node needs to start one slice. Sent over the 0600 socket, never logged: it has the secret."""

    lease_id: str
    cluster_id: str
    tenant: str
    tenant_uid: int
    epoch: int
    #: Counts starts under one lease; a higher one replaces a lower one.
    generation: int
    role: Role
    #: 0 for the head.
    rank: int
    address: Address
    #: `ip:port` of the head's GCS; the slice's own for a head.
    gcs_address: str
    cluster_secret: str
    #: What the slice tells its Ray: 0 cpus for a head that carries no bundle.
    num_cpus_milli: int
    num_gpus: int
    #: GPU indices on the node.
    gpu_indices: tuple[int, ...] = ()
    memory_bytes: int
    object_store_bytes: int
    #: Dashboard, Jobs API: needed by sessions, not by jobs.
    dashboard: bool
    #: `ray://` server.
    ray_client: bool
    labels: dict[str, str] = Field(default_factory=dict)
    #: Added to the cleared environment, for Ray and so for all tenant code.
    env: dict[str, str] = Field(default_factory=dict)
    #: The workload's own directory (read-write for the tenant).
    run_dir: str


class DriverSpec(_Frozen):
    """A program of the workload's own, run beside the head: a job's command, a service's application."""

    #: The attempt's id: starting the same driver twice starts it once.
    driver_id: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = Field(default_factory=dict)
    #: Standard output and error, appended as bytes.
    log_path: str
    log_limit_bytes: int = 64 * 2**20


class SliceState(StrEnum):
    #: The lease is held; no slice was asked for yet.
    EMPTY = "empty"
    STARTING = "starting"
    READY = "ready"
    EXITED = "exited"


class DriverStatus(_Frozen):
    driver_id: str
    running: bool
    #: Of an ended driver; negative is a signal.
    exit_code: int | None = None


class SliceStatus(_Frozen):
    """What a lease actor says of its slice."""

    lease_id: str
    cluster_id: str
    node_id: str
    epoch: int
    generation: int
    state: SliceState
    #: Why it ended: an exit code and the last lines, `port_in_use`, ...
    detail: str = ""
    driver: DriverStatus | None = None
    #: Resident memory of all its processes.
    memory_bytes: int = 0


class LeaseSpec(_Frozen):
    lease_id: str
    epoch: int
    node_id: str
    cpu_milli: Annotated[int, Field(ge=0)]
    gpu_milli: Annotated[int, Field(ge=0)]
    memory_bytes: Annotated[int, Field(ge=0)]


class Gang(_Frozen):
    """The leases of one cluster: granted in the core all together, or not at all."""

    cluster_id: str
    leases: tuple[LeaseSpec, ...]


class GangState(StrEnum):
    PENDING = "pending"
    HELD = "held"
    #: Not ready within 30 s, or it lost a node: it was removed whole.
    REJECTED = "rejected"
    ABSENT = "absent"


class GangStatus(_Frozen):
    cluster_id: str
    state: GangState
    detail: str = ""


class FabricNode(_Frozen):
    """A core node as the core sees it."""

    node_id: str
    ray_node_id: str
    alive: bool
    host: str


class Fabric(Protocol):
    """The core seen from the control plane. All calls raise `Unavailable` when the core does not answer."""

    def nodes(self) -> tuple[FabricNode, ...]:
        """Return the core's nodes, the dead of this core's life included."""

    def grant(self, gang: Gang) -> GangStatus:
        """Hold a gang's leases: start holding, or say how far it is."""

    def release(self, cluster_id: str) -> GangStatus:
        """End a cluster's slices, lease actors and placement group; `absent` when nothing is left."""

    def gangs(self) -> tuple[GangStatus, ...]:
        """Return every gang that the core holds anything of."""

    def slices(self) -> tuple[SliceStatus, ...]:
        """Return the status of every lease held. A lease whose actor is dead is not in it."""

    def start_slice(self, spec: SliceSpec) -> None:
        """Start a slice under its lease, ending an older generation first."""

    def kill_slice(self, lease_id: str) -> None:
        """Kill a slice with -9, as a crash would; the lease stays."""

    def start_driver(self, lease_id: str, spec: DriverSpec) -> None: ...

    def stop_driver(self, lease_id: str, driver_id: str, grace_seconds: float) -> None:
        """Ask a driver's whole process group to end; kill it after the grace, which further calls do not prolong."""
