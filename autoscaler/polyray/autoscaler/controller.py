"""Brings each node through its life: observe, plan, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from polyray.autoscaler.cooling import Cooling
from polyray.autoscaler.node_plan import Action, End, Idle, Join, Launch, Move, Observed, Seen, plan
from polyray.autoscaler.offerings import offerings_of
from polyray.autoscaler.orphans import OrphanSweep, billed_as, take_bill
from polyray.autoscaler.pools import PoolKeeper
from polyray.autoscaler.provider import (
    Instance,
    InstanceState,
    InsufficientCapacity,
    NodeNotFound,
    NodeProvider,
    ProviderQuotaExceeded,
)
from polyray.autoscaler.rest import HELD, LIVING, NodesAtRest
from polyray.autoscaler.sightings import Sightings
from polyray.broker.snapshot import Offering
from polyray.core.clock import Clock, Stopwatch
from polyray.core.errors import PolyrayError
from polyray.core.faultpoints import outside
from polyray.core.lifecycle import NODE, WORKLOAD, NodeState
from polyray.core.platform_file import PlatformFile
from polyray.core.reconcile import Done
from polyray.core.spec import CapacityType
from polyray.store.engine import Store
from polyray.store.steps import note, step
from polyray.store.tables import Lease, Node, Workload
from polyray.tenants.slices import Fabric

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
POOL_SECONDS = 10.0
#: Well below T_sweep, five minutes.
SWEEP_SECONDS = 30.0
#: An account's own limit is raised by people.
QUOTA_COOLING_SECONDS = 300

#: Parts why a node is not wanted from why it is there all the same.
_TROUBLE = "; its provider does not end it: "

POOL_KEY = "pool/"
WATCH_KEY = "watch"
ORPHANS_KEY = "orphans/"


class NodeController:
    """The reconciler of kind `node`; its keys are node ids, `pool/NAME`, `orphans/PROVIDER` and `watch`.

    A node at rest is not looked at by itself: `watch` finds those that are not so any more, each second.
    """

    kind = "node"

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        fabric: Fabric,
        providers: Mapping[str, NodeProvider],
        platform: Callable[[], PlatformFile],
        cooling: Cooling,
        wake: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._providers = providers
        self._cooling = cooling
        self._wake = wake
        self._sightings = Sightings(providers, fabric, clock)
        self._rest = NodesAtRest(self._sightings)
        self._sweep = OrphanSweep(store, providers, clock, lambda node_id: wake(self.kind, node_id))
        self._pools = PoolKeeper(store, clock, lambda: offerings_of(platform()), cooling, wake)
        #: Node -> monotonic seconds since which the running core has called it dead.
        self._dead_since: dict[str, float] = {}
        self._asked_for = Stopwatch(clock)

    def pending(self) -> list[str]:
        pools = [POOL_KEY + pool for pool in self._pools.names()]
        return [*pools, *self._restless(), WATCH_KEY, *(ORPHANS_KEY + name for name in sorted(self._providers))]

    def reconcile(self, key: str) -> Done:
        if key.startswith(POOL_KEY):
            self._pools.keep(key.removeprefix(POOL_KEY))
            return Done(again_seconds=POOL_SECONDS)
        if key.startswith(ORPHANS_KEY):
            self._sweep.sweep(key.removeprefix(ORPHANS_KEY))
            return Done(again_seconds=SWEEP_SECONDS)
        if key == WATCH_KEY:
            for node_id in self._restless():
                self._wake(self.kind, node_id)
            return Done(again_seconds=POLL_SECONDS)
        return self._reconcile_node(key)

    def _restless(self) -> list[str]:
        with self._store.read() as session:
            return self._rest.restless(session, self._clock.now_ms())

    def shut_down(self) -> None:
        """Ask every node to leave, and keep no pool any more in this process. Idempotent."""
        self._pools.close()

    def all_gone(self) -> bool:
        """Return whether every node there ever was is terminated."""
        with self._store.read() as session:
            return session.scalar(select(Node.node_id).where(LIVING).limit(1)) is None

    def _reconcile_node(self, key: str) -> Done:
        with self._store.read() as session:
            # The sign is the older one: what changes meanwhile makes it differ, and the node is looked at again.
            sign = self._rest.signs(session, self._clock.now_ms(), only=key).get(key)
            node = session.get(Node, key)
            observed = None if node is None else self._observe(session, node)
        if node is None or observed is None or observed.state is NodeState.TERMINATED:
            self._dead_since.pop(key, None)
            self._asked_for.forget(key)
            self._rest.stir(key)
            return Done(forget=True)
        billed = observed.instance is None or billed_as(node, observed.instance)
        if observed.instance is not None and not billed:
            self._take_bill(node.node_id, observed.instance)
        actions = plan(observed, self._clock.now_ms())
        for action in actions:
            self._apply(action, node)
        if not actions and sign is not None and billed:
            self._rest.settle(key, sign)
            return Done(forget=True)
        return Done(again_seconds=0.0 if any(isinstance(action, Move) for action in actions) else POLL_SECONDS)

    def _observe(self, session: Session, node: Node) -> Observed:
        instances = self._sightings.instances(node.provider)
        core, identity = self._seen(node.node_id)
        row_identity = (node.ray_node_id, node.host) if node.ray_node_id and node.host else None
        owner = session.get(Workload, node.launched_for) if node.launched_for else None
        return Observed(
            state=NodeState(node.state),
            reserved=node.capacity_type == CapacityType.RESERVED,
            waited_ms=self._asked_for.lasted_ms(
                node.node_id, node.created_ms if node.billed_from_ms is None else node.billed_from_ms
            ),
            join_limit_ms=int(node.offering["join_limit_seconds"]) * 1000,
            live_leases=session.scalar(select(func.count()).select_from(Lease).where(*_live_on(node.node_id))) or 0,
            used_until_ms=session.scalar(select(func.max(Lease.released_ms)).where(Lease.node_id == node.node_id))
            or node.ready_ms,
            idle_since_ms=node.idle_since_ms,
            stop_requested=node.stop_requested_ms is not None,
            unwanted=owner is not None and owner.state in WORKLOAD.terminal,
            core=core,
            core_identity=identity,
            row_identity=row_identity,
            dead_ms=self._dead_ms(node.node_id, core),
            instance=None if instances is None else instances.get(node.node_id),
            instances_known=instances is not None,
        )

    def _seen(self, node_id: str) -> tuple[Seen, tuple[str, str] | None]:
        nodes = self._sightings.core_nodes()
        if nodes is None:
            return Seen.UNKNOWN, None
        found = nodes.get(node_id)
        if found is None or not found.alive:
            return Seen.DEAD, None
        return Seen.ALIVE, (found.ray_node_id, found.host)

    def _dead_ms(self, node_id: str, core: Seen) -> int:
        """Return for how long the running core has called it dead; an outage of the core starts that anew."""
        if core is not Seen.DEAD:
            self._dead_since.pop(node_id, None)
            return 0
        since = self._dead_since.setdefault(node_id, self._clock.monotonic())
        return round((self._clock.monotonic() - since) * 1000)

    def _apply(self, action: Action, node: Node) -> None:
        match action:
            case Launch():
                self._launch(node)
            case Join(ray_node_id, host):
                self._join(node.node_id, ray_node_id, host)
            case Move():
                if action.offering_failed:
                    self._cooling.failed(str(node.offering["name"]))
                self._move(node, action.state, action.reason)
            case Idle(since_ms):
                self._set_idle(node.node_id, since_ms)
            case End():
                self._end(node)

    def _launch(self, node: Node) -> None:
        """Ask for it under its own id; what the provider refuses ends the node and lets the offering rest."""
        offering = Offering.from_dict(node.offering)
        if node.provider not in self._providers:
            self._move(node, NodeState.TERMINATING, f"there is no provider {node.provider}")
            return
        try:
            with outside("cloud.launch"):
                instance = self._providers[node.provider].launch(node.node_id, offering)
        except InsufficientCapacity as error:
            self._cooling.failed(offering.name, error.retry_after_seconds)
            self._move(node, NodeState.TERMINATING, str(error))
        except ProviderQuotaExceeded as error:
            self._cooling.failed(offering.name, QUOTA_COOLING_SECONDS)
            self._move(node, NodeState.TERMINATING, str(error))
        else:
            self._move(node, NodeState.LAUNCHED, instance=instance)

    def _join(self, node_id: str, ray_node_id: str, host: str) -> None:
        with self._store.write() as session:
            node, now_ms = session.get_one(Node, node_id), self._clock.now_ms()
            node.ray_node_id, node.host = ray_node_id, host
            if node.state == NodeState.LAUNCHED:
                step(session, node, NodeState.READY, now_ms=now_ms)
                node.ready_ms = node.idle_since_ms = now_ms
        self._cooling.succeeded(str(node.offering["name"]))
        log.info("node_ready", node=node_id, host=host)
        self._wake("broker", "cycle")

    def _move(self, seen: Node, state: NodeState, reason: str = "", instance: Instance | None = None) -> None:
        """Step a node, unless somebody else did since it was observed."""
        with self._store.write() as session:
            node = session.get_one(Node, seen.node_id)
            if node.state != seen.state:
                return
            step(session, node, state, now_ms=self._clock.now_ms(), reason=reason)
            node.idle_since_ms = None
            if instance is not None:
                node.instance_id = instance.instance_id
                take_bill(node, instance)
            clusters = set(session.scalars(select(Lease.cluster_id).where(*_live_on(node.node_id))))
        log.info("node_moved", node=node.node_id, state=state.value, reason=node.state_reason)
        for cluster_id in clusters:
            self._wake("cluster", cluster_id)
        self._wake("broker", "cycle")

    def _set_idle(self, node_id: str, since_ms: int | None) -> None:
        """Note since when it is idle, unless a lease was granted or ended since it was observed."""
        with self._store.write() as session:
            node = session.get_one(Node, node_id)
            live = session.scalar(select(Lease.lease_id).where(*_live_on(node_id)).limit(1))
            if (live is None) == (since_ms is not None):
                node.idle_since_ms = since_ms

    def _end(self, node: Node) -> None:
        """Ask for its end. Not found is a success: it is what was wanted."""
        provider = self._providers.get(node.provider)
        instance: Instance | None = None
        if provider is not None:
            try:
                with outside("cloud.terminate"):
                    instance = provider.terminate(node.node_id)
            except NodeNotFound:
                instance = None
            except PolyrayError as error:
                self._tell_trouble(node.node_id, error)
                raise
        with self._store.write() as session:
            row = session.get_one(Node, node.node_id)
            if row.state != NodeState.TERMINATING:
                return
            row.state_reason = row.state_reason.partition(_TROUBLE)[0]
            if instance is not None:
                take_bill(row, instance)
            if instance is None or instance.state is InstanceState.TERMINATED:
                if row.billed_from_ms is not None and row.billed_to_ms is None:
                    row.billed_to_ms = max(self._clock.now_ms(), row.billed_from_ms)
                step(session, row, NodeState.TERMINATED, now_ms=self._clock.now_ms(), reason=row.state_reason)
                row.idle_since_ms = None
        log.info("node_end_asked", node=node.node_id, state=row.state)
        if row.state == NodeState.TERMINATED:
            self._wake("broker", "cycle")
            self._wake(self.kind, POOL_KEY + row.pool)

    def _tell_trouble(self, node_id: str, error: PolyrayError) -> None:
        """Let operators see that a machine which is not wanted goes on, and costs: the node says so till it ends."""
        log.error("node_not_ended", node=node_id, error=str(error))
        with self._store.write() as session:
            row = session.get_one(Node, node_id)
            told = f"{row.state_reason.partition(_TROUBLE)[0]}{_TROUBLE}{error.message[:200]}"
            if row.state == NodeState.TERMINATING and row.state_reason != told:
                row.state_reason = told
                note(session, NODE.kind, node_id, tenant=None, now_ms=self._clock.now_ms(), reason=told)

    def _take_bill(self, node_id: str, instance: Instance) -> None:
        with self._store.write() as session:
            take_bill(session.get_one(Node, node_id), instance)


def _live_on(node_id: str) -> tuple[ColumnElement[bool], ...]:
    return Lease.node_id == node_id, HELD
