"""Stopping, asking why, killing a worker: what a user sees of a workload's life (C04)."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from polyray.core.explain import Explanation
from polyray.core.lifecycle import LeaseState, WorkloadState
from polyray.store.steps import created, step
from polyray.store.tables import Lease, Workload
from support.api import Platform, job
from support.rows import add_cluster, add_node


def run_it(platform: Platform, workload_id: str, *, ranks: int = 3) -> None:
    """Let a queued job run on two nodes, one of them a simulated cloud's."""
    with platform.store.write() as session:
        row = session.get_one(Workload, workload_id)
        add_cluster(session, workload_id=workload_id)
        add_node(session, "nod-0000000000a1")
        add_node(session, "nod-0000000000b2", pool="cloud", capacity_type="on_demand", simulated=True)
        for rank in range(ranks):
            lease = Lease(
                lease_id=f"lea-0000000000a{rank}",
                cluster_id="clu-0000000000a1",
                workload_id=workload_id,
                tenant="vision",
                project="default",
                node_id="nod-0000000000b2" if rank == 2 else "nod-0000000000a1",
                rank=rank,
                resources={"cpu": 1000},
                devices={},
                epoch=1,
                granted_ms=1,
            )
            created(session, lease, now_ms=1, reason="granted")
        row.cluster_id, row.attempt = "clu-0000000000a1", 1
        step(session, row, WorkloadState.STARTING, now_ms=1)
        step(session, row, WorkloadState.RUNNING, now_ms=2)


@pytest.fixture
def mine(ada: TestClient) -> str:
    return str(ada.post("/v1/jobs", json=job(workers=2)).json()["id"])


def test_stopping_what_waits_stops_it_at_once(platform: Platform, ada: TestClient, mine: str) -> None:
    stopped = ada.post(f"/v1/jobs/{mine}/stop")
    assert stopped.status_code == 200
    assert (stopped.json()["state"], stopped.json()["ended_ms"] is None) == ("stopped", False)
    assert ada.get("/v1/queue").json()["items"] == []
    assert ada.post(f"/v1/jobs/{mine}/stop").json() == stopped.json()
    assert [e["finish"] for e in ada.get(f"/v1/jobs/{mine}/events").json()["items"]] == ["queued", "stopped"]


def test_stopping_what_runs_asks_it_to_end_once(platform: Platform, ada: TestClient, mine: str) -> None:
    run_it(platform, mine)
    first = ada.post(f"/v1/jobs/{mine}/stop").json()
    assert (first["state"], first["stop_requested_ms"] is None) == ("running", False)
    assert ("workload", mine) in platform.woken
    assert ada.post(f"/v1/jobs/{mine}/stop").json() == first


@pytest.mark.parametrize("end", [WorkloadState.SUCCEEDED, WorkloadState.FAILED])
def test_what_has_ended_stays_as_it_ended(platform: Platform, ada: TestClient, mine: str, end: WorkloadState) -> None:
    run_it(platform, mine)
    with platform.store.write() as session:
        step(session, session.get_one(Workload, mine), end, now_ms=3)
    before = ada.get(f"/v1/jobs/{mine}").json()
    assert ada.post(f"/v1/jobs/{mine}/stop").json() == before
    assert (before["state"], before["stop_requested_ms"]) == (end.value, None)


def test_an_operator_may_stop_a_tenant_s_job(platform: Platform, mine: str) -> None:
    assert platform.client("olga").post(f"/v1/jobs/{mine}/stop").json()["state"] == "stopped"


def test_a_viewer_may_look_but_not_touch(platform: Platform, mine: str) -> None:
    vic = platform.client("vic")
    assert vic.get(f"/v1/jobs/{mine}").status_code == 200
    assert vic.post(f"/v1/jobs/{mine}/stop").status_code == 403
    assert vic.post("/v1/jobs", json=job()).status_code == 403
    assert vic.post(f"/v1/jobs/{mine}/kill-worker", json={"rank": 1}).status_code == 403


def test_why_gives_the_broker_s_word_and_the_place_in_the_queue(platform: Platform, ada: TestClient, mine: str) -> None:
    told = Explanation("waiting_for_capacity", "it lacks 2 cpu", "others end", {"lacking": {"cpu": 2000}})
    with platform.store.write() as session:
        session.get_one(Workload, mine).explanation = told.as_dict()
    why = ada.get(f"/v1/jobs/{mine}/why").json()
    assert (why["code"], why["cause"], why["unblocks"]) == ("waiting_for_capacity", "it lacks 2 cpu", "others end")
    assert (why["facts"], why["position"]) == ({"lacking": {"cpu": 2000}}, 1)


