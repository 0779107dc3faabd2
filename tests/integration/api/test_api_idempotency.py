"""The same request sent twice is done once (C01)."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from polyray.api.idempotency import Conclude, Request, once_long
from polyray.api.views import BlobView
from polyray.core.errors import Conflict, Invalid, Unavailable
from polyray.core.owners import machine, this_process
from polyray.store.tables import Blob, DatasetVersion, IdempotencyKey, Workload
from support.api import Platform, job, manifest_of, put_blob


def jobs(platform: Platform) -> int:
    with platform.store.read() as session:
        return session.scalar(select(func.count()).select_from(Workload)) or 0


def test_sent_again_it_gives_the_same_answer(platform: Platform, ada: TestClient) -> None:
    key = {"Idempotency-Key": "5b0c5f0e"}
    first, second = (ada.post("/v1/jobs", json=job(), headers=key) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.content == second.content
    assert second.headers["idempotency-replayed"] == "true"
    assert jobs(platform) == 1


def test_the_same_key_for_another_request_is_refused(platform: Platform, ada: TestClient) -> None:
    key = {"Idempotency-Key": "5b0c5f0e"}
    first = ada.post("/v1/jobs", json=job(run="echo one"), headers=key)
    second = ada.post("/v1/jobs", json=job(run="echo two"), headers=key)
    elsewhere = ada.post("/v1/keys", json={"name": "k"}, headers=key)
    assert (first.status_code, second.status_code, elsewhere.status_code) == (201, 409, 409)
    assert second.json()["field"] == "Idempotency-Key"
    assert ada.get(f"/v1/jobs/{first.json()['id']}").json()["spec"]["run"] == "echo one"
    assert jobs(platform) == 1


def test_another_callers_key_is_another_key(platform: Platform, ada: TestClient, bob: TestClient) -> None:
    key = {"Idempotency-Key": "5b0c5f0e"}
    assert [c.post("/v1/jobs", json=job(), headers=key).status_code for c in (ada, bob)] == [201, 201]
    assert jobs(platform) == 2


def test_a_refusal_is_not_kept(ada: TestClient) -> None:
    key = {"Idempotency-Key": "5b0c5f0e"}
    sent = {"kind": "session", "name": "default"}
    ada.post("/v1/sessions", json=sent)
    assert ada.post("/v1/sessions", json=sent, headers=key).status_code == 409
    ada.post("/v1/sessions/default/stop")
    assert ada.post("/v1/sessions", json=sent, headers=key).status_code == 201


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 129])
def test_a_key_that_is_none_is_refused(shared_platform: Platform, shared_ada: TestClient, key: str) -> None:
    answer = shared_ada.post("/v1/jobs", json=job(), headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
    assert jobs(shared_platform) == 0


def test_sixteen_at_once_make_one_job_and_all_get_its_answer(platform: Platform, ada: TestClient) -> None:
    barrier = threading.Barrier(16)

    def submit(n: int) -> tuple[int, str]:
        barrier.wait()
        with platform.client() as client:
            headers = {"Authorization": ada.headers["Authorization"], "Idempotency-Key": "dup"}
            answer = client.post("/v1/jobs", json=job(), headers=headers)
            return answer.status_code, answer.text

    with ThreadPoolExecutor(16) as pool:
        answers = set(pool.map(submit, range(16)))
    assert len(answers) == 1
    assert next(iter(answers))[0] == 201
    assert jobs(platform) == 1


def test_two_bodies_at_once_under_one_key_make_one_job_and_one_conflict(platform: Platform, ada: TestClient) -> None:
    barrier = threading.Barrier(2)

    def submit(run: str) -> int:
        barrier.wait()
        with platform.client() as client:
            headers = {"Authorization": ada.headers["Authorization"], "Idempotency-Key": "dup"}
            return client.post("/v1/jobs", json=job(run=run), headers=headers).status_code

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(submit, ["echo one", "echo two"])) == [201, 409]
    assert jobs(platform) == 1


def test_a_key_may_be_used_again_after_a_day(platform: Platform, ada: TestClient) -> None:
    key = {"Idempotency-Key": "5b0c5f0e"}
    ada.post("/v1/jobs", json=job(), headers=key)
    with platform.store.write() as session:
        for row in session.scalars(select(IdempotencyKey)):
            row.created_ms -= 24 * 3_600_000 + 1
    assert ada.post("/v1/jobs", json=job(run="other"), headers=key).status_code == 201
    assert jobs(platform) == 2


def test_a_dataset_sent_twice_is_one_version(platform: Platform, ada: TestClient) -> None:
    put_blob(ada, b"part")
    body = {"name": "digits", "stage": "raw", "manifest": manifest_of("digits", [b"part"])}
    answers = [ada.post("/v1/datasets", json=body, headers={"Idempotency-Key": "d"}).json() for _ in range(2)]
    assert answers[0] == answers[1]
    with platform.store.read() as session:
        assert session.scalar(select(func.count()).select_from(DatasetVersion)) == 1


def test_an_api_key_is_made_once_and_its_secret_is_kept_nowhere(platform: Platform, ada: TestClient) -> None:
    key = {"Idempotency-Key": "k"}
    first = ada.post("/v1/keys", json={"name": "k"}, headers=key)
    second = ada.post("/v1/keys", json={"name": "k"}, headers=key)
    assert (first.status_code, second.status_code) == (201, 409)
    assert first.json()["key_id"] in second.json()["detail"]
    assert len(ada.get("/v1/keys").json()["items"]) == 1
    secret = first.json()["key"].encode()
    platform.store.close()
    for path in platform.services.settings.state_dir.rglob("*"):
        assert not (path.is_file() and secret in path.read_bytes()), path


def test_a_long_call_sent_again_while_it_runs_is_told_to_wait(
    platform: Platform, ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> None:
        started.set()
        go_on.wait(10)
        raise Invalid("no such path", field="path")

    monkeypatch.setattr("polyray.registry.versions.register", slow)
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    body = {"name": "m", "job_id": mine, "path": "artifacts/model"}

    def register() -> int:
        with platform.client() as client:
            headers = {"Authorization": ada.headers["Authorization"], "Idempotency-Key": "m"}
            return client.post("/v1/models", json=body, headers=headers).status_code

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(register)
        assert started.wait(10)
        second = ada.post("/v1/models", json=body, headers={"Idempotency-Key": "m"})
        assert (second.status_code, second.json()["retryable"]) == (503, True)
        other = ada.post("/v1/models", json={**body, "path": "x"}, headers={"Idempotency-Key": "m"})
        assert other.status_code == 409
        go_on.set()
        assert first.result() == 422
    go_on.set()
    assert ada.post("/v1/models", json=body, headers={"Idempotency-Key": "m"}).status_code == 422


def announced(platform: Platform, call: str) -> Request:
    """A long call under key `m` that somebody announced and has not answered; `call` names who."""
    principal = platform.services.tokens.verify(platform.token("ada"))
    request, now_ms = Request(principal, "m", "POST /v1/models", {}), platform.services.clock.now_ms()
    with platform.store.write() as session:
        session.add(
            IdempotencyKey(
                principal="vision/ada",
                key="m",
                request_hash=request.digest,
                status=0,
                body=call.encode(),
                created_ms=now_ms,
            )
        )
    return request


def sent_again(platform: Platform, request: Request, *, after_ms: int = 1000) -> int:
    def work(conclude: Conclude) -> BlobView:
        answer = BlobView(sha256="x", size_bytes=1)
        with platform.store.write() as session:
            conclude(session, answer)
        return answer

    now_ms = platform.services.clock.now_ms() + after_ms
    return once_long(platform.store, request, now_ms=now_ms, status=201, work=work).status_code


def test_a_long_call_whose_process_died_can_be_sent_again_at_once(platform: Platform) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        name = f"{machine()}/{other.pid}/{Path(f'/proc/{other.pid}/stat').read_text().split()[21]}"
        request = announced(platform, f"{name} req-000000000001")
        with pytest.raises(Unavailable):
            sent_again(platform, request)
        other.kill()
    assert sent_again(platform, request) == 201


def test_a_long_call_that_ended_in_this_process_without_a_word_can_be_sent_again_at_once(platform: Platform) -> None:
    request = announced(platform, f"{this_process()} req-000000000001")
    assert sent_again(platform, request) == 201


def test_a_long_call_of_another_machine_is_waited_for_ten_minutes(platform: Platform) -> None:
    request = announced(platform, "another-0123abcd/1/2 req-000000000001")
    with pytest.raises(Unavailable):
        sent_again(platform, request)
    assert sent_again(platform, request, after_ms=600_001) == 201


def test_a_long_call_that_was_taken_for_dead_makes_nothing_when_it_wakes(platform: Platform) -> None:
    request = announced(platform, "another-0123abcd/1/2 req-000000000001")

    def slow(conclude: Conclude) -> BlobView:
        with platform.store.write() as session:  # meanwhile another was sent, and answered
            row = session.get_one(IdempotencyKey, ("vision/ada", "m"))
            row.body, row.status = b"{}", 201
        with platform.store.write() as session:
            session.add(Blob(tenant="vision", sha256="0" * 64, size_bytes=1, created_ms=1))
            conclude(session, BlobView(sha256="x", size_bytes=1))
        raise AssertionError("it concluded")

    now_ms = platform.services.clock.now_ms() + 600_001
    with pytest.raises(Conflict):
        once_long(platform.store, request, now_ms=now_ms, status=201, work=slow)
    with platform.store.read() as session:
        assert session.get(Blob, ("vision", "0" * 64)) is None
        assert session.get_one(IdempotencyKey, ("vision/ada", "m")).body == b"{}"


def test_a_model_and_its_answer_are_kept_together_or_not_at_all(
    platform: Platform, ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    artifacts = platform.layout.run("vision", mine) / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "model").write_bytes(b"weights")
    body, key = {"name": "m", "job_id": mine, "path": "artifacts/model"}, {"Idempotency-Key": "m"}

    def lost(request: Request, *_: object, **__: object) -> None:
        raise OSError("the connection is gone")  # right after the commit: nobody has the answer

    with monkeypatch.context() as dying:
        dying.setattr("polyray.api.idempotency._answer", lost)
        assert ada.post("/v1/models", json=body, headers=key).status_code == 500
    again = ada.post("/v1/models", json=body, headers=key)
    assert (again.status_code, again.json()["version"]) == (201, 1)
    assert again.headers["idempotency-replayed"] == "true"
    assert len(ada.get("/v1/models").json()["items"]) == 1
