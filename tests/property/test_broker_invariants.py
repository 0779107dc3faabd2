"""What no snapshot may make the broker do."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from polyray.broker.admission import violation
from polyray.broker.feasibility import feasible
from polyray.broker.plan import plan
from polyray.broker.quota import limit
from polyray.broker.snapshot import NodeView, Offering, Plan, Snapshot, TenantView, Waiting
from polyray.core.resources import ANY_GPU, Resources, total
from polyray.core.spec import HEAD, CapacityType, Kind
from support.capacity import GIB, NOW_MS

TENANTS = ("vision", "speech")
FLAVORS = ("h100", "a10")

gpus = st.sampled_from([0, 0, 0, 100, 250, 500, 1000, 2000])


def amounts_of(cpu: int, memory: int, flavor: str, gpu: int) -> Resources:
    return Resources({"cpu": cpu * 1000, "memory": memory * GIB, flavor: gpu})


machines = st.builds(
    amounts_of, st.integers(1, 8), st.integers(1, 16), st.sampled_from(FLAVORS), st.sampled_from([0, 1000, 2000, 4000])
)
workers = st.builds(amounts_of, st.integers(1, 3), st.integers(1, 4), st.sampled_from([*FLAVORS, ANY_GPU]), gpus)
some_types = st.lists(st.sampled_from(CapacityType), min_size=1, max_size=3, unique=True).map(tuple)
capacities = st.one_of(st.just(tuple(CapacityType)), st.just(tuple(CapacityType)), some_types)


@st.composite
def nodes(draw: st.DrawFn, node_id: str) -> NodeView:
    resources = draw(machines)
    capacity_type = draw(st.sampled_from(CapacityType))
    whole = [1000] * (sum(n for f, n in resources.items() if f in FLAVORS) // 1000)
    left = tuple(draw(st.sampled_from([1000, 1000, 600, 0])) for _ in whole)
    flavor = next((f for f in resources if f in FLAVORS), "h100")
    used = Resources({"cpu": draw(st.integers(0, resources["cpu"])), flavor: sum(whole) - sum(left)})
    idle = draw(st.sampled_from([None, NOW_MS - 10**6])) if used == Resources() else None
    return NodeView(
        node_id,
        pool=capacity_type.value,
        capacity_type=capacity_type,
        resources=resources,
        used=used,
        free_devices=left,
        ready=draw(st.sampled_from([True, True, False])),
        offering=capacity_type.value,
        launched_for=draw(st.sampled_from([None, None, "job-0", "job-1", "job-gone"])),
        idle_since_ms=idle,
    )


@st.composite
def workloads(draw: st.DrawFn, workload_id: str) -> Waiting:
    count, worker = draw(st.integers(1, 4)), draw(workers)
    return Waiting(
        workload_id,
        tenant=draw(st.sampled_from(TENANTS)),
        bundles=(worker,) if count == 1 else (HEAD, *[worker] * count),
        capacity=draw(capacities),
        priority=draw(st.integers(0, 2)),
        queued_ms=NOW_MS - draw(st.integers(-5, 10**6)),
        max_wait_ms=draw(st.sampled_from([None, None, 1000, 10**7])),
        max_cost_usd_micros=draw(st.sampled_from([None, None, 2_000_000])),
        not_before_ms=draw(st.sampled_from([None, None, None, NOW_MS - 1, NOW_MS + 1])),
        kind=draw(st.sampled_from(Kind)),
    )


@st.composite
def tenants(draw: st.DrawFn, name: str) -> TenantView:
    def some(least: int, most: int) -> Resources:
        part = st.integers(least, most)
        return Resources(cpu=draw(part) * 1000, memory=draw(part) * GIB, h100=draw(part) * 1000, a10=draw(part) * 1000)

    # Rich and in good standing most often, so that most examples reach a grant or a launch.
    nominal, used = draw(st.sampled_from([(30, 40), (30, 40), (0, 12)])), draw(st.sampled_from([(0, 0), (0, 8)]))
    budget = draw(st.sampled_from([None, None, 0, 3_000_000]))
    suspended = draw(st.sampled_from([*[False] * 7, True]))
    return TenantView(name, some(*nominal), some(0, 4), some(*used), budget, suspended=suspended)


@st.composite
def offerings(draw: st.DrawFn, name: str) -> Offering:
    return Offering(
        name,
        pool=name,
        provider="local",
        instance_type=name,
        zone="a",
        capacity_type=draw(st.sampled_from(CapacityType)),
        usd_micros_per_hour=draw(st.integers(0, 3_000_000)),
        resources=draw(machines),
        max_nodes=draw(st.integers(1, 3)),
    )


@st.composite
def queues(draw: st.DrawFn) -> tuple[Waiting, ...]:
    """Workloads of which some ask for the same as others."""
    queue: list[Waiting] = []
    for n in range(draw(st.integers(1, 6))):
        like = draw(st.sampled_from([None, *queue]))
        queue.append(draw(workloads(f"job-{n}")) if like is None else replace(like, workload_id=f"job-{n}"))
    return tuple(queue)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    return Snapshot(
        now_ms=NOW_MS,
        tenants=tuple(draw(tenants(name)) for name in TENANTS),
        nodes=tuple(draw(nodes(f"nod-{n}")) for n in range(draw(st.integers(1, 4)))),
        queue=draw(queues()),
        offerings=tuple(draw(offerings(f"off-{n}")) for n in range(draw(st.integers(0, 3)))),
        cooling=draw(st.sampled_from([(), (("off-0", NOW_MS + 1),), (("off-0", NOW_MS),)])),
        leaving=draw(st.sampled_from([(), (("off-1", 1),)])),
        idle_seconds=300,
    )


@given(snapshots())
def test_every_grant_passes_the_last_check_one_after_the_other(seen: Snapshot) -> None:
    """Never over quota, never two on one device, never beyond a node, never on a node that is not ready."""
    nodes_now = {node.node_id: node for node in seen.nodes}
    tenants_now = {tenant.tenant: tenant for tenant in seen.tenants}
    queue = {waiting.workload_id: waiting for waiting in seen.queue}
    for grant in plan(seen).grants:
        tenant = tenants_now[queue[grant.workload_id].tenant]
        assert violation(grant.placements, nodes_now, tenant) is None
        asked = total(placement.resources for placement in grant.placements)
        tenants_now[tenant.tenant] = replace(tenant, used=tenant.used + asked)
        assert all(tenant.used[f] + asked[f] <= limit(tenant)[f] for f in asked)
        for placement in grant.placements:
            node = nodes_now[placement.node_id]
            left = list(node.free_devices)
            for index, share in placement.devices:
                left[index] -= share
                assert left[index] >= 0
            nodes_now[node.node_id] = replace(node, used=node.used + placement.resources, free_devices=tuple(left))


@given(snapshots())
def test_a_gang_is_granted_whole_where_it_accepts_to_run(seen: Snapshot) -> None:
    nodes_by_id = {node.node_id: node for node in seen.nodes}
    queue = {waiting.workload_id: waiting for waiting in seen.queue}
    for grant in plan(seen).grants:
        waiting = queue[grant.workload_id]
        assert [placement.rank for placement in grant.placements] == list(range(len(waiting.bundles)))
        for placement, bundle in zip(grant.placements, waiting.bundles, strict=True):
            node = nodes_by_id[placement.node_id]
            assert node.capacity_type in waiting.capacity
            assert sum(placement.resources.values()) == sum(bundle.values())
            gpu = sum(share for _, share in placement.devices)
            assert gpu == sum(n for f, n in placement.resources.items() if f in FLAVORS)
        head = nodes_by_id[grant.placements[0].node_id]
        if len(waiting.bundles) > 1 or waiting.kind is not Kind.JOB:
            assert head.capacity_type is not CapacityType.SPOT


@given(snapshots())
def test_every_workload_gets_exactly_one_answer(seen: Snapshot) -> None:
    decided = plan(seen)
    granted = [grant.workload_id for grant in decided.grants]
    refused = [refusal.workload_id for refusal in decided.refusals]
    answers = sorted([*granted, *refused, *decided.explanations])
    assert answers == sorted(waiting.workload_id for waiting in seen.queue)
    assert {launch.workload_id for launch in decided.launches} <= set(decided.explanations)


@given(snapshots(), st.randoms(use_true_random=False))
def test_the_same_snapshot_in_any_order_gives_the_same_plan(seen: Snapshot, rng: random.Random) -> None:
    def shuffled(parts: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(rng.sample(parts, len(parts)))

    other = replace(
        seen,
        **{name: shuffled(getattr(seen, name)) for name in ("tenants", "nodes", "queue", "offerings")},  # type: ignore[arg-type]
    )
    assert plan(seen) == plan(seen) == plan(other)


@given(snapshots())
def test_what_is_decided_for_all_that_are_alike_is_what_each_alone_would_be_told(seen: Snapshot) -> None:
    assert plan(seen) == plan(seen, grouped=False)


@given(snapshots())
def test_launches_stay_within_the_offerings_and_the_budget(seen: Snapshot) -> None:
    decided = plan(seen)
    queue = {waiting.workload_id: waiting for waiting in seen.queue}
    for offering in seen.offerings:
        new = sum(launch.offering == offering for launch in decided.launches)
        there = sum(node.offering == offering.name for node in seen.nodes) + dict(seen.leaving).get(offering.name, 0)
        assert new == 0 or new + there <= offering.max_nodes
    for launch in decided.launches:
        assert launch.offering.capacity_type is not CapacityType.RESERVED
        assert launch.offering.capacity_type in queue[launch.workload_id].capacity
        assert (launch.offering.name, NOW_MS + 1) not in seen.cooling
    for tenant in seen.tenants:
        own = [each for each in decided.launches if queue[each.workload_id].tenant == tenant.tenant]
        assert not (own and tenant.suspended)
        cost = sum(int(str(each.receipt["estimated_usd_micros"])) for each in own)
        assert not own or tenant.budget_left_usd_micros is None or cost <= tenant.budget_left_usd_micros


@given(snapshots())
def test_what_was_launched_lets_the_gang_start_if_nothing_else_changes(seen: Snapshot) -> None:
    """No node is launched for a gang that then still lacks something."""
    decided = plan(seen)
    first = decided.launches[:1]
    if not first:
        return
    owner = first[0].workload_id
    mine = [launch for launch in decided.launches if launch.workload_id == owner]
    arrived = tuple(_arrived(f"new-{n}", launch.offering, owner) for n, launch in enumerate(mine))
    ready = tuple(replace(node, ready=True) for node in seen.nodes)
    alone = tuple(waiting for waiting in seen.queue if waiting.workload_id == owner)
    others = set(decided.explanations) - {owner}
    held = tuple(node for node in ready if node.launched_for not in others)
    later = plan(replace(seen, nodes=(*held, *arrived), queue=alone))
    assert [grant.workload_id for grant in later.grants] == [owner]


@given(snapshots())
def test_what_is_drained_is_idle_cloud_capacity_that_nobody_was_just_given(seen: Snapshot) -> None:
    decided = plan(seen)
    given_out = {placement.node_id for grant in decided.grants for placement in grant.placements}
    nodes_by_id = {node.node_id: node for node in seen.nodes}
    for drain in decided.drains:
        node = nodes_by_id[drain.node_id]
        assert node.ready
        assert node.capacity_type is not CapacityType.RESERVED
        assert node.used == Resources()
        assert drain.node_id not in given_out


@given(snapshots())
def test_the_nearest_request_that_a_refusal_names_can_run(seen: Snapshot) -> None:
    tenants_by_name = {tenant.tenant: tenant for tenant in seen.tenants}
    queue = {waiting.workload_id: waiting for waiting in seen.queue}
    for refusal in plan(seen).refusals:
        waiting, nearest = queue[refusal.workload_id], refusal.explanation.facts["nearest"]
        assert isinstance(nearest, dict)
        if set(nearest) != {"workers"}:
            continue
        count = nearest["workers"]
        bundles = waiting.bundles[-1:] if count == 1 else (waiting.bundles[0], *[waiting.bundles[-1]] * count)
        tenant = tenants_by_name[waiting.tenant]
        assert feasible(bundles, waiting.capacity, tenant, seen.nodes, seen.offerings, kind=waiting.kind) is None


@given(snapshots())
def test_an_idle_fleet_starts_the_first_workload_that_was_not_refused(seen: Snapshot) -> None:
    """No refusal is wrong the other way round: what is not refused does start once all is free and launched."""
    free = tuple(
        replace(node, used=Resources(), free_devices=(1000,) * len(node.free_devices), ready=True, launched_for=None)
        for node in seen.nodes
    )
    rich = tuple(
        replace(tenant, used=Resources(), budget_left_usd_micros=None, suspended=False) for tenant in seen.tenants
    )
    for waiting in seen.queue:
        eager = replace(waiting, max_wait_ms=None, max_cost_usd_micros=None, not_before_ms=None)
        reserved = tuple(
            _arrived(f"{offering.name}-{n}", offering, None)
            for offering in seen.offerings
            if offering.capacity_type is CapacityType.RESERVED
            for n in range(offering.max_nodes)
        )
        idle = replace(seen, nodes=(*free, *reserved), tenants=rich, queue=(eager,), cooling=(), leaving=())
        decided: Plan = plan(idle)
        assert decided.grants or decided.refusals or decided.launches, decided.explanations


def _arrived(node_id: str, offering: Offering, owner: str | None) -> NodeView:
    devices = (1000,) * (sum(n for f, n in offering.resources.items() if f in FLAVORS) // 1000)
    return NodeView(
        node_id,
        pool=offering.pool,
        capacity_type=offering.capacity_type,
        resources=offering.resources,
        used=Resources(),
        free_devices=devices,
        ready=True,
        offering=offering.name,
        launched_for=owner,
    )
