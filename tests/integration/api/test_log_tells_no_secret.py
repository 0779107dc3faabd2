"""What the platform writes about its requests has no token, no secret, no query string and nothing of a body (I11)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyray.core import log as logging
from support.api import job
from support.live_api import LiveApi, access_token, live_api

CANARY = "canary-7f3a9c"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveApi]:
    with live_api(tmp_path_factory.mktemp("live")) as running:
        yield running


@contextmanager
def listening() -> Iterator[io.StringIO]:
    """Yield everything that the server says meanwhile, at its most talkative."""
    written = io.StringIO()
    with redirect_stderr(written):
        logging.configure("DEBUG", component="server")
        yield written


def token_of(api: LiveApi) -> tuple[str, str]:
    access, _ = access_token(api, "ada")
    answer = httpx.post(f"{api.url}/v1/token", json={"subject_token": access})
    return access, str(answer.raise_for_status().json()["access_token"])


def lines(told: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.getvalue().splitlines()]


def test_no_canary_of_any_request_is_in_the_log(api: LiveApi) -> None:
    with listening() as told:
        access, token, key = make_all_kinds_of_requests(api)
    requests = [line for line in lines(told) if line["event"] == "request"]
    assert len(requests) > 15, "the log was written"
    assert CANARY not in told.getvalue()
    for secret in (access, token, key, token.rpartition(".")[2], "ada-password"):
        assert secret not in told.getvalue()
    assert all("?" not in line["route"] for line in requests)


def make_all_kinds_of_requests(api: LiveApi) -> tuple[str, str, str]:
    """Put the canary wherever a request has room, good ones and bad; return the secrets that were real."""
    access, token = token_of(api)
    mine = {"Authorization": f"Bearer {token}"}
    made = httpx.post(f"{api.url}/v1/keys", json={"name": "k"}, headers=mine).json()
    spec = job(run=f"echo {CANARY}", env={"SECRET": CANARY, "PASSWORD": f"{CANARY}-2"})
    with httpx.Client(base_url=api.url) as client:
        client.post("/v1/jobs", json=spec, headers={**mine, "Idempotency-Key": f"{CANARY}-key"})
        client.post("/v1/jobs", json=job(env={"RAY_TOKEN": CANARY}), headers=mine)
        client.post("/v1/jobs", content=f'{{"kind": "{CANARY}"', headers={**mine, "Content-Type": "application/json"})
        client.get(f"/v1/jobs?name={CANARY}&token={token}", headers=mine)
        client.get(f"/v1/{CANARY}/{token}?key={CANARY}", headers=mine)
        client.get(f"/v1/jobs/{CANARY}", headers=mine)
        client.get("/v1/whoami", headers={"Authorization": f"Bearer {CANARY}"})
        client.get("/v1/whoami", headers={"Authorization": f"Basic {CANARY}"})
        client.get("/v1/whoami", headers={"X-Api-Key": made["key"], "Cookie": f"session={CANARY}"})
        client.get("/v1/whoami", headers={**mine, "Host": f"{CANARY}.example"})
        client.get("/v1/whoami", headers={**mine, "User-Agent": CANARY, "Referer": f"http://x/?t={CANARY}"})
        client.post("/v1/token", json={"subject_token": f"{access}{CANARY}"})
        client.post("/issuer/device", data={"user_code": CANARY, "username": "ada", "password": CANARY})
        client.post("/issuer/protocol/openid-connect/token", data={"client_id": CANARY, "refresh_token": CANARY})
        client.put(f"/v1/blobs/{'0' * 64}?x={CANARY}", content=CANARY.encode(), headers=mine)
    return access, token, str(made["key"])


def submit(api: LiveApi, token: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{api.url}/v1/jobs", json=job(env={"SECRET": CANARY}), headers=headers)


def test_a_defect_is_told_with_its_place_and_without_what_the_request_carried(
    api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = token_of(api)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"cannot parse Bearer {token} of http://host/path?token={CANARY}")

    monkeypatch.setattr("polyray.api.routes.workloads.insert", broken)
    with listening() as told:
        answer = submit(api, token)
    assert answer.status_code == 500
    assert CANARY not in answer.text
    (failed,) = [line for line in lines(told) if line["event"] == "request_failed"]
    assert answer.json()["request_id"] == failed["request_id"]
    assert "RuntimeError" in failed["exception"]
    assert CANARY not in told.getvalue()
    assert token not in told.getvalue()


def test_a_database_s_refusal_does_not_quote_the_rows(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = token_of(api)
    ids = iter(["job-000000000001"] * 2)
    monkeypatch.setattr("polyray.api.submission.new_id", lambda kind: next(ids))
    with listening() as told:
        answers = [submit(api, token) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 500]
    assert "UNIQUE constraint failed" in told.getvalue()
    assert CANARY not in told.getvalue()


def test_a_token_an_api_key_and_a_password_are_in_no_file_of_the_state_directory(api: LiveApi) -> None:
    access, token = token_of(api)
    made = httpx.post(f"{api.url}/v1/keys", json={"name": "l"}, headers={"Authorization": f"Bearer {token}"}).json()
    state: Path = api.platform.services.settings.state_dir
    for path in state.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (access, token, made["key"], "ada-password"):
                assert secret.encode() not in content, path
