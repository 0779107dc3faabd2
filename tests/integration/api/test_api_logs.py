"""Logs and records as a user gets them: all bytes, whatever they are, and never another file's (C10, T19, T30)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from polyray.api.following import Followers
from polyray.core.lifecycle import WorkloadState
from polyray.store.steps import step
from polyray.store.tables import Workload
from support.api import Platform, job, lines_of
from support.served import served
from support.wait import until


@pytest.fixture
def run(platform: Platform, ada: TestClient) -> Path:
    """The run directory of a job of vision; its id is the directory's name."""
    workload_id = ada.post("/v1/jobs", json=job()).json()["id"]
    directory = platform.layout.run("vision", workload_id)
    (directory / "logs").mkdir(parents=True)
    return directory


def write(run: Path, content: bytes) -> None:
    (run / "logs" / "driver.log").write_bytes(content)


def finish(platform: Platform, workload_id: str) -> None:
    with platform.store.write() as session:
        row = session.get_one(Workload, workload_id)
        for state in (WorkloadState.STARTING, WorkloadState.RUNNING, WorkloadState.SUCCEEDED):
            step(session, row, state, now_ms=1)


def test_a_log_of_nothing_yet_is_empty(ada: TestClient) -> None:
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    answer = ada.get(f"/v1/jobs/{mine}/logs")
    assert (answer.status_code, answer.content, answer.headers["x-next-offset"]) == (200, b"", "0")
    assert ada.get(f"/v1/jobs/{mine}/records").json()["items"] == []


def test_bytes_that_are_no_text_come_as_they_are(ada: TestClient, run: Path) -> None:
    content = b"ok\n\200\377bin\r\nend\n\x1b[31mred\x1b[0m <script>alert(1)</script>\0"
    write(run, content)
    answer = ada.get(f"/v1/jobs/{run.name}/logs")
    assert answer.content == content
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


def test_a_log_is_read_in_pieces_by_offset(ada: TestClient, run: Path) -> None:
    content = os.urandom(300_000)
    write(run, content)
    got, offset = b"", 0
    while True:
        answer = ada.get(f"/v1/jobs/{run.name}/logs", params={"offset": offset, "limit": 70_000})
        if not answer.content:
            break
        got, offset = got + answer.content, int(answer.headers["x-next-offset"])
    assert got == content
    assert ada.get(f"/v1/jobs/{run.name}/logs?offset=10000000").content == b""


