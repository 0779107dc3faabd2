"""The client against a real HTTP server: retries, problems, streams."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyray.core.errors import Code, Invalid, PolyrayError, Unauthenticated, Unavailable
from polyray.sdk.client import PolyrayClient
from polyray.sdk.events import Event
from support.http_server import Answer, ScriptedServer, scripted_server

BUSY = Answer(503, {"code": "unavailable", "detail": "the database does not take this now", "retryable": True})


class Waits:
    """A sleep that only remembers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def client_of(server: ScriptedServer, waits: Waits | None = None) -> PolyrayClient:
    return PolyrayClient(server.url, "TOKEN", sleep=waits or Waits())


@contextmanager
def talking(*answers: Answer, waits: Waits | None = None) -> Iterator[PolyrayClient]:
    with scripted_server(*answers) as server, client_of(server, waits) as client:
        yield client


def test_a_problem_comes_back_as_the_error_that_the_platform_raised() -> None:
    problem = {"code": "conflict", "detail": "there is a live session default", "hint": "use it", "field": "name"}
    with talking(Answer(409, problem)) as client, pytest.raises(PolyrayError) as caught:
        client.submit("sessions", {"kind": "session", "name": "default"})
    error = caught.value
    assert (error.code, error.message, error.hint, error.field) == (
        Code.CONFLICT,
        "there is a live session default",
        "use it",
        "name",
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, Code.NOT_FOUND), (413, Code.TOO_LARGE), (422, Code.INVALID), (403, Code.FORBIDDEN), (500, Code.INTERNAL)],
)
def test_an_answer_that_is_no_problem_is_told_by_its_status(status: int, code: Code) -> None:
    with talking(Answer(status, raw=b"<html>")) as client, pytest.raises(PolyrayError) as caught:
        client.whoami()
    assert caught.value.code is code


def test_a_submit_that_failed_for_now_is_sent_again_with_the_same_key() -> None:
    waits = Waits()
    with scripted_server(BUSY, BUSY, Answer(201, {"id": "job-000000000001"})) as server:
        with client_of(server, waits) as client:
            assert client.submit("jobs", {"kind": "job"})["id"] == "job-000000000001"
        keys = {asked.headers["idempotency-key"] for asked in server.asked}
    assert len(server.asked) == 3
    assert len(keys) == 1
    assert len(waits.seconds) == 2


def test_retry_after_is_honoured() -> None:
    waits = Waits()
    with talking(Answer(429, {}, {"Retry-After": "7"}), Answer(200, {}), waits=waits) as client:
        client.whoami()
    assert len(waits.seconds) == 1
    assert 7 <= waits.seconds[0] <= 7.5, "never sooner, and not all at once"


def test_a_wait_longer_than_patience_is_not_begun() -> None:
    waits = Waits()
    later = Answer(429, {}, {"Retry-After": "3600"})
    with talking(later, waits=waits) as client, pytest.raises(PolyrayError) as caught:
        client.whoami()
    assert caught.value.code is Code.RATE_LIMITED
    assert waits.seconds == []


def test_what_cannot_be_repeated_is_sent_once() -> None:
    with scripted_server(BUSY) as server, client_of(server) as client:
        with pytest.raises(PolyrayError):
            client.kill_worker("job-000000000001", 1)
        assert len(server.asked) == 1


def test_a_refusal_is_not_repeated() -> None:
    with scripted_server(Answer(422, {"code": "infeasible", "detail": "no"})) as server, client_of(server) as client:
        with pytest.raises(PolyrayError):
            client.submit("jobs", {})
        assert len(server.asked) == 1


def test_a_connection_that_broke_is_made_again() -> None:
    with scripted_server(Answer(hang_up=True), Answer(200, {"subject": "ada"})) as server, client_of(server) as client:
        assert client.whoami()["subject"] == "ada"


def test_nobody_listening_is_said_with_the_way_out() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with PolyrayClient(url, "TOKEN", sleep=Waits()) as client, pytest.raises(Unavailable) as caught:
        client.whoami()
    assert "does not answer" in caught.value.message
    assert "polyray up" in caught.value.hint