def test_why_of_what_runs_is_its_state(platform: Platform, ada: TestClient, mine: str) -> None:
    run_it(platform, mine)
    why = ada.get(f"/v1/jobs/{mine}/why").json()
    assert (why["code"], why["position"]) == ("running", None)
    assert why["cause"] == "its cluster is ready and its program runs"


def test_a_running_job_shows_where_it_runs_and_what_is_simulated(
    platform: Platform, ada: TestClient, mine: str
) -> None:
    run_it(platform, mine)
    shown = ada.get(f"/v1/jobs/{mine}").json()
    assert shown["cluster"] == {"id": "clu-0000000000a1", "state": "granting", "ready_ms": None}
    where = [(p["rank"], p["pool"], p["capacity_type"], p["simulated"]) for p in shown["placements"]]
    assert where == [(0, "rack", "reserved", False), (1, "rack", "reserved", False), (2, "cloud", "on_demand", True)]
    kinds = {(e["kind"], e["entity_id"]) for e in ada.get(f"/v1/jobs/{mine}/events").json()["items"]}
    assert ("cluster", "clu-0000000000a1") in kinds
    assert ("lease", "lea-0000000000a2") in kinds


def test_the_nodes_show_what_is_used_and_hide_whose_they_are(
    platform: Platform, ada: TestClient, bob: TestClient, mine: str
) -> None:
    run_it(platform, mine)
    from polyray.store.tables import Node

    with platform.store.write() as session:
        session.get_one(Node, "nod-0000000000b2").launched_for = mine
    for client, owner in ((ada, mine), (bob, None), (platform.client("olga"), mine)):
        nodes = {n["node_id"]: n for n in client.get("/v1/nodes").json()["items"]}
        assert nodes["nod-0000000000b2"]["launched_for"] == owner
        assert nodes["nod-0000000000a1"]["used"] == {"cpu": 2000}


def test_killing_a_worker_is_passed_on_and_told(platform: Platform, ada: TestClient, mine: str) -> None:
    run_it(platform, mine)
    answer = ada.post(f"/v1/jobs/{mine}/kill-worker", json={"rank": 1})
    assert (answer.status_code, platform.killed) == (202, [(mine, 1)])
    last = ada.get(f"/v1/jobs/{mine}/events").json()["items"][-1]
    assert last["reason"] == "ada had the worker of rank 1 killed"


@pytest.mark.parametrize("rank", [3, -1, 1.0, "1", True, None, 2**63])
def test_a_rank_that_is_not_there_is_refused(platform: Platform, ada: TestClient, mine: str, rank: Any) -> None:
    run_it(platform, mine)
    answer = ada.post(f"/v1/jobs/{mine}/kill-worker", json={"rank": rank})
    assert (answer.status_code, answer.json()["field"]) == (422, "rank")
    assert platform.killed == []


def test_a_job_that_does_not_run_has_no_worker_to_kill(platform: Platform, ada: TestClient, mine: str) -> None:
    assert ada.post(f"/v1/jobs/{mine}/kill-worker", json={"rank": 0}).status_code == 409
    run_it(platform, mine)
    with platform.store.write() as session:
        for rank in range(3):
            lease = session.get_one(Lease, f"lea-0000000000a{rank}")
            step(session, lease, LeaseState.RELEASING, now_ms=3)
    assert ada.post(f"/v1/jobs/{mine}/kill-worker", json={"rank": 0}).status_code == 422
    assert platform.killed == []


def test_a_service_has_its_url_at_the_gateway(ada: TestClient) -> None:
    shown = ada.post("/v1/services", json={"kind": "service", "name": "digits", "app": "app:app"}).json()
    assert shown["url"] == "http://127.0.0.1:8471/serve/digits/"
    assert ada.get("/v1/services/digits").json()["id"] == shown["id"]


def test_a_clock_that_was_set_back_shows_no_wait_of_minus_something(
    platform: Platform, ada: TestClient, mine: str
) -> None:
    with platform.store.write() as session:
        session.get_one(Workload, mine).queued_ms += 10_000_000
    assert ada.get("/v1/queue").json()["items"][0]["wait_ms"] == 0
