"""The golden scenarios: what the platform is for, each told once, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from polyray.core.layout import Layout
from polyray.core.lifecycle import NodeState
from polyray.registry import versions
from polyray.store.tables import ApiKey, DatasetVersion, ModelVersion
from support.api import manifest_of
from support.stage import STAFFED, Stage, Step, Story
from support.steps import all_of, ask, ended, ends, happens, is_routed, runs, stop, submit, when

SMALL: dict[str, Any] = {"resources": {"cpu": 1, "memory": "1GiB"}}


def machines(stage: Stage, pool: str, count: int) -> None:
    """Assert how many machines of a pool there ever were, each with a row."""
    known = {node.node_id: node for node in stage.world.nodes()}
    made = [node_id for node_id in stage.world.cloud.billed if known[node_id].pool == pool]
    assert len(made) == count, f"{len(made)} machines of {pool} were launched, not {count}"
    bills = [known[node_id] for node_id in made]
    assert all(node.billed_from_ms is not None for node in bills)


def one_machine(pool: str = "cloud") -> Callable[[Stage], None]:
    return lambda stage: machines(stage, pool, 1)


RUN = Story("run", (submit(), runs(), ends()), ended("job", ("succeeded", 1, 0, 1)))
RUN_WITH_TWO = Story("run-with-two", (submit(workers=2), runs(), ends()), ended("job", ("succeeded", 1, 0, 1)))
FAILS = Story("fails", (submit(), runs(), ends(code=3)), ended("job", ("failed", 1, 0, 1)))
STOPPED = Story("stopped", (submit(), runs(), stop("job"), when("job", "stopped")), ended("job", ("stopped", 1, 0, 1)))

HEAD_LOST = Story(
    "head-lost",
    (submit(), runs(), happens(lambda stage: stage.world.kill_slice(stage.ids["job"], 0)), runs(attempt=2), ends()),
    ended("job", ("succeeded", 2, 1, 2)),
)
WORKER_LOST = Story(
    "worker-lost",
    (
        submit(workers=2),
        runs(),
        happens(lambda stage: stage.world.kill_slice(stage.ids["job"], 2)),
        when("job", "running", and_=lambda stage: stage.world.lease(stage.ids["job"], 2).generation == 2),
        ends(),
    ),
    ended("job", ("succeeded", 1, 0, 1)),
)
NODE_LOST = Story(
    "node-lost",
    (
        submit(),
        runs(),
        happens(lambda stage: stage.world.cloud.end_instance(stage.world.lease(stage.ids["job"], 0).node_id)),
        runs(attempt=2),
        ends(),
    ),
    ended("job", ("succeeded", 2, 1, 2)),
)

BURSTING: dict[str, Any] = {"capacity": ["on_demand"], **SMALL}
BURST = Story(
    "burst",
    (submit(**BURSTING), runs(), ends()),
    all_of(ended("job", ("succeeded", 1, 0, 1)), one_machine()),
)


def _cloud(**said: bool) -> Step:
    def change(stage: Stage) -> None:
        for name, value in said.items():
            setattr(stage.world.cloud, name, value)

    return happens(change)


def _launched(stage: Stage) -> bool:
    return len(stage.world.cloud.billed) > 1


def _refused(stage: Stage) -> bool:
    return any(node.pool == "cloud" for node in stage.world.nodes(NodeState.TERMINATED))


LAUNCH_TIMES_OUT = Story(
    "launch-times-out",
    (
        _cloud(launch_times_out=True),
        submit(**BURSTING),
        _launched,
        _cloud(launch_times_out=False),
        runs(),
        ends(),
    ),
    all_of(ended("job", ("succeeded", 1, 0, 1)), one_machine()),
)
NO_CAPACITY = Story(
    "no-capacity",
    (
        happens(lambda stage: stage.world.cloud.insufficient.add("cloud")),
        submit(**BURSTING),
        _refused,
        happens(lambda stage: stage.world.cloud.insufficient.discard("cloud")),
        runs(),
        ends(),
    ),
    all_of(ended("job", ("succeeded", 1, 0, 1)), one_machine()),
)

SERVICE: dict[str, Any] = {"kind": "service", "app": "serve:app", **SMALL}
DEPLOY = Story(
    "deploy",
    (
        submit("old", **SERVICE, name="digits"),
        when("old", "running", and_=is_routed),
        stop("old"),
        when("old", "stopped"),
        submit("new", **SERVICE, name="digits"),
        when("new", "running", and_=is_routed),
        stop("new"),
        when("new", "stopped"),
    ),
    all_of(ended("old", ("stopped", 1, 0, 1), named=2), ended("new", ("stopped", 1, 0, 1), named=2)),
)


def _health(healthy: bool) -> Step:
    return happens(lambda stage: setattr(stage.world, "healthy", healthy))


UNHEALTHY = Story(
    "unhealthy",
    (_health(False), submit("sick", **SERVICE, max_duration="20s"), when("sick", "failed")),
    ended("sick", ("failed", 1, 0, 1)),
)


def _down(stage: Stage) -> bool:
    """`polyray down`, once: where it is killed, the platform is simply started again."""
    if not stage.notes.get("down"):
        stage.notes["down"] = True
        assert stage.drain()
        stage.restart()
    return True


DOWN_AND_UP = Story(
    "down-and-up",
    (
        submit(**SMALL),
        submit("two", **SMALL),
        runs(),
        runs("two"),
        _down,
        *(
            step
            for key in ("job", "two")
            for step in (when(key, "running", and_=lambda stage, key=key: _runs_at_all(stage, key)), ends(key))  # type: ignore[misc]
        ),
    ),
    all_of(
        *(ended(key, ("succeeded", 1, 0, 1), ("succeeded", 2, 0, 2)) for key in ("job", "two")),
    ),
)


def _runs_at_all(stage: Stage, key: str) -> bool:
    return any(driver.rpartition(".")[0] == stage.ids[key] for driver in stage.world.fabric.running_drivers)


CHANGED: dict[str, Any] = {
    **STAFFED,
    "tenants": {
        **STAFFED["tenants"],
        "vision": {**STAFFED["tenants"]["vision"], "quota": {"cpu": 7, "memory": "20GiB"}},
        "hearing": {"quota": {"cpu": 1}, "members": {"bob": "member"}},
    },
    "idle_seconds": 5,
}


def _changed(stage: Stage) -> None:
    shown = {each["name"]: each for each in stage.ask("GET", "/v1/tenants", who="olga").json()["items"]}
    assert sorted(shown) == ["hearing", "speech", "vision"]
    assert {quota["flavor"]: quota["nominal"] for quota in shown["vision"]["quotas"]} == {
        "cpu": 7000,
        "memory": 20 * 2**30,
    }
    assert stage.definition.current().idle_seconds == 5
    stage.restart()
    assert stage.definition.current().idle_seconds == 5, "it is kept for the next start"


APPLY = Story(
    "apply",
    (submit(**SMALL), runs(), ask("POST", "/v1/platform", who="olga", json=CHANGED), runs(), ends()),
    all_of(ended("job", ("succeeded", 1, 0, 1)), _changed),
)

PARTS = (b"one", b"two")


def _writes_a_model(stage: Stage) -> None:
    made = Layout(stage.world.settings.store_root).run("vision", stage.ids["job"]) / "artifacts" / "model"
    made.mkdir(parents=True, exist_ok=True)
    (made / "weights.bin").write_bytes(b"weights")


def _registers(stage: Stage) -> bool:
    body = {"name": "digits", "job_id": stage.ids["job"], "path": "artifacts/model"}
    return ask("POST", "/v1/models", "model", json=body)(stage)


def _makes_a_key(stage: Stage) -> bool:
    """Make a key; a client that never saw it is told which one to revoke."""
    answer = stage.ask("POST", "/v1/keys", key="key", json={"name": "web"})
    assert answer.status_code in {201, 409, 503}, answer.text
    if answer.status_code == 409:
        with stage.world.store.read() as session:
            assert session.scalars(select(ApiKey.key_id)).one() in answer.json()["detail"]
    return answer.status_code != 503


def _published(stage: Stage) -> None:
    layout = Layout(stage.world.settings.store_root)
    with stage.world.store.read() as session:
        dataset = session.scalars(select(DatasetVersion)).one()
        model = session.scalars(select(ModelVersion)).one()
        session.scalars(select(ApiKey)).one()
    assert (dataset.version, model.version) == (1, 1)
    versions.verify(layout, model)
    files = layout.dataset("vision", "digits", 1) / "files"
    assert [path.read_bytes() for path in sorted(files.iterdir())] == list(PARTS)


PUBLISH = Story(
    "publish",
    (
        *(ask("PUT", f"/v1/blobs/{hashlib.sha256(part).hexdigest()}", content=part) for part in PARTS),
        ask(
            "POST",
            "/v1/datasets",
            "dataset",
            json={"name": "digits", "stage": "raw", "manifest": manifest_of("digits", PARTS)},
        ),
        submit(datasets=["digits@1"], **SMALL),
        runs(),
        happens(_writes_a_model),
        ends(),
        _registers,
        _makes_a_key,
    ),
    all_of(ended("job", ("succeeded", 1, 0, 1)), _published),
)

STORIES = (
    RUN,
    RUN_WITH_TWO,
    FAILS,
    STOPPED,
    HEAD_LOST,
    WORKER_LOST,
    NODE_LOST,
    BURST,
    LAUNCH_TIMES_OUT,
    NO_CAPACITY,
    DEPLOY,
    UNHEALTHY,
    DOWN_AND_UP,
    APPLY,
    PUBLISH,
)
