"""Clients that lose the answer, or leave in the middle: what they asked for is there once and whole, or not at all."""

from __future__ import annotations

import json
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from conftest import Tier
from polyray.core.errors import Code, PolyrayError
from polyray.sdk import transport
from polyray.sdk.client import PolyrayClient
from polyray.store.tables import ApiKey, DatasetVersion, Event, IdempotencyKey, ModelVersion, Workload
from support.api import PLATFORM as PEOPLE
from support.api import job, manifest_of
from support.live_api import LiveApi, access_token, live_api
from support.wait import until
from support.world import PLATFORM as POOLS
from support.world import World


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveApi]:
    with live_api(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture
def api(shared_api: LiveApi) -> LiveApi:
    """One server for all; what a test made is gone for the next."""
    with shared_api.platform.store.write() as session:
        for table in (Event, Workload, IdempotencyKey, ApiKey, DatasetVersion, ModelVersion):
            session.query(table).delete()
    return shared_api


@pytest.fixture(scope="module")
def token(shared_api: LiveApi) -> str:
    return token_of(shared_api)


def token_of(api: LiveApi) -> str:
    given = {"subject_token": access_token(api, "ada")[0]}
    return str(httpx.post(f"{api.url}/v1/token", json=given).raise_for_status().json()["access_token"])


@pytest.fixture
def lone_api(tmp_path: Path) -> Iterator[LiveApi]:
    """A server in which no call of another test is still on its way."""
    with live_api(tmp_path) as running:
        yield running


@contextmanager
def database_held(api: LiveApi) -> Iterator[None]:
    """Let every write of the platform wait: somebody else has the database's one write lock."""
    database = api.platform.services.settings.state_dir / "polyray.db"
    with closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def count(api: LiveApi, table: type[Any]) -> int:
    with api.platform.store.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def post(api: LiveApi, token: str, path: str, body: Any, key: str, *, seconds: float = 20) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    return httpx.post(api.url + path, json=body, headers=headers, timeout=seconds)


# Whatever can be made, and what it is made of.


def a_model_s_run(api: LiveApi, token: str) -> str:
    mine = str(post(api, token, "/v1/jobs", job(), "the-run").json()["id"])
    artifacts = api.platform.layout.run("vision", mine) / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "model").write_bytes(b"weights")
    return mine


def requests(api: LiveApi, token: str) -> dict[str, tuple[dict[str, Any], dict[str, Any], type[Any]]]:
    """Return path -> (a body, another body, the table of what it makes)."""
    digest = "6b23c0d5f35d1b11f9b683f0b0a617355deb11277d91ae091d399c655b87940d"  # of b"C"
    headers = {"Authorization": f"Bearer {token}"}
    httpx.put(f"{api.url}/v1/blobs/{digest}", content=b"C", headers=headers).raise_for_status()
    dataset = {"name": "digits", "stage": "raw", "manifest": manifest_of("digits", [b"C"])}
    model = {"name": "m", "job_id": a_model_s_run(api, token), "path": "artifacts/model"}
    service = {"kind": "service", "name": "s", "app": "app:app"}
    other = {**dataset, "stage": "processed", "manifest": manifest_of("digits", [b"C"], stage="processed")}
    return {
        "/v1/jobs": (job(), job(run="echo two"), Workload),
        "/v1/sessions": ({"kind": "session", "name": "a"}, {"kind": "session", "name": "b"}, Workload),
        "/v1/services": (service, {**service, "app": "app:other"}, Workload),
        "/v1/datasets": (dataset, other, DatasetVersion),
        "/v1/models": (model, {**model, "name": "n"}, ModelVersion),
        "/v1/keys": ({"name": "k"}, {"name": "l"}, ApiKey),
    }


PATHS = ("/v1/jobs", "/v1/sessions", "/v1/services", "/v1/datasets", "/v1/models", "/v1/keys")


def is_the_same(path: str, first: httpx.Response, again: httpx.Response) -> bool:
    """Return whether `again` is the answer of `first`; that of a key is shown once, and then told by its id."""
    if path == "/v1/keys":
        return again.status_code == 409 and first.json()["key_id"] in again.json()["detail"]
    return (again.status_code, again.content) == (first.status_code, first.content)


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_lost_the_answer_and_asks_again_gets_it_and_nothing_is_made_twice(
    api: LiveApi, token: str, path: str
) -> None:
    body, another, table = requests(api, token)[path]
    before = count(api, table)
    first = post(api, token, path, body, "k")
    assert first.status_code == 201, first.text
    assert is_the_same(path, first, post(api, token, path, body, "k"))
    assert post(api, token, path, another, "k").status_code == 409
    assert count(api, table) == before + 1


@pytest.mark.parametrize("path", PATHS)
def test_asked_again_while_the_first_call_still_runs_it_is_done_once_and_another_body_is_a_conflict(
    api: LiveApi, token: str, path: str
) -> None:
    body, another, table = requests(api, token)[path]
    before = count(api, table)
    with ThreadPoolExecutor(3) as pool:
        with database_held(api):
            first = pool.submit(post, api, token, path, body, "k")
            until(lambda: first.running(), what="the first call is on its way")
            threading.Event().wait(0.2)
            assert not first.done()
            again = pool.submit(post, api, token, path, body, "k")
            other = pool.submit(post, api, token, path, another, "k")
            threading.Event().wait(0.1)
        answers = [first.result(), again.result(), other.result()]
    made = [answer for answer in answers[:2] if answer.status_code == 201]
    # A long call that still runs is told to wait instead of waiting.
    told = [answer for answer in answers[:2] if answer.status_code in {409, 503}]
    if answers[2].status_code == 201:  # it came first, as nobody promises an order to who comes at once
        assert not made
        assert count(api, table) == before + 1
        return
    assert answers[2].status_code == 409
    assert len(made) + len(told) == 2
    assert len({answer.content for answer in made}) == 1
    assert is_the_same(path, made[0], post(api, token, path, body, "k"))
    assert count(api, table) == before + 1


