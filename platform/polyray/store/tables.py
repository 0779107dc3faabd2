"""The tables. Rows are the truth; whatever else holds state (core, gateway, cloud) is made to match.

Times are integer milliseconds since the epoch, UTC (`_ms`); amounts are milli-units or bytes; money is
micro-dollars. Usage has no column: it is derived from lease rows. `state` columns are written by
`polyray.store.steps` alone.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


class Tenant(Base):
    __tablename__ = "tenants"
    #: The slug; case-fold collisions cannot arise, since slugs have no upper case.
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    display_name: Mapped[str]
    #: The unix uid of its slices (used by grades `sandbox` and `network`).
    uid: Mapped[int] = mapped_column(unique=True)
    suspended: Mapped[bool] = mapped_column(default=False)
    #: May borrow others' idle quota up to its borrowing limit.
    cohort: Mapped[str | None] = mapped_column(String(40))
    created_ms: Mapped[int]


class Quota(Base):
    __tablename__ = "quotas"
    __table_args__ = (CheckConstraint("nominal >= 0"), CheckConstraint("borrowing_limit >= 0"))
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), primary_key=True)
    flavor: Mapped[str] = mapped_column(String(31), primary_key=True)
    #: Milli-units; bytes for memory.
    nominal: Mapped[int]
    borrowing_limit: Mapped[int] = mapped_column(default=0)
    lending_limit: Mapped[int | None]


class Budget(Base):
    """Money a tenant may spend a calendar month (UTC) on cloud nodes."""

    __tablename__ = "budgets"
    __table_args__ = (CheckConstraint("usd_micros_per_month >= 0"),)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), primary_key=True)
    usd_micros_per_month: Mapped[int]


class Project(Base):
    __tablename__ = "projects"
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_ms: Mapped[int]


class User(Base):
    """An account of the built-in issuer. With an outside issuer this table stays empty."""

    __tablename__ = "users"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    display_name: Mapped[str]
    #: scrypt, with its parameters and salt.
    password_hash: Mapped[str]
    #: Groups as Keycloak names them: `/operators`, `/tenants/T/ROLE`.
    groups: Mapped[list[Any]]
    disabled: Mapped[bool] = mapped_column(default=False)
    created_ms: Mapped[int]


class DeviceCode(Base):
    """A device-code login under way at the built-in issuer (RFC 8628)."""

    __tablename__ = "device_codes"
    #: SHA-256 of the device code.
    code_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_code: Mapped[str] = mapped_column(String(16), unique=True)
    client_id: Mapped[str]
    scope: Mapped[str] = mapped_column(default="")
    #: The account that approved it.
    user: Mapped[str | None] = mapped_column(String(40))
    denied: Mapped[bool] = mapped_column(default=False)
    expires_ms: Mapped[int]
    last_poll_ms: Mapped[int] = mapped_column(default=0)


class RefreshToken(Base):
    """A one-time refresh token of the built-in issuer. A used one stays till it expires: its reuse tells of theft."""

    __tablename__ = "refresh_tokens"
    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str] = mapped_column(String(40))
    client_id: Mapped[str]
    #: The login it descends from; all of one login end together.
    sid: Mapped[str] = mapped_column(String(36))
    scope: Mapped[str] = mapped_column(default="")
    used_ms: Mapped[int | None]
    expires_ms: Mapped[int]


class LoginSession(Base):
    """The session (`sid`) behind platform tokens; revoking it ends them all."""

    __tablename__ = "login_sessions"
    sid: Mapped[str] = mapped_column(String(16), primary_key=True)
    subject: Mapped[str]
    tenant: Mapped[str | None] = mapped_column(String(40))
    role: Mapped[str]
    revoked_ms: Mapped[int | None]
    expires_ms: Mapped[int]
    created_ms: Mapped[int]


class ApiKey(Base):
    """A key for inference, stored hashed and scoped to one service, or to all of a tenant."""

    __tablename__ = "api_keys"
    key_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    #: SHA-256, upper-case hexadecimal (as the gateway computes it).
    key_hash: Mapped[str] = mapped_column(String(64), unique=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"))
    name: Mapped[str] = mapped_column(String(40))
    #: The name of the one service it opens; None for all of the tenant.
    service: Mapped[str | None] = mapped_column(String(40))
    created_by: Mapped[str]
    revoked_ms: Mapped[int | None]
    expires_ms: Mapped[int]
    created_ms: Mapped[int]


class Workload(Base):
    """A job, session or service: what queues."""

    __tablename__ = "workloads"
    __table_args__ = (
        Index("ix_workloads_tenant_created", "tenant", "created_ms", "workload_id"),
        Index("ix_workloads_state", "state"),
        Index("ix_workloads_queue", "state", "created_ms", "workload_id"),
        Index("ix_workloads_created", "created_ms", "workload_id"),
        # Names of what lives on (sessions, services) are unique while it lives; jobs' names need not be.
        UniqueConstraint("tenant", "kind", "live_name"),
        CheckConstraint("attempt >= 0"),
    )
    workload_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"))
    project: Mapped[str] = mapped_column(String(40))
    name: Mapped[str] = mapped_column(String(40))
    #: `name` of a live session or service, else null.
    live_name: Mapped[str | None] = mapped_column(String(40))
    submitted_by: Mapped[str]
    #: The validated spec (`polyray.core.spec.WorkloadSpec`) as JSON.
    spec: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16))
    state_reason: Mapped[str] = mapped_column(default="")
    #: Grants so far; attempt n runs on cluster n.
    attempt: Mapped[int] = mapped_column(default=0)
    #: Attempts that were lost for a reason its retry policy covers.
    retries: Mapped[int] = mapped_column(default=0)
    cluster_id: Mapped[str | None] = mapped_column(String(16))
    stop_requested_ms: Mapped[int | None]
    #: The broker's latest word on why it waits (`Explanation` as JSON).
    explanation: Mapped[dict[str, Any] | None]
    exit_code: Mapped[int | None]
    created_ms: Mapped[int]
    #: When the present wait began. Within a tenant the queue is in the order of `created_ms`: nobody loses his place.
    queued_ms: Mapped[int]
    #: It is not tried again before this time: attempts that fail fast are paused, longer each time.
    not_before_ms: Mapped[int | None]
    started_ms: Mapped[int | None]
    ended_ms: Mapped[int | None]
    #: When its run directory (log, records, checkpoints) was removed, long after its end.
    history_removed_ms: Mapped[int | None]


class Cluster(Base):
    """A tenant's own Ray cluster, made for one attempt of one workload."""

    __tablename__ = "clusters"
    __table_args__ = (Index("ix_clusters_state", "state"), Index("ix_clusters_workload", "workload_id"))
    cluster_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    workload_id: Mapped[str] = mapped_column(ForeignKey("workloads.workload_id"))
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"))
    attempt: Mapped[int]
    state: Mapped[str] = mapped_column(String(20))
    state_reason: Mapped[str] = mapped_column(default="")
    #: Ray's token of this cluster. It opens nothing else.
    secret: Mapped[str]
    #: Set when the cluster is not wanted any more.
    stop_requested_ms: Mapped[int | None]
    #: Why it ended before its work did (`polyray.tenants.cluster_plan.Loss`); empty if it did not.
    loss: Mapped[str] = mapped_column(String(16), default="")
    loss_reason: Mapped[str] = mapped_column(default="")
    driver_started_ms: Mapped[int | None]
    created_ms: Mapped[int]
    ready_ms: Mapped[int | None]
    ended_ms: Mapped[int | None]


