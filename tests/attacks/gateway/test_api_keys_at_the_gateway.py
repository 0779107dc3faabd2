"""API keys open the services that they are for, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from support.front import Front
from support.tokens import sign


def _call(front: Front, key: str, path: str = "/serve/digits/predict") -> httpx.Response:
    by_bearer, by_header = front.get(path, key), front.get(path, X_Api_Key=key)
    assert by_bearer.status_code == by_header.status_code
    return by_bearer


@pytest.mark.parametrize("name", ["all", "digits"])
def test_a_key_opens_its_service_and_is_not_handed_on(front: Front, name: str) -> None:
    key = front.api_keys[name]
    answer = _call(front, key)
    assert answer.json()["server"] == "vision"
    assert answer.json()["path"] == "/predict"
    assert key not in answer.text
    assert "authorization" not in [header for header, _ in answer.json()["headers"]]


def test_the_path_after_the_service_and_the_query_reach_it_unchanged(front: Front) -> None:
    paths = {
        "/serve/digits": None,
        "/serve/digits/": "/",
        "/serve/digits/a/b?c=d/e": "/a/b?c=d/e",
        "/serve/digits/serve/digits/x": "/serve/digits/x",
    }
    for sent, seen in paths.items():
        answer = front.get(sent, front.api_keys["digits"])
        assert answer.json()["path"] == (seen or "/")


def test_a_key_for_one_service_does_not_see_another(front: Front) -> None:
    foreign, absent = _call(front, front.api_keys["other"]), _call(front, front.api_keys["all"], "/serve/nothing/")
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content == absent.content


def test_a_key_of_another_tenant_reaches_that_tenants_service_of_the_same_name(front: Front) -> None:
    assert _call(front, front.api_keys["speech"]).json()["server"] == "speech"


def test_an_expired_key_says_so(front: Front) -> None:
    answer = _call(front, front.api_keys["expired"])
    assert (answer.status_code, answer.json()["code"]) == (401, "api_key_expired")


def test_a_key_that_was_never_made_is_unknown(front: Front) -> None:
    for key in ("pr_", "pr_" + "A" * 40, front.api_keys["all"] + "x", front.api_keys["all"].lower()):
        answer = _call(front, key)
        assert (answer.status_code, answer.json()["code"]) == (401, "unknown_api_key")


@pytest.mark.parametrize("path", ["/", "/api/jobs/", "/ray.rpc.RayletDriver/Init"])
def test_a_key_opens_nothing_but_inference(front: Front, path: str) -> None:
    assert front.get(path, X_Api_Key=front.api_keys["all"]).status_code != 200
    answer = front.get(path, front.api_keys["all"])
    assert answer.status_code != 200
    if not path.startswith("/ray"):
        assert answer.json()["code"] == "api_key_not_here"


def test_a_platform_token_opens_its_tenants_services_too(front: Front) -> None:
    for role in ("viewer", "member"):
        answer = front.send("POST", "/serve/digits/", sign(front.keys, front.claims(role=role)))
        assert answer.json()["server"] == "vision"


def test_a_revoked_key_is_dead_at_the_next_request(front: Front) -> None:
    routes = front.routes()
    front.running.gateway.apply(replace(routes, keys=routes.keys[1:]))
    try:
        assert _call(front, front.api_keys["all"]).json()["code"] == "unknown_api_key"
        assert _call(front, front.api_keys["digits"]).status_code == 200
    finally:
        front.running.gateway.apply(routes)
    assert _call(front, front.api_keys["all"]).status_code == 200
