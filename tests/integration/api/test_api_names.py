"""Names that people choose (C52, C53, T27), wherever the API takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyray.core.ids import SLUG
from support.api import PLATFORM, Platform, job, manifest_of

BAD = [
    "Foo\\bar",
    "a@b.c",
    "ünï",
    "a b",
    "A",
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\\b",
    "-a",
    "a-",
    "a\n",
    "a\0",
    "%2e%2e",
    "a" * 41,
    "a" * 63,
    "a" * 200,
    "\u00e9",
    "e\u0301",
    "\u202ea",
    "а",  # a Cyrillic letter
    "CON ",
]
GOOD = ["a", "0", "con", "xn--n-sfa", "a-b", "a" * 40]

MAKE: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "job": lambda name: ("/v1/jobs", job(name=name)),
    "session": lambda name: ("/v1/sessions", {"kind": "session", "name": name}),
    "service": lambda name: ("/v1/services", {"kind": "service", "name": name, "app": "a:b"}),
    "key": lambda name: ("/v1/keys", {"name": name}),
    "dataset": lambda name: (
        "/v1/datasets",
        {"name": name, "stage": "raw", "manifest": manifest_of(name, [b"x"])},
    ),
    "model": lambda name: ("/v1/models", {"name": name, "job_id": "job-0123456789ab", "path": "artifacts"}),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", BAD)
def test_a_name_outside_the_grammar_is_refused_and_the_way_out_named(
    shared_ada: TestClient, kind: str, name: str
) -> None:
    path, body = MAKE[kind](name)
    answer = shared_ada.post(path, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "name"), answer.text
    assert "1 to 40 of a-z" in answer.json()["hint"]


# "." and ".." never leave a client: it resolves them itself.
@pytest.mark.parametrize("name", [name for name in BAD if name not in {".", ".."}])
def test_looking_a_bad_name_up_finds_nothing_and_breaks_nothing(shared_ada: TestClient, name: str) -> None:
    for path in ("/v1/jobs/{}", "/v1/sessions/{}", "/v1/sessions/{}/why", "/v1/datasets/{}/1", "/v1/models/{}/1"):
        answer = shared_ada.get(path.format(quote(name, safe="")))
        assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("name", GOOD)
def test_a_name_within_the_grammar_works_with_every_verb(ada: TestClient, name: str) -> None:
    assert ada.post("/v1/sessions", json={"kind": "session", "name": name}).status_code == 201
    for verb in ("", "/why", "/events", "/logs", "/records"):
        assert ada.get(f"/v1/sessions/{name}{verb}").status_code == 200
    assert ada.post(f"/v1/sessions/{name}/stop").json()["state"] == "stopped"


def test_names_equal_in_their_first_forty_characters_are_two_or_refused(ada: TestClient) -> None:
    long = "a" * 39
    for name, status in ((f"{long}b", 201), (f"{long}c", 201), (f"{long}bb", 422)):
        answer = ada.post("/v1/services", json={"kind": "service", "name": name, "app": "a:b"})
        assert answer.status_code == status
    assert ada.get(f"/v1/services/{long}b").json()["name"] == f"{long}b"
    assert ada.get(f"/v1/services/{long}c").json()["name"] == f"{long}c"


@pytest.mark.parametrize("name", [n for n in BAD if n])
def test_a_tenant_or_user_outside_the_grammar_is_refused(shared_platform: Platform, name: str) -> None:
    olga = shared_platform.client("olga")
    bodies: list[dict[str, Any]] = [
        {"tenants": {name: {}}},
        {"users": {name: {"password": "long-enough"}}},
        {"operators": [name]},
    ]
    for body in bodies:
        answer = olga.post("/v1/platform", json=body)
        assert answer.status_code == 422, (body, answer.text)
    assert {t["name"] for t in olga.get("/v1/tenants").json()["items"]} == set(PLATFORM["tenants"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=60))
def test_whatever_the_name_it_is_kept_exactly_or_refused(shared_ada: TestClient, name: str) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(name=name))
    if SLUG.fullmatch(name):
        assert answer.json()["name"] == name
    else:
        assert (answer.status_code, answer.json()["field"]) == (422, "name")