@pytest.mark.parametrize("query", ["offset=-1", "offset=x", "limit=0", f"limit={2**40}", f"offset={2**63}"])
def test_a_place_that_makes_no_sense_is_refused_by_name(shared_ada: TestClient, query: str) -> None:
    mine = shared_ada.post("/v1/jobs", json=job()).json()["id"]
    answer = shared_ada.get(f"/v1/jobs/{mine}/logs?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, query.partition("=")[0])


def test_one_read_is_bounded_however_large_the_log(ada: TestClient, run: Path) -> None:
    with (run / "logs" / "driver.log").open("wb") as file:
        file.truncate(10 * 2**30)
    answer = ada.get(f"/v1/jobs/{run.name}/logs")
    assert len(answer.content) == 2**20


def test_a_link_in_place_of_the_log_is_not_followed(platform: Platform, ada: TestClient, run: Path) -> None:
    canary = platform.services.settings.state_dir / "keys" / "canary"
    canary.write_bytes(b"canary")
    log, logs = run / "logs" / "driver.log", run / "logs"

    def replace_directory() -> None:
        logs.rmdir()
        logs.symlink_to(canary.parent)

    cases: dict[str, Callable[[], None]] = {
        "link": lambda: log.symlink_to(canary),
        "directory": replace_directory,
        "hard link": lambda: os.link(canary, log),
        "fifo": lambda: os.mkfifo(log),
    }
    (canary.parent / "driver.log").write_bytes(b"canary")
    for name, plant in cases.items():
        plant()
        for follow in ("", "?follow=true"):
            answer = ada.get(f"/v1/jobs/{run.name}/logs{follow}")
            assert answer.status_code == 409, name
            assert b"canary" not in answer.content
            assert str(run.parent.parent.parent.parent).encode() not in answer.content
        (logs if logs.is_symlink() else log).unlink()
        logs.mkdir(exist_ok=True)


def test_records_are_json_whatever_the_run_wrote(ada: TestClient, run: Path) -> None:
    good = lines_of({"type": "metrics", "loss": 1.5}, {"type": "metrics", "step": 2})
    (run / "records.jsonl").write_bytes(good + b"\xff\xfe\nnonsense\n" + b'{"loss": NaN, "name": "\\ud800"}\n{"torn"')
    found = ada.get(f"/v1/jobs/{run.name}/records").json()
    assert found["items"][:2] == [{"type": "metrics", "loss": 1.5}, {"type": "metrics", "step": 2}]
    assert found["items"][2]["loss"] == "NaN"
    assert found["skipped"] == 2
    more = lines_of({"type": "metrics", "step": 3})
    (run / "records.jsonl").open("r+b").close()
    with (run / "records.jsonl").open("r+b") as file:
        file.truncate(found["next_offset"])
        file.seek(0, os.SEEK_END)
        file.write(more)
    later = ada.get(f"/v1/jobs/{run.name}/records", params={"offset": found["next_offset"]}).json()
    assert later["items"] == [{"type": "metrics", "step": 3}]


def events(lines: Iterator[str]) -> Iterator[tuple[str, object, str | None]]:
    """Yield (event, data, id) of a stream; comments are passed over."""
    name, data, identity = "", "", None
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif line.startswith("id: "):
            identity = line.removeprefix("id: ")
        elif not line and name:
            yield name, json.loads(data), identity
            name, data, identity = "", "", None


def test_a_log_is_followed_while_it_is_written_to_its_end(platform: Platform, ada: TestClient, run: Path) -> None:
    path = f"/v1/jobs/{run.name}/logs?follow=true"
    log = (run / "logs" / "driver.log").open("wb", buffering=0)
    log.write(b"one\nhalf " + "é".encode()[:1])
    with (
        log,
        served(platform.app) as url,
        httpx.stream("GET", url + path, headers={"Authorization": ada.headers["Authorization"]}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer.iter_lines())
        assert next(found) == ("log", "one\n", "4")
        log.write("é".encode()[1:] + b"\n\200\n")
        assert next(found) == ("log", "half é\n\ufffd\n", str(4 + 8 + 2))
        log.write(b"\r10%\r20%")
        assert next(found) == ("progress", "20%", None)
        log.write(b"\rdone\ndata: forged\n\nlast")
        assert next(found)[1] == "done\ndata: forged\n\n"
        finish(platform, run.name)
        rest = list(found)
    assert [(name, data) for name, data, _ in rest if name != "progress"] == [
        ("log", "last"),
        ("end", {"state": "succeeded"}),
    ]


def test_a_follower_goes_on_where_it_was_cut(platform: Platform, ada: TestClient, run: Path) -> None:
    write(run, b"one\ntwo\nthree\n")
    finish(platform, run.name)
    answer = ada.get(f"/v1/jobs/{run.name}/logs?follow=true", headers={"Last-Event-ID": "4"})
    found = list(events(iter(answer.text.split("\n"))))
    assert found[0] == ("log", "two\nthree\n", "14")
    assert found[-1][0] == "end"


def test_a_line_of_ten_megabytes_is_bounded_for_a_follower_and_whole_for_a_download(
    platform: Platform, ada: TestClient, run: Path
) -> None:
    write(run, b"x" * 10_000_000 + b"\nnext\n")
    finish(platform, run.name)
    text = ada.get(f"/v1/jobs/{run.name}/logs?follow=true").text
    assert len(text) < 200_000
    assert "9934464 bytes more" in text
    assert "next" in text
    size = 0
    for offset in range(0, 10_000_006, 8 * 2**20):
        size += len(ada.get(f"/v1/jobs/{run.name}/logs", params={"offset": offset, "limit": 8 * 2**20}).content)
    assert size == 10_000_006


def test_a_follower_whose_login_is_revoked_loses_the_stream(platform: Platform, ada: TestClient, run: Path) -> None:
    write(run, b"one\n")
    sid = ada.get("/v1/whoami").json()["sid"]
    headers = {"Authorization": ada.headers["Authorization"]}
    with (
        served(platform.app) as url,
        httpx.stream("GET", f"{url}/v1/jobs/{run.name}/logs?follow=true", headers=headers, timeout=10) as answer,
    ):
        found = events(answer.iter_lines())
        assert next(found)[0] == "log"
        platform.services.tokens.revoke(sid)
        with (run / "logs" / "driver.log").open("ab") as log:
            name, data, _ = next(found)
            log.write(b"after\n")
        assert (name, data["code"]) == ("error", "unauthenticated")  # type: ignore[index]
        assert list(found) == []


def test_a_tenant_s_streams_are_bounded_and_a_closed_one_makes_room(
    platform: Platform, ada: TestClient, run: Path
) -> None:
    platform.app.state.followers = Followers(limit=2)
    write(run, b"one\n")
    headers = {"Authorization": ada.headers["Authorization"]}

    def first_event(stack: ExitStack) -> str:
        url = f"{base}/v1/jobs/{run.name}/logs?follow=true"
        answer = stack.enter_context(httpx.stream("GET", url, headers=headers, timeout=10))
        found = events(answer.iter_lines())
        # An iterator that is forgotten closes its stream.
        stack.callback(lambda: found)
        return next(found)[0]

    with served(platform.app) as base, ExitStack() as kept:
        with ExitStack() as left:
            assert first_event(left) == "log"
            assert first_event(kept) == "log"
            assert first_event(left) == "error"

        def room() -> bool:
            with ExitStack() as tried:
                return first_event(tried) == "log"

        until(room, what="the closed stream makes room")
