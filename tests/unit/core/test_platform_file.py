from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyray.core.errors import Invalid
from polyray.core.platform_file import PlatformFile, load_platform_file
from polyray.core.resources import Resources

POOL: dict[str, Any] = {
    "provider": "local",
    "capacity_type": "on_demand",
    "resources": {"cpu": 1, "memory": "2GiB"},
    "usd_per_hour": 1.20,
}
WHOLE = """
tenants:
  vision:
    display_name: Vision lab
    quota: {cpu: 8, memory: 16GiB, h100: {nominal: 8, borrowing_limit: 4}}
    budget_usd_per_month: 50
    members: {ada: admin, bob: viewer}
  speech:
    cohort: research
    quota: {cpu: 0.5}
    members: {bob: member}
users:
  ada: {display_name: Ada, password: correct horse}
  bob: {password: battery staple}
operators: [ada]
pools:
  rack: {provider: local, capacity_type: reserved, count: 1, resources: {cpu: 2, memory: 4GiB}, usd_per_hour: 0.40}
  cloud:
    {provider: local, capacity_type: on_demand, max_nodes: 4, boot_seconds: 3, resources: {cpu: 1}, usd_per_hour: 1.2}
idle_seconds: 5
"""


def test_a_whole_file_reads_as_written(tmp_path: Path) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(WHOLE)
    platform = load_platform_file(file)
    assert platform.tenants["vision"].amounts("vision") == {
        "cpu": (8000, 0),
        "memory": (16 * 2**30, 0),
        "h100": (8000, 4000),
    }
    assert platform.pools["rack"].bundle == Resources(cpu=2000, memory=2**32)
    assert platform.groups_of("ada") == ["/operators", "/tenants/vision/admin"]
    assert platform.groups_of("bob") == ["/tenants/vision/viewer", "/tenants/speech/member"]
    assert platform.idle_seconds == 5


def test_an_empty_file_is_an_empty_platform(tmp_path: Path) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text("# nothing yet\n")
    assert load_platform_file(file) == PlatformFile()


@pytest.mark.parametrize("text", ["[]", "3", "false", "text"])
def test_a_file_that_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(text)
    with pytest.raises(Invalid):
        load_platform_file(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(Invalid) as refused:
            load_platform_file(path)
        assert refused.value.field == str(path)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tenant": {}}, "tenant"),
    ({"tenants": {"vision": {"quotas": {}}}}, "tenants.vision.quotas"),
    ({"tenants": {"Vision": {}}}, "tenants"),
    ({"tenants": {"vision": {"display_name": "a\u202eb"}}}, "tenants.vision.display_name"),
    ({"tenants": {"vision": {"cohort": "A"}}}, "tenants.vision.cohort"),
    ({"tenants": {"vision": {"quota": {"cpu": -1}}}}, "tenants.vision.quota.cpu.nominal"),
    ({"tenants": {"vision": {"quota": {"cpu": "8"}}}}, "tenants.vision.quota.cpu.nominal"),
    ({"tenants": {"vision": {"quota": {"H100": 8}}}}, "tenants.vision.quota.H100"),
    ({"tenants": {"vision": {"quota": {"memory": True}}}}, "tenants.vision.quota.memory.nominal"),
    ({"tenants": {"vision": {"quota": {"memory": -1}}}}, "tenants.vision.quota.memory.nominal"),
    ({"tenants": {"vision": {"quota": {"memory": 64}}}}, "tenants.vision.quota.memory.nominal"),
    ({"operators": "olga"}, "operators"),
    (
        {"tenants": {"vision": {"quota": {"h100": {"nominal": 1, "borrowing_limit": -1}}}}},
        "tenants.vision.quota.h100.borrowing_limit",
    ),
    ({"tenants": {"vision": {"quota": {"h100": {"borrowing_limit": 1}}}}}, "tenants.vision.quota.h100.nominal"),
    ({"tenants": {"vision": {"quota": {"h100": {"nominal": 1, "lend": 1}}}}}, "tenants.vision.quota.h100.lend"),
    ({"tenants": {"vision": {"budget_usd_per_month": -5}}}, "tenants.vision.budget_usd_per_month"),
    ({"tenants": {"vision": {"budget_usd_per_month": float("nan")}}}, "tenants.vision.budget_usd_per_month"),
    ({"tenants": {"vision": {"members": {"ada": "owner"}}}}, "tenants.vision.members.ada"),
    (
        {"tenants": {"vision": {"members": {"eve": "admin"}}}, "users": {"ada": {"password": "correct horse"}}},
        "tenants.vision.members",
    ),
    ({"users": {"ada": {"password": "short"}}}, "users.ada.password"),
    ({"users": {"ada": {}}}, "users.ada.password"),
    ({"users": {"Ada": {"password": "correct horse"}}}, "users"),
    ({"users": {"ada": {"password": "correct horse", "display_name": "\x1b[2J"}}}, "users.ada.display_name"),
    ({"operators": ["eve"], "users": {"ada": {"password": "correct horse"}}}, "operators"),
    ({"pools": {"cloud": {**POOL, "provider": "gcp"}}}, "pools.cloud.provider"),
    ({"pools": {"cloud": {**POOL, "resources": {"gpu": 1.5}}}}, "pools.cloud.resources.gpu"),
    ({"pools": {"cloud": {**POOL, "usd_per_hour": -1}}}, "pools.cloud.usd_per_hour"),
    ({"pools": {"cloud": {**POOL, "count": 1}}}, "pools.cloud.count"),
    ({"pools": {"cloud": {**POOL, "max_nodes": True}}}, "pools.cloud.max_nodes"),
    ({"pools": {"cloud": {**POOL, "max_nodes": -1}}}, "pools.cloud.max_nodes"),
    ({"pools": {"cloud": {**POOL, "zone": "a b"}}}, "pools.cloud.zone"),
    ({"pools": {"cloud": {**POOL, "instance_type": "x\n"}}}, "pools.cloud.instance_type"),
    ({"pools": {"Cloud": POOL}}, "pools"),
    ({"idle_seconds": 0}, "idle_seconds"),
    ({"idle_seconds": True}, "idle_seconds"),
]


@pytest.mark.parametrize(("content", "field"), WRONG, ids=[f"{n}-{field}" for n, (_, field) in enumerate(WRONG)])
def test_a_wrong_key_is_refused_naming_it(content: dict[str, Any], field: str, tmp_path: Path) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(json.dumps(content).replace("NaN", ".nan"))
    with pytest.raises(Invalid) as refused:
        load_platform_file(file)
    assert refused.value.field == field


def test_a_refusal_never_shows_a_password(tmp_path: Path) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text("users: {ada: {password: hunter2}}")
    with pytest.raises(Invalid) as refused:
        load_platform_file(file)
    assert "hunter2" not in str(refused.value)
