"""Every key of a workload, what it may be, and how a wrong one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from polyray.core.errors import Invalid
from polyray.core.resources import Resources
from polyray.core.spec import HEAD, CapacityType, DatasetRef, Kind, RetryReason, load_workload, parse_workload

JOB: dict[str, Any] = {"kind": "job", "name": "digits", "run": "python train.py"}
SERVICE: dict[str, Any] = {"kind": "service", "name": "digits", "app": "serve:app"}
SESSION: dict[str, Any] = {"kind": "session", "name": "default"}


def test_a_full_job_reads_as_written() -> None:
    spec = load_workload(
        """
        kind: job
        name: digits
        project: research
        resources: {gpu: h100:8, cpu: 16, memory: 64GiB}
        workers: 2
        priority: high
        capacity: [reserved, spot]
        max_wait: 90s
        max_cost: 3.06
        max_duration: 12h
        retry: {on: [preempted], limit: 1}
        datasets: [digits@1, labels@12]
        env: {EPOCHS: "3"}
        working_dir: .
        run: python train.py
        """
    )
    assert spec.kind is Kind.JOB
    assert spec.bundle == Resources(cpu=16_000, h100=8000, memory=64 * 2**30)
    assert spec.capacity == (CapacityType.RESERVED, CapacityType.SPOT)
    assert spec.max_wait_ms == 90_000
    assert spec.max_duration_ms == 43_200_000
    assert spec.max_cost_usd_micros == 3_060_000
    assert spec.retry.on == (RetryReason.PREEMPTED,)
    assert spec.dataset_refs == (DatasetRef("digits", 1), DatasetRef("labels", 12))
    assert spec.env == {"EPOCHS": "3"}


def test_a_short_job_has_sound_defaults() -> None:
    spec = parse_workload(JOB)
    assert spec.bundles == (Resources(cpu=1000, memory=2**30),)
    assert spec.project == "default"
    assert spec.capacity == (CapacityType.RESERVED, CapacityType.ON_DEMAND)
    assert spec.max_wait_ms is None
    assert spec.max_cost_usd_micros is None
    assert spec.retry.limit == 3


def test_several_workers_get_a_head_that_carries_none_of_them() -> None:
    spec = parse_workload({**JOB, "workers": 3, "resources": {"gpu": "h100:1"}})
    assert spec.bundles == (HEAD, *[Resources(cpu=1000, h100=1000, memory=2**30)] * 3)


def test_a_spec_survives_the_store() -> None:
    spec = parse_workload({**JOB, "max_cost": "1.5", "datasets": ["digits@1"], "resources": {"gpu": 0.5}})
    assert parse_workload(spec.model_dump(mode="json")) == spec


WRONG: list[tuple[dict[str, Any], str]] = [
    ({**JOB, "kind": "cron"}, "kind"),
    ({**JOB, "kind": None}, "kind"),
    ({"name": "a", "run": "x"}, "kind"),
    ({"kind": "job", "run": "x"}, "name"),
    ({**JOB, "name": "A b"}, "name"),
    ({**JOB, "name": 7}, "name"),
    ({**JOB, "project": "A"}, "project"),
    ({**JOB, "resources": {"gpu": -1}}, "resources.gpu"),
    ({**JOB, "resources": {"gpu": 1.5}}, "resources.gpu"),
    ({**JOB, "resources": {"gpu": "1"}}, "resources.gpu"),
    ({**JOB, "resources": {"cpu": 0}}, "resources.cpu"),
    ({**JOB, "resources": {"memory": 2**63}}, "resources.memory"),
    ({**JOB, "resources": {"tpu": 1}}, "resources"),
    ({**JOB, "resources": [1]}, "resources"),
    ({**JOB, "workers": 0}, "workers"),
    ({**JOB, "workers": -1}, "workers"),
    ({**JOB, "workers": 1001}, "workers"),
    ({**JOB, "workers": True}, "workers"),
    ({**JOB, "workers": "2"}, "workers"),
    ({**JOB, "workers": 1.0}, "workers"),
    ({**JOB, "workers": float("nan")}, "workers"),
    ({**JOB, "priority": "urgent"}, "priority"),
    ({**JOB, "priority": 1}, "priority"),
    ({**JOB, "capacity": []}, "capacity"),
    ({**JOB, "capacity": ["spot", "spot"]}, "capacity"),
    ({**JOB, "capacity": "spot"}, "capacity"),
    ({**JOB, "capacity": ["free"]}, "capacity.0"),
    ({**JOB, "max_wait": "90"}, "max_wait"),
    ({**JOB, "max_wait": 90}, "max_wait"),
    ({**JOB, "max_wait": "-1s"}, "max_wait"),
    ({**JOB, "max_wait": "0s"}, "max_wait"),
    ({**JOB, "max_duration": "400d"}, "max_duration"),
    ({**JOB, "max_duration": "١h"}, "max_duration"),
    ({**JOB, "max_cost": -1}, "max_cost"),
    ({**JOB, "max_cost": "cheap"}, "max_cost"),
    ({**JOB, "max_cost": True}, "max_cost"),
    ({**JOB, "max_cost": [1]}, "max_cost"),
    ({**JOB, "retry": {"limit": -1}}, "retry.limit"),
    ({**JOB, "retry": {"limit": True}}, "retry.limit"),
    ({**JOB, "retry": {"on": ["oom"]}}, "retry.on.0"),
    ({**JOB, "retry": {"times": 1}}, "retry.times"),
    ({**JOB, "datasets": "digits@1"}, "datasets"),
    ({**JOB, "datasets": ["digits"]}, "datasets"),
    ({**JOB, "datasets": ["digits@0"]}, "datasets"),
    ({**JOB, "datasets": ["digits@latest"]}, "datasets"),
    ({**JOB, "datasets": ["../x@1"]}, "datasets"),
    ({**JOB, "datasets": ["digits@1", "digits@2"]}, "datasets"),
    ({**JOB, "env": {"EPOCHS": 3}}, "env.EPOCHS"),
    ({**JOB, "env": {"A B": "x"}}, "env"),
    ({**JOB, "env": {"": "x"}}, "env"),
    ({**JOB, "env": {"A": "x\0y"}}, "env.A"),
    ({**JOB, "env": {"A": "x" * 40_000}}, "env.A"),
    ({**JOB, "env": {f"A{n}": "x" for n in range(201)}}, "env"),
    ({**JOB, "working_dir": 3}, "working_dir"),
    ({**JOB, "working_dir": "a\0b"}, "working_dir"),
    ({**JOB, "run": "a\0b"}, "run"),
    ({**JOB, "run": "\ud800"}, "run"),
    ({**JOB, "run": ""}, "run"),
    ({**JOB, "run": "   "}, "run"),
    ({**JOB, "run": ["python"]}, "run"),
    ({**JOB, "run": "true " + "é" * 50_000}, "run"),  # Linux takes no argument of more than 128 KiB
    ({"kind": "job", "name": "a"}, "run"),
    ({**JOB, "app": "a:b"}, "app"),
    ({**JOB, "model": "digits@1"}, "model"),
    ({**SERVICE, "run": "x"}, "run"),
    ({"kind": "service", "name": "a"}, "app"),
    ({**SERVICE, "app": "serve"}, "app"),
    ({**SERVICE, "app": "serve:app; rm"}, "app"),
    ({**SERVICE, "app": "../serve:app"}, "app"),
    ({**SERVICE, "model": "digits"}, "model"),
    ({**SESSION, "run": "x"}, "run"),
    ({**SESSION, "app": "a:b"}, "app"),
    ({**SESSION, "model": "digits@1"}, "model"),
    ({**JOB, "gpus": 1}, "gpus"),
    ({**JOB, 1: 2}, "1"),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("content", "field"), WRONG, ids=[f"{field}-{n}" for n, (_, field) in enumerate(WRONG)])
def test_a_wrong_key_is_refused_naming_it(content: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_workload(content)
    assert refused.value.field == field
    assert refused.value.message
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("retry", {"limit": 200}, "retry.limit: 200 is too much (at most 100)"),
        ("retry", {"limit": -1}, "retry.limit: -1 is too little (at least 0)"),
        ("workers", 5000, "workers: 5000 is too much (at most 1000)"),
        ("workers", 0, "workers: 0 is too little (at least 1)"),
        ("priority", "urgent", "priority: 'urgent' is none of them (write 'low', 'normal' or 'high')"),
        ("capacity", ["spt"], "capacity.0: 'spt' is none of them (write 'reserved', 'spot' or 'on_demand')"),
    ],
)
def test_a_value_that_is_out_of_bounds_is_refused_with_the_bounds(key: str, value: object, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_workload({**JOB, key: value})
    assert str(refused.value) == told


@pytest.mark.parametrize("content", [None, [], "job", 3, [("kind", "job")]])
def test_a_workload_that_is_no_mapping_is_refused(content: object) -> None:
    with pytest.raises(Invalid, match="start with 'kind: job'"):
        parse_workload(content)


def test_an_unknown_key_is_called_unknown() -> None:
    with pytest.raises(Invalid, match="gpus: there is no such key"):
        parse_workload({**JOB, "gpus": 1})


@pytest.mark.parametrize(
    "name",
    [
        "RAY_ADDRESS",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_AUTH_MODE",
        "POLYRAY_RUN_DIR",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "PYTHONPATH",
        "PYTHONHOME",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "GRPC_ENABLE_FORK_SUPPORT",
        "HOME",
        "PATH",
        "TMPDIR",
    ],
)
def test_the_platforms_own_variables_cannot_be_set(name: str) -> None:
    with pytest.raises(Invalid, match="belongs to the platform") as refused:
        parse_workload({**JOB, "env": {name: "x"}})
    assert refused.value.field == f"env.{name}"


@pytest.mark.parametrize("name", ["A", "_a", "MY_RAY_FLAG", "PATHS", "ray_address"])
def test_other_variables_can_be_set(name: str) -> None:
    assert parse_workload({**JOB, "env": {name: "x"}}).env == {name: "x"}
