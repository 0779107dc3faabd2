"""A backup of a platform that runs, and the way back to it, with real processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyray.sdk.login import DEVICE_GRANT
from support.machine import Machine
from support.wait import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

PLATFORM = """
tenants:
  vision: {quota: {cpu: 2, memory: 4GiB}, members: {ada: member}}
users:
  ada: {password: ada-password}
  olga: {password: olga-password}
operators: [olga]
pools:
  rack: {provider: local, capacity_type: reserved, count: 1, resources: {cpu: 2, memory: 4GiB}, usd_per_hour: 0.40}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    one = Machine(tmp_path)
    yield one
    one.polyray("down", "--timeout", "60")


def token_of(machine: Machine, user: str) -> str:
    """Log in by the device flow, as a person would, and return a platform token."""
    oidc = f"{machine.api_url}/issuer/protocol/openid-connect"
    begun = httpx.post(f"{oidc}/auth/device", data={"client_id": "polyray-cli", "scope": "openid"}).json()
    form = {"user_code": begun["user_code"], "username": user, "password": f"{user}-password", "decision": "approve"}
    httpx.post(f"{machine.api_url}/issuer/device", data=form).raise_for_status()
    grant = {"grant_type": DEVICE_GRANT, "device_code": begun["device_code"], "client_id": "polyray-cli"}
    access = httpx.post(f"{oidc}/token", data=grant).raise_for_status().json()["access_token"]
    answer = httpx.post(f"{machine.api_url}/v1/token", json={"subject_token": access})
    return str(answer.raise_for_status().json()["access_token"])


def ask(machine: Machine, token: str, method: str, path: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": uuid.uuid4().hex}
    return httpx.request(method, f"{machine.api_url}{path}", headers=headers, json=body or None, timeout=20)


def state(machine: Machine, token: str, job: str) -> str:
    return str(ask(machine, token, "GET", f"/v1/jobs/{job}").json()["state"])


def submit(machine: Machine, token: str, name: str, run: str) -> str:
    answer = ask(machine, token, "POST", "/v1/jobs", kind="job", name=name, run=run)
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def test_a_platform_goes_back_to_a_backup_that_was_made_while_it_ran(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "platform.yaml").write_text(PLATFORM)
    ports = ("--api-port", "0", "--gateway-port", "0")
    up = machine.polyray("up", "-f", str(tmp_path / "platform.yaml"), *ports)
    assert up.returncode == 0, up.stderr
    ada = token_of(machine, "ada")
    runs = submit(machine, ada, "runs", "sleep 15")
    until(lambda: state(machine, ada, runs) == "running", seconds=180, what="the job runs")

    backup = tmp_path / "one.polyray-backup"
    made = machine.polyray("backup", str(backup))
    assert made.returncode == 0, made.stderr
    assert "MiB in" in made.stdout
    assert "not in it" in made.stdout
    since = submit(machine, ada, "since", "true")

    refused = machine.polyray("restore", str(backup))
    assert refused.returncode == 5
    assert "polyray down" in refused.stderr
    tried = machine.polyray("restore", str(backup), "--dry-run", "-o", "json")
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout)["gap"]["lost"]["workloads"]["names"] == [since]

    down = machine.polyray("down")
    assert down.returncode == 0, down.stderr
    restored = machine.polyray("restore", str(backup))
    assert restored.returncode == 0, restored.stderr
    assert f"lost workloads: 1 ({since})" in restored.stdout
    assert "events" in restored.stdout
    assert "is kept" in restored.stderr
    (report,) = machine.settings.state_dir.glob("restore-report-*.json")
    assert str(report) in restored.stderr

    up = machine.polyray("up", *ports)
    assert up.returncode == 0, up.stderr
    assert ask(machine, ada, "GET", "/v1/whoami").status_code == 401
    again, olga = token_of(machine, "ada"), token_of(machine, "olga")
    assert ask(machine, again, "GET", f"/v1/jobs/{since}").status_code == 404
    until(lambda: state(machine, again, runs) == "succeeded", seconds=240, what="what ran is run again")

    (tmp_path / "olga").write_text(olga)
    told = machine.polyray("audit", "verify", token=tmp_path / "olga")
    assert told.returncode == 0, told.stderr
    assert "whole but for gaps" in told.stdout
    assert "restored from a backup" in told.stderr
    status = machine.polyray("status", token=tmp_path / "olga")
    assert "are lost" in status.stdout, status.stdout
    assert "audit" in machine.polyray("audit", "ls", "-n", "20", token=tmp_path / "olga").stdout
