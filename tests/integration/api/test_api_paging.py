"""Lists by pages (C12): each row once, whatever arrives meanwhile."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from conftest import Tier
from polyray.core.ids import new_id
from polyray.core.spec import parse_workload
from polyray.store.steps import created
from polyray.store.tables import Workload
from support.api import Platform, job

NOW_MS = 1_790_000_000_000
SPEC = parse_workload(job()).model_dump(mode="json")


def add_jobs(platform: Platform, count: int, *, tenant: str = "vision", at_ms: int = NOW_MS) -> list[str]:
    """Queue jobs, ten in each millisecond."""
    ids = [new_id("job") for _ in range(count)]
    with platform.store.write() as session:
        for n, workload_id in enumerate(ids):
            row = Workload(
                workload_id=workload_id,
                kind="job",
                tenant=tenant,
                project="default",
                name="digits",
                submitted_by="ada",
                spec=SPEC,
                created_ms=at_ms + n // 10,
                queued_ms=at_ms + n // 10,
            )
            created(session, row, now_ms=at_ms, reason="submitted")
    return ids


def test_500_jobs_are_listed_once_each_while_new_ones_arrive(platform: Platform, ada: TestClient) -> None:
    there = add_jobs(platform, 500)
    add_jobs(platform, 50, tenant="speech")
    seen: list[str] = []
    cursor, later = None, NOW_MS + 1000
    while True:
        page = ada.get("/v1/jobs", params={"limit": 37, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in page["items"]]
        add_jobs(platform, 5, at_ms=later)
        later += 1000
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 500
    assert set(seen) == set(there)


def test_ten_thousand_queued_jobs_are_read_by_pages_of_which_none_is_large(
    platform: Platform, ada: TestClient, tier: Tier
) -> None:
    count = tier.pick(quick=2000, full=10_000)
    there = add_jobs(platform, count)
    for path in ("/v1/jobs", "/v1/queue"):
        seen: list[str] = []
        cursor = None
        while True:
            answer = ada.get(path, params={"limit": 200, **({"cursor": cursor} if cursor else {})})
            assert len(answer.content) < 400_000
            page = answer.json()
            assert len(page["items"]) <= 200
            seen += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert sorted(seen) == sorted(there), path
    assert len(ada.get("/v1/jobs").json()["items"]) <= 100, "without a limit it is a page, too"
    assert ada.get("/v1/jobs?limit=100000").status_code == 422


def test_the_newest_come_first_and_filters_hold(platform: Platform, ada: TestClient) -> None:
    add_jobs(platform, 30)
    newest = ada.post("/v1/jobs", json=job(name="other")).json()["id"]
    items = ada.get("/v1/jobs").json()["items"]
    assert items[0]["id"] == newest
    assert [i["created_ms"] for i in items] == sorted((i["created_ms"] for i in items), reverse=True)
    assert [i["id"] for i in ada.get("/v1/jobs?name=other").json()["items"]] == [newest]
    assert ada.get("/v1/jobs?state=running").json()["items"] == []


def test_the_queue_is_paged_in_order_with_true_positions(platform: Platform, ada: TestClient) -> None:
    add_jobs(platform, 60)
    add_jobs(platform, 60, tenant="speech", at_ms=NOW_MS + 3)
    first = ada.post("/v1/jobs", json=job(priority="high")).json()["id"]
    last = ada.post("/v1/jobs", json=job(priority="low")).json()["id"]
    entries, cursor = [], None
    while True:
        page = ada.get("/v1/queue", params={"limit": 25, **({"cursor": cursor} if cursor else {})}).json()
        entries += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [entry["position"] for entry in entries] == list(range(1, 123))
    assert (entries[0]["id"], entries[-1]["id"]) == (first, last)
    assert ada.get(f"/v1/jobs/{first}/why").json()["position"] == 1
    assert ada.get(f"/v1/jobs/{last}/why").json()["position"] == 122
    others = [entry for entry in entries if not entry["yours"]]
    assert len(others) == 60
    assert all(v is None for entry in others for k, v in entry.items() if k not in {"position", "yours"})


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=-1", "limit=x", "cursor=x", "cursor=W10", "state=lost"]
)
def test_a_page_that_makes_no_sense_is_refused_by_name(shared_ada: TestClient, query: str) -> None:
    answer = shared_ada.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, query.partition("=")[0])
