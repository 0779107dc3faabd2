"""What the API shows. Rows are never shown as they are: each field here was chosen."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class View(BaseModel):
    model_config = ConfigDict(frozen=True)


class Page(View, Generic[Item]):
    """Some of a list, and the cursor of what follows; None at the end."""

    items: list[Item]
    next_cursor: str | None = None


class Placement(View):
    """One bundle on one node. A simulated node says so."""

    rank: int
    node_id: str
    pool: str
    capacity_type: str
    simulated: bool
    state: str
    generation: int


class ClusterRef(View):
    id: str
    state: str
    ready_ms: int | None


class WorkloadView(View):
    id: str
    kind: str
    tenant: str
    project: str
    name: str
    state: str
    state_reason: str
    attempt: int
    retries: int
    submitted_by: str
    spec: dict[str, Any]
    explanation: dict[str, Any] | None
    exit_code: int | None
    stop_requested_ms: int | None
    created_ms: int
    queued_ms: int
    started_ms: int | None
    ended_ms: int | None
    cluster: ClusterRef | None
    placements: list[Placement]
    #: A service's own URL at the gateway.
    url: str | None


class WhyView(View):
    """Why a workload is where it is: the broker's word, and its place in the queue (1 is next) while it waits."""

    id: str
    state: str
    state_reason: str
    code: str
    cause: str
    unblocks: str
    facts: dict[str, Any]
    position: int | None


class EventView(View):
    event_id: int
    at_ms: int
    kind: str
    entity_id: str
    start: str
    finish: str
    reason: str


class RecordsView(View):
    """A run's records. `skipped` lines were no JSON object, or too long."""

    items: list[dict[str, Any]]
    skipped: int
    #: Where to read on, in bytes.
    next_offset: int
    #: Whether there is more now.
    more: bool


class OfferView(View):
    offering: str
    pool: str
    capacity_type: str
    simulated: bool
    #: How many of it carry the whole gang; the price is theirs together.
    nodes: int
    usd_micros_per_hour: int


class PlanView(View):
    """What a workload would ask for: the gang, the offerings that could carry it, and what they cost."""

    kind: str
    name: str
    tenant: str
    project: str
    bundles: list[dict[str, int]]
    total: dict[str, int]
    #: Cheapest first.
    offers: list[OfferView]
    #: Micro-dollars an hour of the cheapest way, all bundles running; None if nothing is priced.
    usd_micros_per_hour: int | None
    #: The same over `max_duration`; None without one.
    max_usd_micros: int | None


class BlobView(View):
    sha256: str
    size_bytes: int


class DatasetView(View):
    name: str
    version: int
    stage: str
    digest: str
    rows: int
    size_bytes: int
    files: int
    created_by: str
    created_ms: int


class DatasetDetail(DatasetView):
    manifest: dict[str, Any]


class ModelView(View):
    name: str
    version: int
    digest: str
    files: list[Any]
    lineage: dict[str, Any]
    created_by: str
    created_ms: int


class KeyView(View):
    key_id: str
    name: str
    service: str | None
    created_by: str
    created_ms: int
    expires_ms: int
    revoked_ms: int | None


class NewKeyView(KeyView):
    #: Shown once; only its hash is kept.
    key: str


class QueueEntry(View):
    """A place in the queue. Another tenant's workload shows only that it is there."""

    position: int
    yours: bool
    id: str | None = None
    tenant: str | None = None
    kind: str | None = None
    name: str | None = None
    submitted_by: str | None = None
    priority: str | None = None
    #: What its bundles ask for together.
    total: dict[str, int] | None = None
    queued_ms: int | None = None
    wait_ms: int | None = None
    explanation: dict[str, Any] | None = None


class NodeView(View):
    node_id: str
    pool: str
    provider: str
    capacity_type: str
    usd_micros_per_hour: int
    resources: dict[str, int]
    #: What live leases hold of it, all tenants together.
    used: dict[str, int]
    simulated: bool
    state: str
    state_reason: str
    #: The workload it was launched for, where that is the reader's own.
    launched_for: str | None
    created_ms: int
    ready_ms: int | None
    idle_since_ms: int | None


class QuotaView(View):
    flavor: str
    nominal: int
    borrowing_limit: int
    used: int


class TenantView(View):
    name: str
    display_name: str
    suspended: bool
    cohort: str | None
    quotas: list[QuotaView]
    budget_usd_micros_per_month: int | None
    projects: list[str]


class WhoView(View):
    subject: str
    tenant: str | None
    role: str
    sid: str
    cluster: str | None
    expires_ms: int
    actions: list[str]


class ComponentView(View):
    name: str
    ok: bool
    detail: str


class StatusView(View):
    components: list[ComponentView]
    #: The isolation grade of the nodes, and what it means in one honest sentence.
    grade: str
    grade_means: str
    api_url: str
    gateway_url: str
    versions: dict[str, str]
    workloads: dict[str, int]
    nodes: dict[str, int]


class TokenView(View):
    """RFC 8693's answer."""

    access_token: str
    issued_token_type: str
    token_type: str = "Bearer"  # noqa: S105
    expires_in: int
    tenant: str | None
    role: str


class AuditEventView(View):
    event_id: int
    at_ms: int
    kind: str
    entity_id: str
    tenant: str | None
    start: str
    finish: str
    reason: str
    chain: str


class GapView(View):
    """Events that are lost, and known to be: by a restore, or found when the platform started."""

    first: int
    last: int
    #: The event that tells of it.
    event_id: int
    at_ms: int
    restored: bool
    #: Of one that was found, whether somebody said that he knows.
    acknowledged: bool
    reason: str


class AuditView(View):
    ok: bool
    events: int
    anchors: int
    head_event_id: int
    head_chain: str
    #: What is wrong, a sentence each.
    findings: list[str]
    gaps: list[GapView]
