"""What every request passes, and how every refusal reads."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from polyray.api.deps import GuardedRoute, Probe, may
from polyray.core import log as logging
from polyray.core.errors import OUTCOMES, Code, PolyrayError, Unavailable
from polyray.identity.policy import Action
from support.api import BASE_URL, Platform, job, make_platform


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "192.168.0.9", ""])
def test_a_name_that_is_not_ours_is_refused_even_with_a_good_token(shared_ada: TestClient, host: str) -> None:
    for path in ("/v1/whoami", "/healthz", "/docs", "/metrics"):
        answer = shared_ada.get(path, headers={"Host": host})
        assert answer.status_code == 403, path
        assert answer.headers["content-type"] == "application/problem+json"


def test_no_page_of_another_origin_may_read_an_answer(shared_ada: TestClient) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("GET", "OPTIONS"):
        answer = shared_ada.request(method, "/v1/jobs", headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_every_answer_says_how_it_is_to_be_treated(shared_platform: Platform, shared_ada: TestClient) -> None:
    answers = [
        shared_ada.get("/v1/jobs"),
        shared_ada.get("/v1/nothing"),
        shared_ada.post("/v1/jobs", json={}),
        shared_platform.client().get("/v1/jobs"),
        shared_platform.client().get("/healthz"),
    ]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert re.fullmatch(r"req-[0-9a-z]{12}", answer.headers["x-request-id"])
        assert "set-cookie" not in answer.headers


def test_a_problem_has_all_its_parts(shared_ada: TestClient) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(workers=0))
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == answer.status_code == 422
    assert problem["type"] == "urn:polyray:problem:invalid"
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert set(problem) == {
        "type",
        "title",
        "status",
        "code",
        "detail",
        "hint",
        "field",
        "retryable",
        "request_id",
    }


@pytest.fixture
def failing(platform: Platform) -> FastAPI:
    """The platform's app with a route that raises what it is told to."""
    app = platform.app
    errors = {
        **{code.value: PolyrayError(code, "no", "way out", "a.b") for code in Code},
        "unforeseen": RuntimeError(f"password hunter2 in {platform.services.settings.state_dir}"),
        "busy": Unavailable("the database is busy"),
    }

    def fail(name: str) -> None:
        raise errors[name]

    app.router.routes.append(GuardedRoute("/v1/fail/{name}", fail, **may(Action.WHOAMI)))
    return app


def test_every_code_becomes_the_status_of_the_one_table(platform: Platform, ada: TestClient, failing: FastAPI) -> None:
    for code, outcome in OUTCOMES.items():
        answer = ada.get(f"/v1/fail/{code.value}")
        problem = answer.json()
        assert answer.status_code == problem["status"] == outcome.http_status
        assert (problem["code"], problem["field"], problem["hint"]) == (code.value, "a.b", "way out")
    busy = ada.get("/v1/fail/busy")
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")


def test_an_error_that_nobody_foresaw_tells_its_request_id_and_nothing_else(
    platform: Platform, ada: TestClient, failing: FastAPI
) -> None:
    answer = ada.get("/v1/fail/unforeseen")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert answer.json()["request_id"] in answer.json()["hint"]
    for secret in ("hunter2", "Traceback", "RuntimeError", str(platform.services.settings.state_dir), ".py"):
        assert secret not in answer.text
    assert ada.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PATCH", "/v1/jobs", 405), ("DELETE", "/v1/jobs/x", 405), ("GET", "/v1/jobs/", 404)],
)
def test_what_is_no_route_is_a_problem_too(shared_ada: TestClient, method: str, path: str, status: int) -> None:
    answer = shared_ada.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


def test_a_body_beyond_its_bound_is_refused_before_it_is_parsed(shared_ada: TestClient) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(run="x" * 300_000))
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (413, "too_large", "body")

    def chunks() -> object:
        for _ in range(20):
            yield b" " * 65_536

    headers = {"content-type": "application/json"}
    assert shared_ada.post("/v1/jobs", content=chunks(), headers=headers).status_code == 413  # type: ignore[arg-type]


def test_a_stranger_cannot_make_the_api_read_a_body(shared_platform: Platform) -> None:
    answer = shared_platform.client().post("/v1/jobs", content=b"{" * 200_000)
    assert answer.status_code == 401


def test_readiness_names_what_does_not_answer(platform: Platform, ada: TestClient) -> None:
    assert ada.get("/readyz").status_code == 200
    platform.probes["fabric"] = Probe(False, "no socket at fabric.sock")
    answer = platform.client().get("/readyz")
    assert answer.status_code == 503
    assert {c["name"]: c["ok"] for c in answer.json()["components"]} == {
        "store": True,
        "fabric": False,
        "gateway": True,
    }
    assert "fabric.sock" not in answer.text
    assert platform.client().get("/healthz").status_code == 200
    shown = {c["name"]: c for c in ada.get("/v1/status").json()["components"]}
    assert shown["fabric"]["detail"] == "no socket at fabric.sock"


def test_status_names_the_grade_and_what_it_means(ada: TestClient) -> None:
    ada.post("/v1/jobs", json=job())
    shown = ada.get("/v1/status").json()
    assert (shown["grade"], shown["grade_means"]) == ("process", "tenants must trust each other")
    assert shown["gateway_url"] == "http://127.0.0.1:8471"
    assert shown["versions"]["ray"].startswith("2.60")
    assert shown["workloads"] == {"queued": 1}


def test_figures_count_by_route_and_state_and_name_no_tenant(platform: Platform, ada: TestClient) -> None:
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    ada.get(f"/v1/jobs/{mine}")
    ada.get("/v1/unknown/route")
    answer = platform.client().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "polyray_queue_length 1.0" in answer.text
    assert 'polyray_workloads{state="queued"} 1.0' in answer.text
    assert 'polyray_workloads{state="running"} 0.0' in answer.text
    assert 'polyray_http_requests_total{method="GET",route="/v1/jobs/{workload}",status="200"} 1.0' in answer.text
    assert "polyray_http_request_seconds_bucket" in answer.text
    for name in (mine, "vision", "ada", "unknown/route"):
        assert name not in answer.text


def test_two_platforms_in_one_process_keep_their_figures_apart(platform: Platform) -> None:
    other = make_platform(platform.services.settings.state_dir)
    other.client("ada").get("/v1/whoami")
    assert 'route="/v1/whoami"' not in platform.client().get("/metrics").text


def test_the_page_of_the_api_lists_every_operation_and_runs_no_script(shared_platform: Platform) -> None:
    answer = shared_platform.client().get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in answer.text
    document = shared_platform.client().get("/openapi.json").json()
    for path in document["paths"]:
        assert path in answer.text


def test_where_to_log_in_is_told_to_strangers(shared_platform: Platform) -> None:
    shown = shared_platform.client().get("/.well-known/oauth-protected-resource").json()
    assert shown["authorization_servers"] == [f"{BASE_URL}/issuer"]


def test_a_log_line_of_a_request_has_no_token_and_no_query(ada: TestClient) -> None:
    written = io.StringIO()
    with redirect_stderr(written):
        logging.configure("INFO", component="server")
        ada.get("/v1/jobs?name=hush")
    told = written.getvalue()
    assert json.loads(told.splitlines()[-1])["route"] == "/v1/jobs"
    assert "hush" not in told
    assert ada.headers["Authorization"].removeprefix("Bearer ") not in told
