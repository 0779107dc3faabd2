"""What the rows of nodes and leases cost, per workload, tenant and month."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.money import HOUR_MS
from polyray.reports.costs import cloud_spend, costs_of_month, costs_of_workload, spent_by_workload
from polyray.reports.metering import month_of
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from support.rows import NOW_MS, add_cluster, add_lease, add_node, add_tenant, add_workload

LATER_MS = NOW_MS + HOUR_MS
JOB, CLUSTER = "job-0000000000a1", "clu-0000000000a1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One job for an hour: half of a reserved node, and a cloud node of its own that took 15 minutes to boot."""
    store = Store(f"sqlite:///{tmp_path / 'polyray.db'}")
    migrate(store)
    with store.write() as session:
        add_tenant(session)
        add_workload(session)
        add_cluster(session)
        add_node(session, "nod-rack", billed_from_ms=NOW_MS, ready_ms=NOW_MS)
        add_node(
            session,
            "nod-cloud",
            pool="cloud",
            capacity_type="on_demand",
            usd_micros_per_hour=1_200_000,
            launched_for=JOB,
            receipt={"estimated_usd_micros": 2_400_000},
            billed_from_ms=NOW_MS,
            ready_ms=NOW_MS + HOUR_MS // 4,
        )
        add_lease(session, "lea-0", node_id="nod-rack", rank=0, resources={"cpu": 1000})
        joined = NOW_MS + HOUR_MS // 4
        add_lease(session, "lea-1", node_id="nod-cloud", rank=1, resources={"cpu": 2000}, granted_ms=joined)
    return store


def test_a_workloads_costs_name_boot_and_lease_reserved_and_cloud_apart(store: Store) -> None:
    with store.read() as session:
        costs = costs_of_workload(session, JOB, LATER_MS)
    lines = [(line.node.node_id, line.kind.value, line.usd_micros) for line in costs.lines]
    assert lines == [
        ("nod-cloud", "boot", 300_000),
        ("nod-cloud", "lease", 900_000),
        ("nod-rack", "lease", 200_000),
    ]
    assert (costs.reserved_usd_micros, costs.cloud_usd_micros, costs.usd_micros) == (200_000, 1_200_000, 1_400_000)


def test_a_month_is_the_sum_of_all_nodes_with_the_platforms_own_idle_time(store: Store) -> None:
    with store.read() as session:
        everything = costs_of_month(session, month_of(NOW_MS), LATER_MS)
        tenants = costs_of_month(session, month_of(NOW_MS), LATER_MS, tenant="vision")
    assert everything.usd_micros == 1_600_000
    assert everything.usd_micros - tenants.usd_micros == 200_000, "half of the reserved node was idle"
    assert {str(line["tenant"]) for line in everything.as_dict()["lines"]} == {"vision", "None"}  # type: ignore[attr-defined]


def test_a_budget_counts_what_live_nodes_are_expected_to_cost_yet(store: Store) -> None:
    with store.read() as session:
        assert cloud_spend(session, LATER_MS) == {"vision": 2_400_000}
        assert spent_by_workload(session, JOB, LATER_MS) == 2_400_000
        assert cloud_spend(session, NOW_MS + 3 * HOUR_MS) == {"vision": 3_600_000}
