"""What stories are made of: what a client and the world outside do, and how a workload may end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select

from polyray.store.tables import Workload
from support.stage import Stage, Step

#: How a workload may end: (state, attempts, retries), and how often its program was started.
Ending = tuple[str, int, int, int]


# What the client does.


def submit(key: str = "job", /, **spec: Any) -> Step:
    """Submit a workload under an idempotency key until it is acknowledged."""
    content: dict[str, Any] = {"kind": "job", "name": key, **spec}
    if content["kind"] == "job":
        content.setdefault("run", "python train.py")

    def step(stage: Stage) -> bool:
        stage.notes[key] = spec
        answer = stage.ask("POST", f"/v1/{content['kind']}s", key=key, json=content)
        assert answer.status_code in {201, 503}, answer.text
        if answer.status_code == 201:
            told = answer.json()["id"]
            assert stage.ids.setdefault(key, told) == told, "one key is one workload"
        return answer.status_code == 201

    return step


def stop(key: str) -> Step:
    def step(stage: Stage) -> bool:
        kind = stage.row(key).kind
        answer = stage.ask("POST", f"/v1/{kind}s/{stage.ids[key]}/stop")
        assert answer.status_code in {200, 503}, answer.text
        return answer.status_code == 200

    return step


def ask(method: str, path: str, key: str | None = None, *, who: str = "ada", **sent: Any) -> Step:
    """Send a request until it is answered for good."""

    def step(stage: Stage) -> bool:
        answer = stage.ask(method, path, key=key, who=who, **sent)
        assert answer.status_code in {200, 201, 204, 503}, answer.text
        return answer.status_code != 503

    return step


# What the outside does.


def when(key: str, state: str, *, and_: Callable[[Stage], bool] = lambda _: True) -> Step:
    """Wait for a workload to be in a state (and something else to be so)."""
    return lambda stage: stage.row(key).state == state and and_(stage)


def happens(what: Callable[[Stage], object]) -> Step:
    def step(stage: Stage) -> bool:
        what(stage)
        return True

    return step


def runs(key: str = "job", attempt: int = 1) -> Step:
    """Wait until a job's program of an attempt runs, with every slice up."""

    def up(stage: Stage) -> bool:
        driver = f"{stage.ids[key]}.{attempt}"
        return driver in stage.world.fabric.running_drivers

    return when(key, "running", and_=up)


def ends(key: str = "job", code: int = 0) -> Step:
    return happens(lambda stage: stage.world.end_program(stage.ids[key], code))


def is_routed(stage: Stage) -> bool:
    return len(stage.world.gateway.routes.backends) == 1


# How it ends.


def ended(key: str, *allowed: Ending, named: int = 1) -> Callable[[Stage], None]:
    """Assert how a workload ended, that there is no other by its name, and that its client is told of it alone."""

    def check(stage: Stage) -> None:
        row = stage.row(key)
        got = (row.state, row.attempt, row.retries, stage.runs(key))
        assert got in allowed, f"{key} is {got} ({row.state_reason}), not one of {allowed}"
        with stage.world.store.read() as session:
            there = session.scalar(select(func.count()).select_from(Workload).where(Workload.name == row.name))
        assert there == named, "one key is one workload"
        assert submit(key, **stage.notes[key])(stage), "its client asks again, and is told the same"

    return check


def all_of(*checks: Callable[[Stage], None]) -> Callable[[Stage], None]:
    def check(stage: Stage) -> None:
        for each in checks:
            each(stage)

    return check