def test_an_expired_token_is_renewed_once() -> None:
    class Renewing:
        def current(self) -> str:
            return "OLD"

        def renew(self) -> str | None:
            return "NEW"

    refused = Answer(401, {"code": "unauthenticated", "reason": "token_expired", "detail": "expired"})
    with scripted_server(refused, Answer(200, {})) as server, PolyrayClient(server.url, Renewing()) as client:
        client.whoami()
        assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer OLD", "Bearer NEW"]
    with scripted_server(refused) as server, PolyrayClient(server.url, Renewing()) as client:
        with pytest.raises(Unauthenticated) as caught:
            client.whoami()
        assert caught.value.reason == "token_expired"
        assert len(server.asked) == 2


def test_a_blob_that_is_there_is_not_sent_again(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"bytes")
    digest = hashlib.sha256(b"bytes").hexdigest()
    with scripted_server(Answer(404), Answer(201, {})) as server, client_of(server) as client:
        assert client.put_blob(tmp_path / "blob", digest)
        assert [(asked.method, asked.body) for asked in server.asked] == [("HEAD", b""), ("PUT", b"bytes")]
    with scripted_server(Answer(200)) as server, client_of(server) as client:
        assert not client.put_blob(tmp_path / "blob", digest)


def test_a_blobs_bytes_are_sent_whole_again_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"bytes")
    with scripted_server(Answer(404), BUSY, Answer(201, {})) as server, client_of(server) as client:
        client.put_blob(tmp_path / "blob", hashlib.sha256(b"bytes").hexdigest())
        assert [asked.body for asked in server.asked[1:]] == [b"bytes", b"bytes"]


def test_a_list_is_read_to_its_end() -> None:
    pages = (Answer(200, {"items": [{"n": 1}], "next_cursor": "abc"}), Answer(200, {"items": [{"n": 2}]}))
    with scripted_server(*pages) as server, client_of(server) as client:
        assert list(client.workloads("jobs")) == [{"n": 1}, {"n": 2}]
        assert server.asked[1].path == "/v1/jobs?cursor=abc"


def test_a_log_stream_that_broke_goes_on_where_it_ended() -> None:
    first = Answer(raw=b': open\n\nid: 2\nevent: log\ndata: "a\\n"\n\nevent: log\ndata: "cut')
    second = Answer(raw=b'id: 4\nevent: log\ndata: "b\\n"\n\nevent: end\ndata: {"state": "succeeded"}\n\n')
    with scripted_server(first, second) as server, client_of(server) as client:
        events = list(client.follow_logs("jobs", "job-000000000001"))
        assert events == [Event("log", "a\n", "2"), Event("log", "b\n", "4"), Event("end", {"state": "succeeded"}, "4")]
        assert [asked.headers["last-event-id"] for asked in server.asked] == ["0", "2"]


def test_a_stream_that_the_platform_ends_says_why() -> None:
    told = Answer(raw=b'event: error\ndata: {"code": "unauthenticated", "detail": "your session was revoked"}\n\n')
    with scripted_server(told) as server, client_of(server) as client, pytest.raises(Unauthenticated, match="revoked"):
        list(client.follow_logs("jobs", "job-000000000001"))


@pytest.mark.parametrize("ref", ["../keys", "a/b", ".", "", "A", "x" * 41, "-x", "a\n", "%2e%2e", "naïve"])
def test_what_is_neither_an_id_nor_a_name_reaches_no_url(ref: str) -> None:
    with scripted_server(Answer()) as server, client_of(server) as client:
        with pytest.raises(Invalid):
            client.workload("sessions", ref)
        assert server.asked == []


@pytest.mark.parametrize(
    "url", ["http://polyray.example.org", "ftp://127.0.0.1", "127.0.0.1:8470", "http://a:b@127.0.0.1"]
)
def test_an_address_that_would_give_tokens_away_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        PolyrayClient(url, "TOKEN")


def test_a_proxy_of_the_environment_does_not_see_what_goes_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with scripted_server(Answer(200, {"subject": "ada"})) as server, client_of(server) as client:
        assert client.whoami()["subject"] == "ada"
