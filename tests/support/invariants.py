"""What must hold at every moment of a world, whatever fails in it; and what must hold once it is quiet.

The names I1 to I9 are those of the reliability plan: no resource is given twice; every lease has one living
owner; a workload ends once and is never alive twice; gangs are held whole; every machine has a row; the
gateway reaches the living alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import select

from polyray.core.lifecycle import WORKLOAD, ClusterState, LeaseState, NodeState, WorkloadState
from polyray.core.resources import Resources, total
from polyray.core.spec import WorkloadSpec
from polyray.serving import routes
from polyray.store.tables import Cluster, Event, Lease, Node, PortBlock, Quota, Workload
from polyray.tenants.cluster_plan import Loss
from polyray.tenants.slices import SliceState
from support.world import World

#: Losses that the platform answers for: they cost a workload no retry.
FREE = {Loss.GRANT_REJECTED.value, Loss.SHUTDOWN.value}
#: So long after the last fault everything must be right again, in seconds. T_heal is a minute; an offering that
#: failed rests up to ten more.
QUIET_SECONDS = 900
_ENDED = {state.value for state in WORKLOAD.terminal}


@dataclass(frozen=True)
class _Rows:
    workloads: dict[str, Workload]
    clusters: dict[str, Cluster]
    leases: tuple[Lease, ...]
    nodes: dict[str, Node]
    quotas: tuple[Quota, ...]
    blocks: tuple[PortBlock, ...]
    #: Workload -> its steps as (start, finish), in order.
    steps: dict[str, list[tuple[str, str]]]

    @property
    def live(self) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if lease.state != LeaseState.RELEASED)


def check(world: World) -> None:
    """Assert all that must hold at every moment."""
    rows = _read(world)
    _nothing_is_given_twice(rows)
    _every_lease_has_one_living_owner(world, rows)
    _a_workload_ends_once_and_is_never_alive_twice(world, rows)
    _gangs_are_whole(rows)
    _no_more_machines_than_an_offering_allows(world, rows)
    _slices_have_addresses_of_their_own(world, rows)


def check_routes(world: World) -> None:
    """Assert, after the routes were reconciled, that the gateway reaches exactly the clusters that serve."""
    with world.store.read() as session:
        wanted = routes.desired(
            session, first_port=world.settings.slice_ports_start, signing_keys=(), now_ms=world.clock.now_ms()
        )
    assert set(world.gateway.routes.backends) == set(wanted.backends), "I9: the gateway equals the rows"
    rows = _read(world)
    for backend in world.gateway.routes.backends:
        workload = rows.workloads[backend.workload_id]
        assert workload.cluster_id == backend.cluster_id, "I9: only the present attempt is routed"
        assert workload.state in {WorkloadState.STARTING, WorkloadState.RUNNING}, "I9: only the living are routed"


def is_quiet(world: World) -> bool:
    """Return whether nothing moves any more, so that waiting longer would change nothing."""
    rows = _read(world)
    ended = all(workload.state in _ENDED for workload in rows.workloads.values())
    living = {node.node_id: (node.pool, node.state) for node in rows.nodes.values() if _lives(node)}
    whole = list(living.values()) == [("rack", NodeState.READY)] * world.platform.pools["rack"].count
    return ended and not rows.live and whole and set(world.cloud.running) == living.keys()


def check_quiet(world: World) -> None:
    """Assert that nothing is left of anything, and that every machine was billed as its provider does."""
    rows = _read(world)
    waiting = {key: (row.state, row.state_reason) for key, row in rows.workloads.items() if row.state not in _ENDED}
    assert not waiting, f"I10: these never ended: {waiting}"
    assert not rows.live, "I2: leases are left"
    left = {key: row.state for key, row in rows.clusters.items() if row.state != ClusterState.GONE}
    assert not left, f"I2: clusters are left: {left}"
    assert world.fabric.empty, "I2: the core still holds something"
    assert not world.gateway.actual(), "I9: the gateway still routes something"
    rack = world.platform.pools["rack"].count
    living = [node for node in rows.nodes.values() if _lives(node)]
    assert [(node.pool, node.state) for node in living] == [("rack", NodeState.READY)] * rack, "the rack is whole"
    assert set(world.cloud.running) == {node.node_id for node in living}, "I5: every machine has a living row"
    for node_id, interval in world.cloud.billed.items():
        if (row := rows.nodes.get(node_id)) is not None:
            assert (row.billed_from_ms, row.billed_to_ms) == interval, f"I5: {node_id} is booked as it was billed"


def _read(world: World) -> _Rows:
    with world.store.read() as session:
        steps = defaultdict(list)
        events = select(Event).where(Event.kind == WORKLOAD.kind, Event.finish != "").order_by(Event.event_id)
        for event in session.scalars(events):
            steps[event.entity_id].append((event.start, event.finish))
        return _Rows(
            workloads={row.workload_id: row for row in session.scalars(select(Workload))},
            clusters={row.cluster_id: row for row in session.scalars(select(Cluster).order_by(Cluster.attempt))},
            leases=tuple(session.scalars(select(Lease))),
            nodes={row.node_id: row for row in session.scalars(select(Node))},
            quotas=tuple(session.scalars(select(Quota))),
            blocks=tuple(session.scalars(select(PortBlock))),
            steps=steps,
        )


def _nothing_is_given_twice(rows: _Rows) -> None:
    on_node, of_tenant = defaultdict(list), defaultdict(list)
    devices: Counter[tuple[str, str]] = Counter()
    for lease in rows.live:
        on_node[lease.node_id].append(Resources(lease.resources))
        of_tenant[lease.tenant].append(Resources(lease.resources))
        for index, share in lease.devices.items():
            devices[lease.node_id, index] += int(share)
    for node_id, held in on_node.items():
        room = Resources(rows.nodes[node_id].resources)
        assert total(held).fits(room), f"I1: leases on {node_id} hold {total(held)} of {room}"
    assert max(devices.values(), default=0) <= 1000, "I1: a GPU is given twice"
    for quota in rows.quotas:
        used = total(of_tenant[quota.tenant])[quota.flavor]
        assert used <= quota.nominal + quota.borrowing_limit, f"I1: {quota.tenant} is over its quota of {quota.flavor}"


def _every_lease_has_one_living_owner(world: World, rows: _Rows) -> None:
    for lease in rows.live:
        cluster = rows.clusters[lease.cluster_id]
        assert cluster.state != ClusterState.GONE, f"I2: {lease.lease_id} outlives its cluster"
        assert lease.epoch == cluster.attempt, "I2: an epoch is its attempt's number"
        assert _lives(rows.nodes[lease.node_id]), f"I2: {lease.lease_id} is on a node that is gone"
    for lease_id, cluster_id in world.fabric.held.items():
        held_by = rows.clusters.get(cluster_id)
        assert held_by is not None, f"I2: the core holds {lease_id} for nobody"
        assert held_by.state != ClusterState.GONE, f"I2: the core holds {lease_id} of a cluster that is gone"


def _a_workload_ends_once_and_is_never_alive_twice(world: World, rows: _Rows) -> None:
    attempts: dict[str, list[Cluster]] = defaultdict(list)
    for cluster in rows.clusters.values():
        attempts[cluster.workload_id].append(cluster)
    for workload_id, row in rows.workloads.items():
        steps = rows.steps[workload_id]
        assert all(before[1] == after[0] for before, after in pairwise(steps)), f"I3: a step is missing: {steps}"
        assert steps[-1][1] == row.state, f"I3: the row and its story differ: {steps}"
        assert all(start not in _ENDED for start, _ in steps), f"I3: an end was changed: {steps}"
        made = attempts[workload_id]
        assert [cluster.attempt for cluster in made] == list(range(1, row.attempt + 1)), "I3: one cluster an attempt"
        alive = [cluster.cluster_id for cluster in made if cluster.state != ClusterState.GONE]
        assert len(alive) <= 1, f"I3: {workload_id} is alive twice"
        lost = made if row.state == WorkloadState.QUEUED else made[:-1]
        if row.state == WorkloadState.QUEUED:
            assert not alive, f"I3: {workload_id} waits while its last attempt lives"
        if row.state not in _ENDED:
            free = sum(cluster.loss in FREE for cluster in lost)
            assert len(lost) == row.retries + free, f"I3: {workload_id} lost {len(lost)} attempts, told {row.retries}"
        spec = WorkloadSpec.model_validate(row.spec)
        assert row.retries <= spec.retry.limit or row.kind != "job", f"I3: {workload_id} is tried too often"
    programs = Counter(driver.rpartition(".")[0] for driver in world.fabric.running_drivers)
    assert max(programs.values(), default=0) <= 1, "I3: a program runs twice"


def _gangs_are_whole(rows: _Rows) -> None:
    states = defaultdict(set)
    for lease in rows.leases:
        states[lease.cluster_id].add(lease.state)
    for cluster_id, found in states.items():
        assert len(found) == 1, f"I4: the gang of {cluster_id} is in parts: {found}"


def _no_more_machines_than_an_offering_allows(world: World, rows: _Rows) -> None:
    living = Counter(str(node.offering["name"]) for node in rows.nodes.values() if _lives(node))
    for offering in world.cloud.offerings():
        assert living[offering.name] <= offering.max_nodes, f"I5: too many nodes of {offering.name}"


def _slices_have_addresses_of_their_own(world: World, rows: _Rows) -> None:
    up = {SliceState.STARTING, SliceState.READY}
    running = {spec.lease_id: spec for spec, state in world.fabric.started if state in up}
    addresses = Counter(spec.address for spec in running.values())
    assert max(addresses.values(), default=0) <= 1, "two slices share an address"
    assert len({block.lease_id for block in rows.blocks}) == len(rows.blocks)


def _lives(node: Node) -> bool:
    return node.state != NodeState.TERMINATED