class Lease(Base):
    """The right of one workload to one bundle on one node. Lease rows are the only truth of usage."""

    __tablename__ = "leases"
    __table_args__ = (
        Index("ix_leases_state", "state"),
        Index("ix_leases_node", "node_id", "state"),
        Index("ix_leases_workload", "workload_id"),
        UniqueConstraint("cluster_id", "rank"),
        CheckConstraint("epoch >= 1"),
    )
    lease_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.cluster_id"))
    workload_id: Mapped[str] = mapped_column(ForeignKey("workloads.workload_id"))
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"))
    project: Mapped[str] = mapped_column(String(40))
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.node_id"))
    #: 0 is the head.
    rank: Mapped[int]
    #: Resources as `polyray.core.resources.Resources`, with the node's own GPU flavor.
    resources: Mapped[dict[str, Any]]
    #: GPU indices on the node, with milli-shares: {"0": 1000}.
    devices: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16))
    #: Fencing number: a holder with a lower one must not act.
    epoch: Mapped[int]
    #: Counts the slices started under this lease; a new one gets a new port block.
    generation: Mapped[int] = mapped_column(default=0)
    #: Of those, the latest in a row that did not last (`polyray.tenants.cluster_plan.LASTING_MS`).
    short_starts: Mapped[int] = mapped_column(default=0)
    slice_started_ms: Mapped[int | None]
    granted_ms: Mapped[int]
    active_ms: Mapped[int | None]
    released_ms: Mapped[int | None]


