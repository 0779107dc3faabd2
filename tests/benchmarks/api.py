"""How many submits the API takes, how long they take, and what a platform of ten thousand entities costs at rest.

    python tests/benchmarks/api.py [--quick]

A control plane (API on a real port, reconcilers, leadership; core and cloud in memory) runs in a process of its
own, on SQLite and on PostgreSQL alternately. Clients are threads with a kept connection each, which send the
next job as soon as the last is acknowledged; p99 is over all their submits of one round.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

NODES = 10
#: A host has port blocks for some eighty slices.
SESSIONS = 60
CLIENTS = 8
JOB = {"kind": "job", "name": "digits", "run": "python train.py", "resources": {"cpu": 8}}


def serve(directory: Path, database_url: str) -> None:
    """Be the control plane; obey lines of JSON on standard input, answer each with one."""
    import structlog

    from polyray.core.interpreter import answer_soon
    from support.live_plane import live_plane
    from support.wait import until

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    answer_soon()
    with live_plane(directory, NODES, database_url=database_url) as plane:
        _say(url=plane.url, token=plane.token("ada"), pid=os.getpid())
        for line in sys.stdin:
            asked = json.loads(line)
            match asked["do"]:
                case "begin":
                    plane.queue(SESSIONS, kind="session", run=None, resources={"cpu": 1, "memory": "1GiB"})
                    until(lambda: len(plane.fabric.held) >= SESSIONS, seconds=120, what="sessions run")
                case "fill":
                    plane.queue(asked["ended"], ended=True)
                    plane.queue(asked["queued"], resources={"cpu": 8})
            _say(done=asked["do"])


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


class Server:
    """A control plane in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        told = self._hear()
        self.url, self.token = urlsplit(told["url"]), told["token"]
        self.process = psutil.Process(told["pid"])

    def do(self, what: str, **more: object) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"do": what, **more}), file=self._process.stdin, flush=True)
        self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def connect(self) -> HTTPConnection:
        assert self.url.hostname is not None
        return HTTPConnection(self.url.hostname, self.url.port, timeout=60)

    def ask(self, connection: HTTPConnection, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if body is not None:
            headers["Idempotency-Key"] = uuid4().hex
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return json.loads(content)


@contextmanager
def running(database_url: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="polyray-bench-") as directory:
        command = [sys.executable, __file__, "--serve", directory, database_url]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield Server(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def submits(server: Server, count: int) -> tuple[list[float], float]:
    """Return the milliseconds of each submit, and how many were acknowledged a second."""
    each = count // CLIENTS

    def client(_: int) -> list[float]:
        connection, took = server.connect(), []
        for _ in range(each):
            began = time.perf_counter()
            server.ask(connection, "POST", "/v1/jobs", JOB)
            took.append((time.perf_counter() - began) * 1000)
        connection.close()
        return took

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        times = [ms for took in pool.map(client, range(CLIENTS)) for ms in took]
    return times, len(times) / (time.perf_counter() - began)


def lists(server: Server) -> list[float]:
    """Return the milliseconds of each page of 100 of all jobs."""
    connection, took, cursor = server.connect(), [], None
    while True:
        began = time.perf_counter()
        page = server.ask(connection, "GET", f"/v1/jobs?limit=100{f'&cursor={cursor}' if cursor else ''}")
        took.append((time.perf_counter() - began) * 1000)
        cursor = page["next_cursor"]
        if cursor is None:
            connection.close()
            return took


def idle_cpu_pct(server: Server, seconds: float) -> float:
    """Return the part of one core that the process uses while nobody asks it for anything."""
    before, began = server.process.cpu_times(), time.monotonic()
    threading.Event().wait(seconds)
    after = server.process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return 100 * used / (time.monotonic() - began)


def settled(server: Server) -> None:
    """Wait until the process is at rest for three seconds on end, at most two minutes."""
    for _ in range(40):
        if idle_cpu_pct(server, 3.0) < 3.0:
            return


def broker_cycle_ms(rounds: int) -> list[float]:
    """Return the milliseconds of processor time that a plan of 10,000 that wait on 100 full nodes takes."""
    from polyray.broker.plan import plan
    from support.capacity import NOW_MS, amounts, node, snapshot, tenant, waiting

    machines = [node(f"n{n}", amounts(8, 64), amounts(8, 64)) for n in range(100)]
    asked = (amounts(1, 1),)  # one object for all that ask the same, as they are read from the store
    queue = [waiting(f"job-{n}", asked, queued_ms=NOW_MS - n, tenant="vision") for n in range(10_000)]
    seen = snapshot(tenant("vision"), tenant("speech"), *machines, *queue)
    took = []
    for _ in range(rounds):
        began = time.process_time()
        plan(seen)
        took.append((time.process_time() - began) * 1000)
    return took


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def one_round(database_url: str, *, count: int, queued: int, ended: int, idle_seconds: float) -> dict[str, float]:
    """Return the figures of one life of a control plane."""
    with running(database_url) as server:
        server.do("begin")
        submits(server, CLIENTS * 4)
        times, rate = submits(server, count)
        server.do("fill", queued=queued, ended=ended)
        behind, behind_rate = submits(server, count)
        listed = lists(server)
        settled(server)
        idle = idle_cpu_pct(server, idle_seconds)
        rss = server.process.memory_info().rss / 2**20
    return {
        "submit_p50_ms": statistics.median(times),
        "submit_p99_ms": p99(times),
        "submits_per_s": rate,
        "submit_p99_ms_behind_10000": p99(behind),
        "submits_per_s_behind_10000": behind_rate,
        "list_p99_ms": p99(listed),
        "idle_cpu_pct": idle,
        "rss_mib": rss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round instead of three")
    parser.add_argument("--only", choices=["sqlite", "postgresql"], help="leave the other store out")
    parser.add_argument("--serve", nargs=2, metavar=("DIRECTORY", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), given.serve[1])
        return
    from support.postgresql import running_server

    rounds = 1 if given.quick else 3
    size = (
        {"count": 400, "queued": 2000, "ended": 500}
        if given.quick
        else {"count": 2000, "queued": 10_000, "ended": 2000}
    )
    found: dict[str, dict[str, list[float]]] = {"sqlite": {}, "postgresql": {}}
    load = [os.getloadavg()[0]]
    with running_server() as database:
        for number in range(rounds):
            for store in found:
                if given.only not in {None, store}:
                    continue
                url = "" if store == "sqlite" else database.make_database(f"api_{number}")
                measured = one_round(url, **size, idle_seconds=5.0 if given.quick else 20.0)
                for key, value in measured.items():
                    found[store].setdefault(key, []).append(value)
                load.append(os.getloadavg()[0])
    cycles = broker_cycle_ms(5)
    _print(found, cycles, load)


def _print(found: dict[str, dict[str, list[float]]], cycles: list[float], load: list[float]) -> None:
    print(f"{'figure':34} {'store':11} {'min':>9} {'median':>9} {'max':>9}")
    figures: dict[str, float] = {}
    for store, keys in found.items():
        for key, values in keys.items():
            _row(key, store, values)
            figures[key if store == "sqlite" else f"{key}_postgresql"] = round(statistics.median(values), 1)
            if store == "sqlite":
                figures[f"{key}_sqlite"] = figures[key]
    _row("broker_cycle_ms", "-", cycles)
    figures["broker_cycle_ms"] = round(statistics.median(cycles), 1)
    figures["load_average"] = round(max(load), 1)
    print(f"load average {min(load):.1f} to {max(load):.1f} on {os.cpu_count()} cores")
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {CLIENTS} clients")
    print(json.dumps(figures))


def _row(key: str, store: str, values: list[float]) -> None:
    print(f"{key:34} {store:11} {min(values):9.1f} {statistics.median(values):9.1f} {max(values):9.1f}")


if __name__ == "__main__":
    main()
