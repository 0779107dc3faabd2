"""What holds for every operation of the OpenAPI document, whoever adds one (T04, T05, T06)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from polyray.api.app import PUBLIC_PATHS
from polyray.api.deps import guarded_router
from polyray.identity.policy import ALLOWED, Action, allowed
from support.api import Platform, job, lines_of, manifest_of, put_blob

METHODS = {"get", "head", "post", "put", "delete", "patch"}

#: A body that each operation would take, so that what is refused is refused for the right reason.
BODIES: dict[str, Any] = {
    "/v1/jobs": job(),
    "/v1/sessions": {"kind": "session", "name": "mine"},
    "/v1/services": {"kind": "service", "name": "mine", "app": "app:app"},
    "/v1/jobs/{workload}/kill-worker": {"rank": 0},
    "/v1/datasets": {"name": "d", "stage": "raw", "manifest": {}},
    "/v1/models": {"name": "m", "job_id": "job-0123456789ab", "path": "artifacts"},
    "/v1/keys": {"name": "k"},
    "/v1/platform": {},
    "/v1/token": {"subject_token": "x"},
}


def operations(platform: Platform) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, item in platform.app.openapi()["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def send(client: TestClient, method: str, path: str, template: str) -> Any:
    body = BODIES.get(template)
    return client.request(method, path, json=body) if body is not None else client.request(method, path)


def fill(path: str, value: str) -> str:
    return (
        path.replace("{workload}", value)
        .replace("{sha256}", "a" * 64)
        .replace("{key_id}", value)
        .replace("{name}", value)
        .replace("{version}", "1")
    )


def test_every_operation_names_an_action_of_the_policy_table(shared_platform: Platform) -> None:
    found = operations(shared_platform)
    assert len(found) > 40
    for method, path, operation in found:
        action = operation["x-polyray-action"]
        if action == "public":
            assert path in PUBLIC_PATHS, f"{method} {path}"
        else:
            assert Action(action) in ALLOWED, f"{method} {path}"
            assert path not in PUBLIC_PATHS


def test_a_route_that_names_no_action_cannot_be_written() -> None:
    router = guarded_router("/v1/open", "open")
    with pytest.raises(TypeError, match="names no action"):

        @router.get("")
        def forgotten() -> None: ...


def test_without_a_credential_everything_is_closed_but_the_public_paths(shared_platform: Platform) -> None:
    stranger = shared_platform.client()
    for method, path, operation in operations(shared_platform):
        answer = send(stranger, method, fill(path, "job-0123456789ab"), path)
        if operation["x-polyray-action"] == "public":
            assert answer.status_code in {200, 503} or path == "/v1/token", f"{method} {path}"
            continue
        assert answer.status_code == 401, f"{method} {path}"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        if method != "HEAD":
            assert answer.json()["code"] == "unauthenticated"
            assert answer.json()["reason"] == "no_token"
    assert stranger.get("/v1/nothing").status_code == 401
    assert stranger.get("/v1/jobs/").status_code == 401


@pytest.mark.parametrize("token", ["x", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", "pr_" + "x" * 40, " ", "é"])
def test_a_credential_that_is_none_of_ours_is_refused(shared_platform: Platform, token: str) -> None:
    answer = shared_platform.client().get("/v1/whoami", headers=[(b"authorization", f"Bearer {token}".encode())])
    assert answer.status_code == 401
    assert answer.json()["reason"]


def test_two_credentials_are_refused(shared_platform: Platform) -> None:
    good = shared_platform.token("ada")
    headers = [("Authorization", f"Bearer {good}"), ("Authorization", "Bearer other")]
    assert shared_platform.client().get("/v1/whoami", headers=headers).status_code == 401


def test_a_revoked_login_reads_nothing_more(platform: Platform, ada: TestClient) -> None:
    sid = ada.get("/v1/whoami").json()["sid"]
    platform.services.tokens.revoke(sid)
    answer = ada.get("/v1/whoami")
    assert (answer.status_code, answer.json()["reason"]) == (401, "token_revoked")


def test_every_role_may_do_what_the_table_says_and_nothing_else(platform: Platform) -> None:
    clients = {"viewer": platform.client("vic"), "admin": platform.client("ada"), "operator": platform.client("olga")}
    for method, path, operation in operations(platform):
        action = operation["x-polyray-action"]
        if action == "public":
            continue
        for role, client in clients.items():
            answer = send(client, method, fill(path, "job-0123456789ab"), path)
            assert (answer.status_code == 403) == (not allowed(role, action)), f"{role} {method} {path} {answer.text}"


def test_who_may_not_is_told_who_may(platform: Platform) -> None:
    asked = platform.client("vic").post("/v1/jobs", json=job())
    assert asked.json()["hint"] == "ask an admin of your tenant"
    asked = platform.client("olga").get("/v1/jobs/job-0123456789ab/logs")
    assert "polyray login --tenant" in asked.json()["hint"]


def test_a_foreign_id_reads_exactly_as_an_absent_one(platform: Platform, ada: TestClient, bob: TestClient) -> None:
    """Every operation with a path parameter, with ids of another tenant: the same answer, but for the name itself."""
    code = put_blob(bob, b"theirs")
    ids = {
        "jobs": bob.post("/v1/jobs", json=job(working_dir=code)).json()["id"],
        "sessions": bob.post("/v1/sessions", json={"kind": "session", "name": "theirs"}).json()["id"],
        "services": bob.post("/v1/services", json={"kind": "service", "name": "theirs", "app": "a:b"}).json()["id"],
        "keys": bob.post("/v1/keys", json={"name": "theirs"}).json()["key_id"],
        "datasets": "theirs",
        "models": "theirs",
        "blobs": code,
    }
    log = platform.layout.driver_log("speech", ids["jobs"])
    log.parent.mkdir(parents=True)
    log.write_bytes(b"their secret\n")
    platform.layout.records("speech", ids["jobs"]).write_bytes(lines_of({"type": "metrics"}))
    body = {"name": "theirs", "stage": "raw", "manifest": manifest_of("theirs", [b"theirs"])}
    assert bob.post("/v1/datasets", json=body).status_code == 201
    checked = 0
    for method, path, _ in operations(platform):
        if "{" not in path or method == "PUT":
            continue
        foreign = ids[path.split("/")[2]]
        absent = foreign[:-1] + ("0" if foreign[-1] != "0" else "1")
        theirs, none = (
            send(ada, method, fill(path, i).replace("a" * 64, i if len(i) == 64 else "a" * 64), path)
            for i in (foreign, absent)
        )
        assert theirs.status_code == none.status_code == 404, f"{method} {path}: {theirs.text}"
        assert scrubbed(theirs, foreign) == scrubbed(none, absent), f"{method} {path}"
        assert {k: v for k, v in theirs.headers.items() if k not in {"x-request-id", "content-length"}} == {
            k: v for k, v in none.headers.items() if k not in {"x-request-id", "content-length"}
        }
        checked += 1
    assert checked >= 20
    for client, kind in ((ada, "sessions"), (ada, "services")):
        assert client.get(f"/v1/{kind}/theirs").status_code == 404
    assert ada.get(f"/v1/costs?workload={ids['jobs']}").status_code == 404
    assert ada.post("/v1/models", json={"name": "m", "job_id": ids["jobs"], "path": "artifacts"}).status_code == 422
    for listing in ("jobs", "sessions", "services", "keys", "datasets", "models"):
        assert ada.get(f"/v1/{listing}").json()["items"] == []
    assert bob.get(f"/v1/jobs/{ids['jobs']}").json()["state"] == "queued"


def scrubbed(answer: Any, name: str) -> Any:
    if not answer.content:
        return None
    problem = json.loads(answer.text.replace(name, "NAME"))
    problem.pop("request_id")
    return problem


def test_a_body_with_a_key_too_many_is_refused_by_that_key(shared_platform: Platform) -> None:
    clients = {"/v1/platform": shared_platform.client("olga")}
    member = shared_platform.client("ada")
    for method, path, _ in operations(shared_platform):
        if method != "POST" or path not in BODIES or "{" in path:
            continue
        body = {**BODIES[path], "tenant_id": "speech"}
        answer = clients.get(path, member).request(method, path, json=body)
        assert answer.status_code == 422, f"{method} {path} {answer.text}"
        assert answer.json()["field"] == "tenant_id", f"{method} {path}"
        assert answer.json()["code"] == "invalid"


def test_a_tenant_in_the_query_or_a_header_changes_nothing(ada: TestClient, bob: TestClient) -> None:
    theirs = bob.post("/v1/jobs", json=job()).json()["id"]
    headers = {"X-Tenant": "speech", "X-Forwarded-User": "bob", "X-Polyray-Tenant": "speech"}
    assert ada.get("/v1/jobs?tenant=speech", headers=headers).json()["items"] == []
    assert ada.get(f"/v1/jobs/{theirs}?tenant=speech", headers=headers).status_code == 404


def test_operators_see_workloads_of_all_tenants_but_not_what_is_in_them(platform: Platform, ada: TestClient) -> None:
    mine = ada.post("/v1/jobs", json=job(env={"PASSWORD": "hunter2"})).json()["id"]
    olga = platform.client("olga")
    shown = olga.get(f"/v1/jobs/{mine}")
    assert shown.json()["tenant"] == "vision"
    assert "hunter2" not in shown.text
    assert "hunter2" in ada.get(f"/v1/jobs/{mine}").text
    assert olga.get(f"/v1/jobs/{mine}/logs").status_code == 403
    assert olga.post("/v1/jobs", json=job()).status_code == 403
    assert {t["name"] for t in olga.get("/v1/tenants").json()["items"]} == {"speech", "vision"}
    assert {t["name"] for t in ada.get("/v1/tenants").json()["items"]} == {"vision"}