class PortBlock(Base):
    """The ports and the loopback address of one slice of grade `process` on one host."""

    __tablename__ = "port_blocks"
    __table_args__ = (UniqueConstraint("lease_id"),)
    host: Mapped[str] = mapped_column(String(64), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    lease_id: Mapped[str] = mapped_column(String(16))
    #: A released block rests before it is given out again: an old client must not reach a new tenant.
    usable_again_ms: Mapped[int | None]


class Node(Base):
    """A machine of the core, from the intent to launch it until its provider no longer knows it."""

    __tablename__ = "nodes"
    __table_args__ = (Index("ix_nodes_state", "state"),)
    #: Also the intent id: the tag on what the provider makes.
    node_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    pool: Mapped[str] = mapped_column(String(40))
    provider: Mapped[str] = mapped_column(String(40))
    #: The offering it came from (`polyray.broker.snapshot.Offering` as JSON).
    offering: Mapped[dict[str, Any]]
    capacity_type: Mapped[str] = mapped_column(String(12))
    usd_micros_per_hour: Mapped[int]
    resources: Mapped[dict[str, Any]]
    #: True where its GPUs or its cloud are simulated by the `local` provider; said wherever it is shown.
    simulated: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(String(16))
    state_reason: Mapped[str] = mapped_column(default="")
    #: The provider's own id, once it made the node.
    instance_id: Mapped[str | None] = mapped_column(String(64))
    ray_node_id: Mapped[str | None] = mapped_column(String(64))
    host: Mapped[str | None] = mapped_column(String(64))
    #: The workload it was launched for; None for reserved nodes.
    launched_for: Mapped[str | None] = mapped_column(String(16))
    #: Offers considered, the choice and why (the burst's receipt).
    receipt: Mapped[dict[str, Any] | None]
    stop_requested_ms: Mapped[int | None]
    created_ms: Mapped[int]
    #: The provider's billed interval, half-open.
    billed_from_ms: Mapped[int | None]
    billed_to_ms: Mapped[int | None]
    ready_ms: Mapped[int | None]
    idle_since_ms: Mapped[int | None]


class DatasetVersion(Base):
    __tablename__ = "dataset_versions"
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str] = mapped_column(String(12))
    #: SHA-256 of the canonical manifest.
    digest: Mapped[str] = mapped_column(String(64))
    manifest: Mapped[dict[str, Any]]
    created_by: Mapped[str]
    created_ms: Mapped[int]


class ModelVersion(Base):
    __tablename__ = "model_versions"
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    #: SHA-256 over the sorted (path, size, SHA-256) of its files.
    digest: Mapped[str] = mapped_column(String(64))
    files: Mapped[list[Any]]
    #: The run it came from, its code, datasets and metrics.
    lineage: Mapped[dict[str, Any]]
    created_by: Mapped[str]
    created_ms: Mapped[int]


class Blob(Base):
    """Bytes a client sent (packed code, dataset files), kept by content."""

    __tablename__ = "blobs"
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size_bytes: Mapped[int]
    created_ms: Mapped[int]


class Event(Base):
    """What happened, append-only: every step of every entity, and every refusal worth telling."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_entity", "entity_id", "event_id"), {"sqlite_autoincrement": True})
    #: Rises by commit and is never used again. SQLite numbers rows only in a column of its type INTEGER.
    event_id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    at_ms: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    entity_id: Mapped[str] = mapped_column(String(64))
    tenant: Mapped[str | None] = mapped_column(String(40))
    start: Mapped[str] = mapped_column(String(20))
    finish: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str]
    #: SHA-256 over what it says and the `chain` of the event before it (`polyray.store.chain`).
    chain: Mapped[str] = mapped_column(String(64), server_default="")


class IdempotencyKey(Base):
    """The answer to a request that may be sent twice."""

    __tablename__ = "idempotency_keys"
    principal: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    #: SHA-256 of method, path and body.
    request_hash: Mapped[str] = mapped_column(String(64))
    status: Mapped[int]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    created_ms: Mapped[int]


class Claim(Base):
    """Who may act on a key, until when. The epoch rises with every new holder and fences the old one."""

    __tablename__ = "claims"
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    epoch: Mapped[int]
    expires_ms: Mapped[int]
