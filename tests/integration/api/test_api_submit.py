"""Submitting workloads: what is wrong is refused at once, by field, and nothing of it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from polyray.store.tables import Event, Tenant, Workload
from support.api import Platform, job, manifest_of, put_blob


def stored(platform: Platform) -> int:
    with platform.store.read() as session:
        return session.scalar(select(func.count()).select_from(Workload)) or 0


def test_a_job_is_queued_for_the_tenant_of_the_token(platform: Platform, ada: TestClient) -> None:
    answer = ada.post("/v1/jobs", json=job(resources={"cpu": 2, "memory": "4GiB"}, workers=2))
    assert answer.status_code == 201
    shown = answer.json()
    assert (shown["tenant"], shown["state"], shown["submitted_by"]) == ("vision", "queued", "ada")
    assert shown["cluster"] is None
    assert shown["placements"] == []
    assert ("broker", "cycle") in platform.woken
    assert ada.get(f"/v1/jobs/{shown['id']}").json() == shown


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        ({"gpu": -1}, "resources.gpu"),
        ({"gpu": 1.5}, "resources.gpu"),
        ({"gpu": 1e9}, "resources.gpu"),
        ({"gpu": 9223372036854775807}, "resources.gpu"),
        ({"gpu": "1"}, "resources.gpu"),
        ({"gpu": True}, "resources.gpu"),
        ({"gpu": 1e-9}, "resources.gpu"),
        ({"gpu": [1]}, "resources.gpu"),
        ({"gpu": None}, "resources.gpu"),
        ({"gpu": "h100:-3"}, "resources.gpu"),
        ({"gpu": "h100:1.5"}, "resources.gpu"),
        ({"cpu": 0}, "resources.cpu"),
        ({"cpu": -1}, "resources.cpu"),
        ({"cpu": "2"}, "resources.cpu"),
        ({"memory": 0}, "resources.memory"),
        ({"memory": 2**63}, "resources.memory"),
        ({"memory": -1}, "resources.memory"),
        ({"memory": 1.5}, "resources.memory"),
        ({"tpu": 1}, "resources"),
        ([], "resources"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(
    shared_platform: Platform, shared_ada: TestClient, resources: Any, field: str
) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(resources=resources))
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == field
    assert stored(shared_platform) == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-0.5", "0.0001", "1" * 4000])
@pytest.mark.parametrize("key", ["gpu", "cpu"])
def test_numbers_that_json_should_not_have_are_refused_by_name(
    shared_platform: Platform, shared_ada: TestClient, key: str, number: str
) -> None:
    body = f'{{"kind": "job", "name": "x", "run": "true", "resources": {{"{key}": {number}}}}}'
    answer = shared_ada.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["field"] == f"resources.{key}"
    assert stored(shared_platform) == 0


@pytest.mark.parametrize("workers", [0, -3, 1001, 2**63, 1.0, "2", True, None])
def test_a_number_of_workers_that_makes_no_sense_is_refused(
    shared_platform: Platform, shared_ada: TestClient, workers: object
) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(workers=workers))
    assert (answer.status_code, answer.json()["field"]) == (422, "workers")
    assert stored(shared_platform) == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"resources": {"gpu": "h100:9"}}, "resources"),
        ({"resources": {"cpu": 64}}, "resources"),
        ({"resources": {"cpu": 8, "memory": "8GiB"}, "workers": 9}, "workers"),
        ({"resources": {"cpu": 1, "memory": "512GiB"}}, "resources"),
        ({"resources": {"gpu": "mi300:1"}}, "resources"),
        ({"capacity": ["spot"]}, "capacity"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_nearest_that_can(
    shared_platform: Platform, shared_ada: TestClient, changes: dict[str, Any], field: str
) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(**changes))
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert (problem["code"], problem["field"]) == ("infeasible", field)
    assert problem["hint"]
    assert stored(shared_platform) == 0


@pytest.mark.parametrize("gpu", [0, 0.1, 0.5, 1, 1.0, 8, "h100", "h100:1", "h100:0.5"])
def test_a_part_of_one_device_or_a_whole_number_of_them_may_be_asked_for(
    platform: Platform, ada: TestClient, gpu: object
) -> None:
    assert ada.post("/v1/jobs", json=job(resources={"gpu": gpu})).status_code == 201


@pytest.mark.parametrize(
    "name",
    [
        "RAY_ADDRESS",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_AUTH_MODE",
        "POLYRAY_TENANT",
        "POLYRAY_WORKLOAD_ID",
        "POLYRAY_RUN_DIR",
        "LD_PRELOAD",
        "PYTHONPATH",
        "PYTHONHOME",
        "CUDA_VISIBLE_DEVICES",
        "PATH",
        "HOME",
        "TMPDIR",
    ],
)
@pytest.mark.parametrize("kind", ["job", "session", "service"])
def test_a_variable_of_the_platform_is_refused_by_name_whatever_else_is_set(
    shared_platform: Platform, shared_ada: TestClient, kind: str, name: str
) -> None:
    body = {"kind": kind, "name": "x", "env": {"A": "1", name: "mine"}}
    body |= {"job": {"run": "true"}, "service": {"app": "a:b"}}.get(kind, {})
    answer = shared_ada.post(f"/v1/{kind}s", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, f"env.{name}")
    assert "belongs to the platform" in answer.json()["detail"]
    assert stored(shared_platform) == 0


def test_asking_nothing_of_a_gpu_needs_no_gpu(ada: TestClient) -> None:
    assert ada.post("/v1/jobs", json=job(resources={"gpu": 0})).status_code == 201


@pytest.mark.parametrize(
    "column",
    sorted({c.name for table in (Workload, Tenant) for c in table.__table__.columns} - {"kind", "name", "project"}),
)
def test_no_column_of_ours_can_be_set_from_outside(
    shared_platform: Platform, shared_ada: TestClient, column: str
) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(**{column: "speech"}))
    assert (answer.status_code, answer.json()["field"]) == (422, column)
    assert stored(shared_platform) == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "session"}, "kind"),
        ({"kind": "cronjob"}, "kind"),
        ({"project": "other"}, "project"),
        ({"datasets": ["digits@1"]}, "datasets"),
        ({"datasets": ["digits"]}, "datasets"),
        ({"working_dir": "."}, "working_dir"),
        ({"working_dir": "0" * 64}, "working_dir"),
        ({"working_dir": "../" + "0" * 61}, "working_dir"),
        ({"run": ""}, "run"),
        ({"run": None}, "run"),
        ({"run": "a\0b"}, "run"),
        ({"app": "a:b"}, "app"),
        ({"model": "m@1"}, "model"),
        ({"env": {"RAY_ADDRESS": "x"}}, "env.RAY_ADDRESS"),
        ({"env": {"A": 1}}, "env.A"),
        ({"max_cost": -1}, "max_cost"),
        ({"max_duration": "5"}, "max_duration"),
        ({"capacity": []}, "capacity"),
        ({"retry": {"limit": -1}}, "retry.limit"),
        ({"retry": {"on": ["preempted"], "forever": True}}, "retry.forever"),
        ({"priority": "urgent"}, "priority"),
        ({"gpus": 1}, "gpus"),
    ],
)
def test_a_bad_key_is_refused_by_name(
    shared_platform: Platform, shared_ada: TestClient, changes: dict[str, Any], field: str
) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(**changes))
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert stored(shared_platform) == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"job"', b"\xff", b'{"a": ' * 50_000, b"[" * 100_000])
def test_what_is_no_workload_at_all_is_refused(shared_platform: Platform, shared_ada: TestClient, body: bytes) -> None:
    answer = shared_ada.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in {413, 422}
    assert answer.headers["content-type"] == "application/problem+json"
    assert stored(shared_platform) == 0


def test_half_a_surrogate_pair_is_refused_and_not_a_crash(shared_platform: Platform, shared_ada: TestClient) -> None:
    for key in ("run", "name", "project"):
        body = f'{{"kind": "job", "name": "x", "run": "true", "{key}": "\\ud800"}}'
        answer = shared_ada.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["field"]) == (422, key)
    assert stored(shared_platform) == 0


def test_what_another_tenant_has_is_not_there(ada: TestClient, bob: TestClient) -> None:
    code = put_blob(bob, b"code")
    part = put_blob(bob, b"part")
    body = {"name": "digits", "stage": "raw", "manifest": manifest_of("digits", [b"part"])}
    assert bob.post("/v1/datasets", json=body).status_code == 201
    assert bob.post("/v1/jobs", json=job(working_dir=code, datasets=["digits@1"])).status_code == 201
    assert ada.post("/v1/jobs", json=job(working_dir=code)).json()["field"] == "working_dir"
    assert ada.post("/v1/jobs", json=job(datasets=["digits@1"])).json()["field"] == "datasets"
    assert ada.head(f"/v1/blobs/{part}").status_code == 404


def test_a_live_session_or_service_has_its_name_alone(ada: TestClient, bob: TestClient) -> None:
    for kind, more in (("session", {}), ("service", {"app": "app:app"})):
        body = {"kind": kind, "name": "default", **more}
        first = ada.post(f"/v1/{kind}s", json=body).json()
        second = ada.post(f"/v1/{kind}s", json=body)
        assert (second.status_code, second.json()["field"]) == (409, "name")
        assert bob.post(f"/v1/{kind}s", json=body).status_code == 201
        assert ada.get(f"/v1/{kind}s/default").json()["id"] == first["id"]
        assert ada.post(f"/v1/{kind}s/default/stop").json()["state"] == "stopped"
        assert ada.get(f"/v1/{kind}s/default").status_code == 404
        assert ada.post(f"/v1/{kind}s", json=body).status_code == 201


def test_jobs_may_share_a_name(ada: TestClient) -> None:
    assert [ada.post("/v1/jobs", json=job()).status_code for _ in range(2)] == [201, 201]


def test_a_name_that_looks_like_an_id_is_refused(ada: TestClient) -> None:
    answer = ada.post("/v1/sessions", json={"kind": "session", "name": "ses-0123456789ab"})
    assert (answer.status_code, answer.json()["field"]) == (422, "name")


def test_a_dry_run_is_a_priced_plan_and_stores_nothing(platform: Platform, ada: TestClient) -> None:
    body = job(resources={"cpu": 4, "memory": "4GiB"}, workers=4, max_duration="30m")
    plan = ada.post("/v1/jobs?dry_run=true", json=body).json()
    assert [(offer["offering"], offer["nodes"]) for offer in plan["offers"]] == [("rack", 2), ("cloud", 3)]
    assert plan["offers"][1]["simulated"]
    assert plan["usd_micros_per_hour"] == 800_000
    assert plan["max_usd_micros"] == 400_000
    capped = ada.post("/v1/jobs?dry_run=true", json=body | {"max_cost": 0.25}).json()
    assert capped["max_usd_micros"] == 250_000
    assert plan["total"] == {"cpu": 17_000, "memory": 17 * 2**30}
    assert stored(platform) == 0
    assert ada.post("/v1/jobs?dry_run=true", json=job(resources={"cpu": 64})).status_code == 422


def test_a_refused_workload_leaves_no_event_and_an_accepted_one_does(platform: Platform, ada: TestClient) -> None:
    ada.post("/v1/jobs", json=job(workers=0))
    shown = ada.post("/v1/jobs", json=job()).json()
    with platform.store.read() as session:
        told = session.scalars(select(Event.entity_id).where(Event.kind == "workload")).all()
    assert told == [shown["id"]]
    events = ada.get(f"/v1/jobs/{shown['id']}/events").json()["items"]
    assert [(event["start"], event["finish"]) for event in events] == [("", "queued")]
