"""Many may plan at the same instant; what is granted is decided row by row, in one transaction, on each database."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from polyray.broker.plan import plan
from polyray.broker.snapshot import Offering
from polyray.core.clock import VirtualClock
from polyray.core.errors import Conflict
from polyray.core.lifecycle import LeaseState, NodeState, WorkloadState
from polyray.core.spec import load_workload
from polyray.jobs.refusals import Refusals
from polyray.jobs.scheduling import Scheduler
from polyray.store import claims
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from polyray.store.migrate import migrate
from polyray.store.steps import step
from polyray.store.tables import Budget, Cluster, Lease, Node, Quota, Tenant, Workload
from support.capacity import RESERVED, amounts, offering
from support.rows import NOW_MS, add_node, add_tenant, add_workload

RACK = offering("rack", amounts(8, 8, h100=1), capacity_type=RESERVED, max_nodes=1)
CLOUD = offering("cloud", amounts(2, 2), 1.2, max_nodes=2)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "postgres":
        return str(request.getfixturevalue("postgresql_url"))
    return f"sqlite:///{tmp_path / 'polyray.db'}"


on_each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url)
    migrate(store)
    with store.write() as session:
        add_tenant(session)
        for flavor, nominal in (("cpu", 100_000), ("memory", 2**40), ("h100", 100_000)):
            session.add(Quota(tenant="vision", flavor=flavor, nominal=nominal, borrowing_limit=0))
    yield store
    store.close()


def scheduler(
    store: Store,
    *,
    offerings: tuple[Offering, ...] = (RACK, CLOUD),
    woken: list[tuple[str, str]] | None = None,
    clock: VirtualClock | None = None,
) -> Scheduler:
    calls = [] if woken is None else woken
    return Scheduler(
        store=store,
        clock=clock or VirtualClock(NOW_MS),
        offerings=lambda: offerings,
        cooling=tuple,
        idle_seconds=lambda: 60,
        wake=lambda kind, key: calls.append((kind, key)),
    )


def put_node(
    store: Store, node_id: str, of: Offering = RACK, *, ready: bool = True, launched_for: str | None = None
) -> None:
    with store.write() as session:
        row = add_node(
            session,
            node_id,
            offering=of.as_dict(),
            resources=of.resources.as_dict(),
            capacity_type=of.capacity_type.value,
            launched_for=launched_for,
            pool=of.pool,
        )
        for state in (NodeState.LAUNCHED, NodeState.READY) if ready else ():
            step(session, row, state, now_ms=NOW_MS)


def submit(store: Store, workload_id: str, resources: str = "{cpu: 1}", **keys: object) -> str:
    lines = "".join(f"{name}: {value}\n" for name, value in keys.items())
    spec = load_workload(f"kind: job\nname: digits\nrun: 'true'\nresources: {resources}\n{lines}")
    with store.write() as session:
        add_workload(session, workload_id, spec=spec.model_dump(mode="json"))
    return workload_id


def state_of(store: Store, workload_id: str) -> str:
    with store.read() as session:
        return session.get_one(Workload, workload_id).state


def live(store: Store) -> list[Lease]:
    with store.read() as session:
        return list(session.scalars(select(Lease).where(Lease.state != LeaseState.RELEASED.value)))


@on_each_database
def test_a_grant_is_a_cluster_its_leases_and_the_step_all_together(store: Store) -> None:
    put_node(store, "nod-1")
    job, woken = submit(store, "job-a", "{cpu: 2, gpu: 'h100:0.5'}", workers=2), list[tuple[str, str]]()
    scheduler(store, woken=woken).reconcile("cycle")
    with store.read() as session:
        row = session.get_one(Workload, job)
        cluster = session.get_one(Cluster, row.cluster_id)
        leases = session.scalars(select(Lease).order_by(Lease.rank)).all()
    assert (row.state, row.attempt, row.explanation) == ("starting", 1, None)
    assert (cluster.state, cluster.attempt, len(cluster.secret)) == ("granting", 1, 64)
    assert [(lease.rank, lease.epoch, lease.devices) for lease in leases] == [
        (0, 1, {}),
        (1, 1, {"0": 500}),
        (2, 1, {"0": 500}),
    ]
    assert ("cluster", cluster.cluster_id) in woken


def test_the_next_attempt_has_a_higher_epoch_and_a_secret_of_its_own(store: Store) -> None:
    put_node(store, "nod-1")
    job = submit(store, "job-a")
    scheduler(store).reconcile("cycle")
    with store.write() as session:
        row = session.get_one(Workload, job)
        first = session.get_one(Cluster, row.cluster_id).secret
        step(session, row, WorkloadState.QUEUED, now_ms=NOW_MS)
    scheduler(store).reconcile("cycle")
    with store.read() as session:
        row = session.get_one(Workload, job)
        cluster = session.get_one(Cluster, row.cluster_id)
        epochs = session.scalars(select(Lease.epoch).where(Lease.cluster_id == cluster.cluster_id)).all()
    assert (row.attempt, cluster.attempt, list(epochs)) == (2, 2, [2])
    assert cluster.secret != first


@on_each_database
@pytest.mark.parametrize("seed", range(5))
def test_of_many_brokers_that_plan_the_same_last_slot_one_wins(store: Store, seed: int) -> None:
    put_node(store, "nod-1")
    rng = random.Random(seed)
    jobs = [submit(store, f"job-{n}", "{cpu: 1, gpu: 'h100:1'}") for n in range(4)]
    brokers = [scheduler(store) for _ in jobs]
    # Each broker sees another one of the four as the next: all of them plan the one GPU away.
    plans = []
    for broker, job in zip(brokers, jobs, strict=True):
        seen = broker.see()
        mine = replace(seen, queue=tuple(each for each in seen.queue if each.workload_id == job))
        plans.append((broker, plan(mine), mine))
    rng.shuffle(plans)
    barrier = threading.Barrier(len(plans))
    stale: list[int] = []

    def apply(broker: Scheduler, decided: object, seen: object) -> None:
        barrier.wait()
        stale.append(broker.apply(decided, seen))  # type: ignore[arg-type]

    threads = [threading.Thread(target=apply, args=each) for each in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stale) == [0, 1, 1, 1]
    assert [lease.devices for lease in live(store)] == [{"0": 1000}]
    assert sorted(state_of(store, job) for job in jobs) == ["queued", "queued", "queued", "starting"]


@on_each_database
def test_of_many_brokers_with_quota_for_one_more_one_wins(store: Store) -> None:
    put_node(store, "nod-1")
    with store.write() as session:
        session.get_one(Quota, ("vision", "cpu")).nominal = 1000
    jobs = [submit(store, f"job-{n}") for n in range(4)]
    plans = []
    for job in jobs:
        broker = scheduler(store)
        seen = broker.see()
        mine = replace(seen, queue=tuple(each for each in seen.queue if each.workload_id == job))
        plans.append((broker, plan(mine), mine))
    assert [broker.apply(decided, seen) for broker, decided, seen in plans] == [0, 1, 1, 1]
    assert len(live(store)) == 1


def test_a_workload_stopped_between_plan_and_apply_gets_nothing(store: Store) -> None:
    put_node(store, "nod-1")
    job, broker = submit(store, "job-a"), scheduler(store)
    seen = broker.see()
    with store.write() as session:
        session.get_one(Workload, job).stop_requested_ms = NOW_MS
    assert broker.apply(plan(seen), seen) == 1
    assert live(store) == []


def test_a_node_cordoned_between_plan_and_apply_gets_no_lease(store: Store) -> None:
    put_node(store, "nod-1")
    submit(store, "job-a")
    broker = scheduler(store)
    seen = broker.see()
    with store.write() as session:
        step(session, session.get_one(Node, "nod-1"), NodeState.CORDONED, now_ms=NOW_MS)
    assert broker.apply(plan(seen), seen) == 1
    assert live(store) == []


@on_each_database
def test_a_deposed_leader_writes_nothing(store: Store) -> None:
    put_node(store, "nod-1")
    job = submit(store, "job-a")
    with store.write() as session:
        epoch = claims.take(session, "leader", "old", now_ms=NOW_MS, ttl_ms=1)
    with store.write() as session:
        claims.take(session, "leader", "new", now_ms=NOW_MS + 10, ttl_ms=1000)
    with pytest.raises(Conflict):
        scheduler(FencedStore(store, "leader", lambda: epoch)).reconcile("cycle")
    assert state_of(store, job) == "queued"


def test_a_launch_is_an_intent_with_its_receipt_and_is_not_repeated(store: Store) -> None:
    put_node(store, "nod-1")
    job, woken = (
        submit(store, "job-a", "{cpu: 2}", workers=4, capacity="[reserved, on_demand]"),
        list[tuple[str, str]](),
    )
    for _ in range(3):
        scheduler(store, offerings=(replace(RACK, max_nodes=0), CLOUD), woken=woken).reconcile("cycle")
    with store.read() as session:
        (node,) = session.scalars(select(Node).where(Node.pool == "cloud")).all()
        row = session.get_one(Workload, job)
    assert (node.state, node.launched_for, node.usd_micros_per_hour) == ("intended", job, 1_200_000)
    assert node.receipt is not None
    assert node.receipt["chosen"] == ["cloud"]
    assert Offering.from_dict(node.offering) == CLOUD
    assert row.explanation is not None
    assert row.explanation["facts"]["nodes"] == [{"node": node.node_id, "offering": "cloud", "since_ms": NOW_MS}]
    assert ("node", node.node_id) in woken


@on_each_database
def test_two_brokers_launch_for_one_gang_only_once(store: Store) -> None:
    submit(store, "job-a", "{cpu: 2}")
    brokers = [scheduler(store) for _ in range(2)]
    seen = [broker.see() for broker in brokers]
    assert [broker.apply(plan(each), each) for broker, each in zip(brokers, seen, strict=True)] == [0, 1]
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(Node)) == 1


def test_a_second_launch_counts_what_the_first_is_expected_to_cost(store: Store) -> None:
    with store.write() as session:
        session.add(Budget(tenant="vision", usd_micros_per_month=2_000_000))
    jobs = [submit(store, f"job-{n}", "{cpu: 2}") for n in range(2)]
    for _ in range(2):
        scheduler(store).reconcile("cycle")
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(Node)) == 1
        explanation = session.get_one(Workload, jobs[1]).explanation
    assert explanation is not None
    assert (explanation["code"], explanation["facts"]["left_usd_micros"]) == ("budget_exhausted", 800_000)


def test_an_idle_cloud_node_is_cordoned_unless_it_was_used_meanwhile(store: Store) -> None:
    put_node(store, "nod-1", CLOUD)
    with store.write() as session:
        session.get_one(Node, "nod-1").idle_since_ms = NOW_MS - 60_000
    broker = scheduler(store)
    seen = broker.see()
    submit(store, "job-a")
    scheduler(store).reconcile("cycle")
    assert broker.apply(plan(seen), seen) == 1, "a lease was granted since"
    with store.read() as session:
        assert session.get_one(Node, "nod-1").state == "ready"
        assert session.get_one(Node, "nod-1").idle_since_ms is None
    with store.write() as session:
        for lease in session.scalars(select(Lease)):
            for state in (LeaseState.RELEASING, LeaseState.RELEASED):
                step(session, lease, state, now_ms=NOW_MS)
    assert broker.apply(plan(seen), seen) == 0
    with store.read() as session:
        assert session.get_one(Node, "nod-1").state == "cordoned"


def test_what_can_never_run_fails_with_the_nearest_that_can(store: Store) -> None:
    put_node(store, "nod-1")
    job = submit(store, "job-a", "{cpu: 9}")
    scheduler(store).reconcile("cycle")
    with store.read() as session:
        row = session.get_one(Workload, job)
    assert (row.state, row.ended_ms) == ("failed", NOW_MS)
    assert row.explanation is not None
    assert row.explanation["facts"]["nearest"] == {"resources": {"cpu": "8", "memory": "1 GiB"}}


def test_a_request_is_refused_at_submit_with_the_same_words(store: Store) -> None:
    spec = load_workload("kind: job\nname: a\nrun: x\nresources: {gpu: 'h100:2'}")
    with store.read() as session:
        told = Refusals().of(session, "vision", spec, (RACK, CLOUD))
        assert Refusals().of(session, "nobody", spec, (RACK, CLOUD)) is not None
    assert told is not None
    assert "h100 2" in told.cause


def test_an_unchanged_explanation_is_not_written_again(store: Store) -> None:
    submit(store, "job-a", "{cpu: 2}", capacity="[reserved]")
    put_node(store, "nod-1", ready=False)
    broker = scheduler(store, offerings=(RACK,))
    broker.reconcile("cycle")

    def refuse_to_write() -> int:
        raise AssertionError("a cycle that changes nothing writes nothing")

    scheduler(FencedStore(store, "leader", refuse_to_write), offerings=(RACK,)).reconcile("cycle")


def test_one_unreadable_workload_does_not_stop_the_queue(store: Store) -> None:
    put_node(store, "nod-1")
    with store.write() as session:
        add_workload(session, "job-bad", spec={"kind": "job", "from": "another version"})
    job = submit(store, "job-good")
    scheduler(store).reconcile("cycle")
    assert state_of(store, job) == "starting"


@on_each_database
def test_usage_is_what_lease_rows_say_however_many_end_at_once(store: Store) -> None:
    """Nothing is counted up or down, so nothing can be off by one."""
    put_node(store, "nod-1")
    for n in range(8):
        submit(store, f"job-{n}")
    scheduler(store).reconcile("cycle")
    assert len(live(store)) == 8
    barrier = threading.Barrier(8)

    def end(lease_id: str) -> None:
        barrier.wait()
        for state in (LeaseState.RELEASING, LeaseState.RELEASED):
            with store.write() as session:
                step(session, session.get_one(Lease, lease_id), state, now_ms=NOW_MS)

    threads = [threading.Thread(target=end, args=(lease.lease_id,)) for lease in live(store)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = scheduler(store).see()
    assert seen.nodes[0].used == seen.tenants[0].used == amounts(0, 0)
    assert seen.nodes[0].free_devices == (1000,)


def test_a_suspended_tenants_plan_is_dropped_at_the_last_moment(store: Store) -> None:
    put_node(store, "nod-1")
    job, broker = submit(store, "job-a"), scheduler(store)
    seen = broker.see()
    with store.write() as session:
        session.get_one(Tenant, "vision").suspended = True
    assert broker.apply(plan(seen), seen) == 1
    assert state_of(store, job) == "queued"


def test_what_is_remembered_of_requests_holds_no_longer_than_the_machines_and_the_quota_they_were_held_against(
    store: Store,
) -> None:
    spec, asked = load_workload("kind: job\nname: a\nrun: x\nresources: {cpu: 16}"), Refusals()

    def told() -> str:
        with store.read() as session:
            explanation = asked.of(session, "vision", spec, ())
        return "" if explanation is None else explanation.code

    assert told() == told() == "infeasible"
    put_node(store, "nod-big", offering("big", amounts(16, 64), capacity_type=RESERVED))
    assert told() == told() == ""
    with store.write() as session:
        session.get_one(Quota, ("vision", "cpu")).nominal = 8000
    assert told() == "infeasible"
