"""The exchange of a login for a platform token (RFC 8693), and what the token then says."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from support.api import Platform

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


def test_a_login_becomes_a_token_by_form_or_json(platform: Platform) -> None:
    stranger = platform.client()
    for sent in (
        {"data": {"subject_token": "login:ada", "grant_type": EXCHANGE}},
        {"json": {"subject_token": "login:ada"}},
    ):
        answer = stranger.post("/v1/token", **sent)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert (shown["token_type"], shown["expires_in"], shown["tenant"]) == ("Bearer", 12 * 3600, "vision")
        who = stranger.get("/v1/whoami", headers={"Authorization": f"Bearer {shown['access_token']}"}).json()
        assert (who["subject"], who["tenant"], who["role"], who["cluster"]) == ("ada", "vision", "admin", None)
        assert "submit_workload" in who["actions"]
        assert "apply_platform" not in who["actions"]
        assert answer.headers["cache-control"] == "no-store"


def test_a_token_lives_as_long_as_was_asked_for(platform: Platform) -> None:
    answer = platform.client().post("/v1/token", data={"subject_token": "login:ada", "ttl_seconds": "60"})
    assert answer.json()["expires_in"] == 60


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "subject_token"),
        ({"subject_token": ""}, 422, "subject_token"),
        ({"subject_token": "login:ada", "tenant": "../x"}, 422, "tenant"),
        ({"subject_token": "login:ada", "tenant": "speech"}, 403, ""),
        ({"subject_token": "login:ada", "tenant": "nowhere"}, 403, ""),
        ({"subject_token": "login:ada", "cluster": "x"}, 422, "cluster"),
        ({"subject_token": "login:ada", "cluster": "clu-0123456789ab"}, 404, ""),
        ({"subject_token": "login:ada", "ttl_seconds": 0}, 422, "ttl_seconds"),
        ({"subject_token": "login:ada", "ttl_seconds": 10**9}, 422, "ttl_seconds"),
        ({"subject_token": "login:ada", "ttl_seconds": "soon"}, 422, "ttl_seconds"),
        ({"subject_token": "login:ada", "grant_type": "password"}, 422, "grant_type"),
        ({"subject_token": "login:ada", "subject_token_type": "x"}, 422, "subject_token_type"),
        ({"subject_token": "login:ada", "role": "operator"}, 422, "role"),
        ({"subject_token": "forged"}, 401, ""),
        ([], 422, "body"),
    ],
)
def test_what_is_no_exchange_is_refused(shared_platform: Platform, body: Any, status: int, field: str) -> None:
    answer = shared_platform.client().post("/v1/token", json=body)
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text


@pytest.mark.parametrize("content", [b"\xff", b"a" * 70_000, b"{" * 1000, b"&" * 1000])
def test_any_bytes_are_refused_and_no_crash(shared_platform: Platform, content: bytes) -> None:
    for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain"):
        answer = shared_platform.client().post("/v1/token", content=content, headers={"Content-Type": kind})
        assert answer.status_code in {413, 422}


def test_a_refused_exchange_does_not_echo_the_credential(shared_platform: Platform) -> None:
    sent = {"subject_token": "s3cret-credential", "ttl_seconds": "soon", "frob": "s3cret-credential"}
    assert "s3cret" not in shared_platform.client().post("/v1/token", json=sent).text


def test_a_suspended_tenant_s_tokens_open_nothing(platform: Platform, ada: TestClient) -> None:
    from polyray.store.tables import Tenant

    with platform.store.write() as session:
        session.get_one(Tenant, "vision").suspended = True
    answer = ada.get("/v1/jobs")
    assert (answer.status_code, answer.json()["reason"]) == (401, "tenant_suspended")