def test_the_client_asks_again_by_itself_with_the_same_key_when_the_answer_does_not_come(
    api: LiveApi, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "READ_SECONDS", 0.5)
    asked: list[float] = []
    with PolyrayClient(api.url, token, sleep=asked.append) as client, ThreadPoolExecutor(1) as pool:
        with database_held(api):
            submitted = pool.submit(client.submit, "jobs", job())
            until(lambda: asked, what="the first answer is given up")
        view = submitted.result(20)
    assert len(asked) <= transport.MAX_TIMEOUTS
    assert count(api, Workload) == 1
    with api.platform.store.read() as session:
        assert session.scalars(select(Workload.workload_id)).all() == [view["id"]]


def test_the_client_gives_up_after_a_bounded_number_of_answers_that_do_not_come(
    api: LiveApi, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "READ_SECONDS", 0.2)
    asked: list[float] = []
    with (
        PolyrayClient(api.url, token, sleep=asked.append) as client,
        database_held(api),
        pytest.raises(PolyrayError) as given_up,
    ):
        client.submit("jobs", job())
    assert given_up.value.code is Code.TIMEOUT
    assert given_up.value.retryable
    assert "may have been taken" in given_up.value.hint, "whoever sends it again by hand looks first"
    assert len(asked) == transport.MAX_TIMEOUTS


# Leaving in the middle.


def leave(api: LiveApi, token: str, key: str, *, after_seconds: float, cut_at: float, reset: bool) -> None:
    """Send a submit up to the fraction `cut_at` of its bytes, wait, and close without reading the answer."""
    body = json.dumps(job(env={"NOTES": "x" * 5000})).encode()
    host = api.url.removeprefix("http://")
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port))) as connection:
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        whole = head + body
        connection.sendall(whole[: round(len(whole) * cut_at)])
        threading.Event().wait(after_seconds)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "while writes wait"])
def test_a_client_that_leaves_in_the_middle_of_a_submit_leaves_a_whole_job_or_none_and_each_ends(
    lone_api: LiveApi, busy: bool, tier: Tier
) -> None:
    api, token = lone_api, token_of(lone_api)
    world = World(api.platform.services.settings.state_dir, {**POOLS, "tenants": PEOPLE["tenants"]})
    keys = [f"key-{n}" for n in range(tier.pick(quick=16, full=80))]

    def one(n: int) -> None:
        leave(
            api,
            token,
            keys[n],
            after_seconds=0.02 + 0.28 * (n % 8) / 7,
            cut_at=(1.0, 1.0, 0.97, 0.4)[n // 2 % 4],
            reset=n % 2 == 0,
        )

    with ThreadPoolExecutor(8) as pool:
        if busy:
            with database_held(api):
                list(pool.map(one, range(len(keys))))
        else:
            list(pool.map(one, range(len(keys))))
    _wait_settled(api)
    left = count(api, Workload)
    assert 0 < left < len(keys), "some bodies came whole, and some never did"
    with api.platform.store.read() as session:
        told = session.scalars(select(Event.entity_id).where(Event.kind == "workload", Event.start == "")).all()
        jobs = session.scalars(select(Workload.workload_id)).all()
    assert sorted(told) == sorted(jobs), "each job has its story from the beginning"
    # Whoever asks again gets the job that is there, or a new one: one for each key.
    answers = [post(api, token, "/v1/jobs", job(env={"NOTES": "x" * 5000}), key) for key in keys]
    assert {answer.status_code for answer in answers} == {201}
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == left
    assert len({answer.json()["id"] for answer in answers}) == len(keys) == count(api, Workload)
    _each_ends(world)
    world.store.close()


def _wait_settled(api: LiveApi) -> None:
    """Wait until no call that was begun is still on its way to the database."""
    seen, since = -1, time.monotonic()

    def settled() -> bool:
        nonlocal seen, since
        now = count(api, Workload)
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 0.5

    until(settled, seconds=30, what="no more jobs arrive")


def _each_ends(world: World) -> None:
    """Let the control plane run; every program ends at once."""
    for _ in range(400):
        world.settle(1)
        with world.store.read() as session:
            states = dict(session.execute(select(Workload.workload_id, Workload.state)).all())
        for workload_id in [key for key, state in states.items() if state == "running"]:
            world.end_program(workload_id)
        if set(states.values()) <= {"succeeded"}:
            return
    raise AssertionError(f"these are stuck: {[key for key, state in states.items() if state != 'succeeded'][:5]}")


def test_a_follower_that_leaves_costs_the_platform_nothing(api: LiveApi, token: str) -> None:
    mine = str(post(api, token, "/v1/jobs", job(), "k").json()["id"])
    threads = threading.active_count()
    for _ in range(10):
        with httpx.stream(
            "GET", f"{api.url}/v1/jobs/{mine}/logs?follow=true", headers={"Authorization": f"Bearer {token}"}
        ) as answer:
            assert next(answer.iter_lines()) == ": open"
    until(lambda: _streams(api) == 0, what="the streams end")
    assert threading.active_count() <= threads + 40


def _streams(api: LiveApi) -> int:
    return sum(api.platform.app.state.followers._open.values())
