"""Datasets, models and keys through the API."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from polyray.core.clock import VirtualClock
from support.api import Platform, job, lines_of, manifest_of, put_blob


def publish(client: TestClient, **changes: Any) -> Any:
    manifest = manifest_of("digits", [b"one", b"two"], **changes)
    return client.post("/v1/datasets", json={"name": "digits", "stage": "raw", "manifest": manifest})


@pytest.fixture
def parts(ada: TestClient) -> None:
    put_blob(ada, b"one")
    put_blob(ada, b"two")


@pytest.mark.usefixtures("parts")
def test_a_dataset_version_is_its_manifest_and_its_files_by_name(platform: Platform, ada: TestClient) -> None:
    answer = publish(ada)
    assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert (shown["version"], shown["rows"], shown["files"], shown["size_bytes"]) == (1, 20, 2, 6)
    directory = platform.layout.dataset("vision", "digits", 1)
    assert (directory / "files" / "part-0.parquet").read_bytes() == b"one"
    assert json.loads((directory / "manifest.json").read_bytes())["name"] == "digits"
    detail = ada.get("/v1/datasets/digits/1").json()
    assert detail["digest"] == shown["digest"]
    assert [file["name"] for file in detail["manifest"]["files"]] == ["part-0.parquet", "part-1.parquet"]
    assert [p.name for p in directory.parent.iterdir()] == ["1"]


@pytest.mark.usefixtures("parts")
def test_versions_count_up_also_when_published_at_once(platform: Platform, ada: TestClient) -> None:
    barrier = threading.Barrier(6)

    def one(_: int) -> int:
        barrier.wait()
        with platform.client() as client:
            client.headers["Authorization"] = ada.headers["Authorization"]
            return int(publish(client).json()["version"])

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(one, range(6))) == [1, 2, 3, 4, 5, 6]
    items = ada.get("/v1/datasets?limit=4").json()
    assert [item["version"] for item in items["items"]] == [6, 5, 4, 3]
    rest = ada.get("/v1/datasets", params={"cursor": items["next_cursor"]}).json()
    assert ([item["version"] for item in rest["items"]], rest["next_cursor"]) == ([2, 1], None)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stage": "approved"}, "stage"),
        ({"name": "Digits"}, "name"),
        ({"name": "other"}, "manifest"),
        ({"stage": "processed"}, "manifest"),
        ({"manifest": {}}, "manifest"),
        ({"manifest": manifest_of("digits", [b"absent"])}, "manifest.files[0].sha256"),
        ({"manifest": manifest_of("digits", [b"one"], rows=9)}, "rows"),
        ({"manifest": manifest_of("digits", [b"one"], lineage={"parents": ["x@1"]})}, "manifest.lineage.parents"),
        ({"manifest": manifest_of("digits", [b"one"], lineage={"job": "job-0123456789ab"})}, "manifest.lineage.job"),
        ({"approved_by": "ada"}, "approved_by"),
        ({"version": 7}, "version"),
    ],
)
def test_a_dataset_that_is_none_is_refused_by_field(
    platform: Platform, ada: TestClient, body: dict[str, Any], field: str
) -> None:
    good = {"name": "digits", "stage": "raw", "manifest": manifest_of("digits", [b"one"])}
    answer = ada.post("/v1/datasets", json={**good, **body})
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert ada.get("/v1/datasets").json()["items"] == []
    assert not list(platform.layout.root.glob("tenants/vision/datasets/*/*"))


@pytest.mark.usefixtures("parts")
def test_a_size_that_is_not_the_blob_s_is_refused(ada: TestClient) -> None:
    manifest = manifest_of("digits", [b"one"])
    manifest["files"][0]["size_bytes"] = 4
    answer = ada.post("/v1/datasets", json={"name": "digits", "stage": "raw", "manifest": manifest})
    assert answer.json()["field"] == "manifest.files[0].size_bytes"


@pytest.mark.usefixtures("parts")
def test_a_job_may_use_a_published_version_only(ada: TestClient) -> None:
    publish(ada)
    assert ada.post("/v1/jobs", json=job(datasets=["digits@1"])).status_code == 201
    assert ada.post("/v1/jobs", json=job(datasets=["digits@2"])).json()["field"] == "datasets"


def test_a_model_is_what_a_job_wrote_and_a_service_may_serve_it(platform: Platform, ada: TestClient) -> None:
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    run = platform.layout.run("vision", mine)
    (run / "artifacts" / "model").mkdir(parents=True)
    (run / "artifacts" / "model" / "weights.bin").write_bytes(b"weights")
    (run / "records.jsonl").write_bytes(lines_of({"type": "metrics", "metrics": {"accuracy": 0.97}}))
    body = {"name": "digits", "job_id": mine, "path": "artifacts/model"}
    answer = ada.post("/v1/models", json=body)
    assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert (shown["name"], shown["version"], shown["created_by"]) == ("digits", 1, "ada")
    assert [file["path"] for file in shown["files"]] == ["weights.bin"]
    assert ada.get("/v1/models/digits/1").json() == shown
    assert ada.get("/v1/models").json()["items"] == [shown]
    service = {"kind": "service", "name": "digits", "app": "app:app", "model": "digits@1"}
    assert ada.post("/v1/services", json=service).status_code == 201
    absent = ada.post("/v1/services", json={**service, "name": "other", "model": "digits@2"})
    assert (absent.status_code, absent.json()["field"]) == (422, "model")


@pytest.mark.parametrize("path", ["../../../keys", "/etc/passwd", "none", "", "a\0b", "artifacts/../.."])
def test_a_model_s_path_stays_in_its_run(platform: Platform, ada: TestClient, path: str) -> None:
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    (platform.layout.run("vision", mine) / "artifacts").mkdir(parents=True)
    answer = ada.post("/v1/models", json={"name": "m", "job_id": mine, "path": path})
    assert answer.status_code in {404, 422}
    assert ada.get("/v1/models").json()["items"] == []


def test_a_key_is_shown_once_and_ends_when_revoked(platform: Platform, ada: TestClient) -> None:
    made = ada.post("/v1/keys", json={"name": "web", "service": "digits", "ttl_days": 7}).json()
    assert made["key"].startswith("pr_")
    (listed,) = ada.get("/v1/keys").json()["items"]
    assert "key" not in listed
    assert (listed["key_id"], listed["service"], listed["revoked_ms"]) == (made["key_id"], "digits", None)
    assert listed["expires_ms"] - listed["created_ms"] == 7 * 86_400_000
    assert [ada.delete(f"/v1/keys/{made['key_id']}").status_code for _ in range(2)] == [204, 204]
    assert ada.get("/v1/keys").json()["items"][0]["revoked_ms"] is not None
    assert platform.woken.count(("routes", "all")) == 3


@pytest.mark.parametrize("moved_seconds", [-3600, 3600])
def test_a_key_lives_as_long_as_was_asked_by_the_clock_that_the_gateway_judges_it_by(
    platform: Platform, ada: TestClient, moved_seconds: int
) -> None:
    wall = platform.services.tokens.now_ms()
    steady = VirtualClock(wall + moved_seconds * 1000)
    platform.app.state.services = replace(platform.services, clock=steady)
    made = ada.post("/v1/keys", json={"name": "web", "ttl_days": 1}).json()
    assert abs(made["expires_ms"] - wall - 86_400_000) < 60_000
    assert ada.delete(f"/v1/keys/{made['key_id']}").status_code == 204
    assert abs(ada.get("/v1/keys").json()["items"][0]["revoked_ms"] - wall) < 60_000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "K"}, "name"),
        ({"name": "k", "service": "../x"}, "service"),
        ({"name": "k", "ttl_days": 0}, "ttl_days"),
        ({"name": "k", "ttl_days": 366}, "ttl_days"),
        ({"name": "k", "ttl_days": "7"}, "ttl_days"),
        ({"name": "k", "ttl_days": True}, "ttl_days"),
        ({"name": "k", "tenant": "speech"}, "tenant"),
        ({}, "name"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused_by_field(shared_ada: TestClient, body: Any, field: str) -> None:
    answer = shared_ada.post("/v1/keys", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


@pytest.mark.parametrize("query", ["month=2026-13", "month=x", "workload=x", "workload=clu-0123456789ab"])
def test_costs_of_nothing_are_refused(shared_ada: TestClient, query: str) -> None:
    assert shared_ada.get(f"/v1/costs?{query}").status_code in {404, 422}


def test_costs_are_those_of_the_caller_s_tenant(platform: Platform, ada: TestClient) -> None:
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    for query in (f"workload={mine}", "month=2026-03", ""):
        shown = ada.get(f"/v1/costs?{query}").json()
        assert (shown["tenant"], shown["usd_micros"], shown["lines"]) == ("vision", 0, [])
    assert ada.get(f"/v1/costs?workload={mine}&month=2026-03").json()["field"] == "month"
