"""The log of a job that prints without end: bounded on disk, its offsets the same for ever, what was cut is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from polyray.core.lifecycle import WorkloadState
from polyray.store.steps import step
from polyray.store.tables import Workload
from polyray.tenants.sandboxes.driver_log import DriverLog
from support.api import Platform, job
from support.served import served
from support.wait import until

LIMIT = 4000


@pytest.fixture
def run(platform: Platform, ada: TestClient) -> Path:
    return platform.layout.run("vision", ada.post("/v1/jobs", json=job()).json()["id"])


@pytest.fixture
def log(run: Path) -> DriverLog:
    return DriverLog(run / "logs" / "driver.log", LIMIT)


def line(n: int) -> bytes:
    return b"line %06d\n" % n


def read_all(ada: TestClient, run: Path, *, offset: int = 0, limit: int = 700) -> tuple[bytes, int]:
    """Return what a client gets that reads on and on, and the offset it ends at."""
    got = b""
    while True:
        answer = ada.get(f"/v1/jobs/{run.name}/logs", params={"offset": offset, "limit": limit})
        assert answer.status_code == 200
        if not answer.content:
            return got, offset
        got, offset = got + answer.content, int(answer.headers["x-next-offset"])


def used(run: Path) -> int:
    return sum(file.stat().st_size for file in (run / "logs").iterdir())


def test_a_log_below_its_limit_is_whole_however_it_is_read(ada: TestClient, run: Path, log: DriverLog) -> None:
    content = b"".join(line(n) for n in range(270))
    for at in range(0, len(content), 97):
        log.write(content[at : at + 97])
    assert read_all(ada, run) == (content, len(content))
    assert read_all(ada, run, offset=1234, limit=1) == (content[1234:], len(content))


def test_a_job_that_prints_without_end_keeps_its_beginning_and_its_end_and_says_what_was_cut(
    ada: TestClient, run: Path, log: DriverLog
) -> None:
    for n in range(20_000):
        log.write(line(n))
        assert n % 1000 or used(run) <= LIMIT
    got, end = read_all(ada, run)
    assert end == 20_000 * len(line(0)), "offsets count all that was ever written"
    beginning, _, rest = got.partition(b"\n[... ")
    number, _, ending = rest.partition(b" bytes of this log were not kept ...]\n")
    assert beginning.startswith(line(0) + line(1))
    assert ending.endswith(line(19_998) + line(19_999))
    assert len(beginning) + int(number) + len(ending) == end
    cut = ada.get(f"/v1/jobs/{run.name}/logs", params={"offset": 5000})
    assert int(cut.headers["x-log-cut"]) == int(cut.headers["x-next-offset"]) - 5000
    assert cut.headers["x-log-size"] == str(end)


def test_the_next_attempt_goes_on_where_the_last_one_ended(ada: TestClient, run: Path, log: DriverLog) -> None:
    for n in range(500):
        log.write(line(n))
    again = DriverLog(run / "logs" / "driver.log", LIMIT)
    again.write(b"the second attempt\n")
    got, end = read_all(ada, run)
    assert got.endswith(line(499) + b"the second attempt\n")
    assert end == 500 * len(line(0)) + len(b"the second attempt\n")
    assert used(run) <= LIMIT


def followed(lines: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (event, text, id) of a stream."""
    name = data = identity = ""
    for text in lines:
        key, _, value = text.partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            data = value
        elif key == "id":
            identity = value
        elif not text and name:
            yield name, str(json.loads(data)), identity
            name = data = identity = ""


def test_a_follower_s_offsets_survive_rotation_and_it_is_told_what_it_missed(
    platform: Platform, ada: TestClient, run: Path, log: DriverLog
) -> None:
    headers = {"Authorization": ada.headers["Authorization"]}
    path = f"/v1/jobs/{run.name}/logs?follow=true"
    log.write(line(0))
    with served(platform.app) as url:
        with httpx.stream("GET", url + path, headers=headers, timeout=20) as answer:
            found = followed(answer.iter_lines())
            assert next(found) == ("log", line(0).decode(), str(len(line(0))))
            log.write(line(1) + b"caf\xc3")  # half a character
            name, text, identity = next(found)
            assert (name, text, identity) == ("log", line(1).decode(), str(2 * len(line(0))))
        log.write(b"\xa9\n")
        for n in range(2, 20_000):
            log.write(line(n))
        with platform.store.write() as session:
            row = session.get_one(Workload, run.name)
            for state in (WorkloadState.STARTING, WorkloadState.RUNNING, WorkloadState.SUCCEEDED):
                step(session, row, state, now_ms=1)
        with httpx.stream("GET", url + path, headers={**headers, "Last-Event-ID": identity}, timeout=20) as answer:
            rest = list(followed(answer.iter_lines()))
    told = "".join(text for name, text, _ in rest if name == "log")
    assert told.startswith("café\n" + line(2).decode())
    assert "bytes of this log were not kept" in told
    assert told.endswith(line(19_999).decode())
    assert rest[-1][0] == "end"
    assert [identity for name, _, identity in rest if name == "log"][-1] == str(
        20_000 * len(line(0)) + len("café\n") + 1
    )


def test_a_follower_is_not_told_of_a_cut_while_it_keeps_up(
    platform: Platform, ada: TestClient, run: Path, log: DriverLog
) -> None:
    headers = {"Authorization": ada.headers["Authorization"]}
    seen: list[str] = []
    with (
        served(platform.app) as url,
        httpx.stream("GET", f"{url}/v1/jobs/{run.name}/logs?follow=true", headers=headers, timeout=20) as answer,
    ):
        found = followed(answer.iter_lines())
        for n in range(0, 600, 60):
            log.write(b"".join(line(m) for m in range(n, n + 60)))
            while sum(map(len, seen)) < (n + 60) * len(line(0)):
                name, text, _ = next(found)
                seen += [text] if name == "log" else []
    assert "".join(seen).encode() == b"".join(line(n) for n in range(600))
    until(lambda: used(run) <= LIMIT, what="the log stays within its limit")


@pytest.mark.parametrize("name", ["driver.log.1000", "driver.log.99999999999"])
def test_a_link_in_place_of_a_later_part_is_not_followed(
    platform: Platform, ada: TestClient, run: Path, log: DriverLog, name: str
) -> None:
    canary = platform.services.settings.state_dir / "keys" / "canary"
    canary.write_bytes(b"canary" * 1000)
    log.write(b"x" * 1000)
    (run / "logs" / name).symlink_to(canary)
    offset = int(name.rpartition(".")[2])
    answer = ada.get(f"/v1/jobs/{run.name}/logs", params={"offset": offset})
    assert answer.status_code == 409
    assert b"canary" not in answer.content
