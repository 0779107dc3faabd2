"""`polyray up` and `polyray down` on the real components."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyray.supervise.leftovers import find_leftovers
from polyray.supervise.processes import is_alive, send
from support.machine import Machine
from support.wait import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    one = Machine(tmp_path)
    yield one
    one.polyray("down", "--timeout", "60")


def test_the_platform_starts_heals_is_adopted_and_leaves_nothing(machine: Machine) -> None:
    started = machine.polyray("up", "--api-port", "0", "--gateway-port", "0", "-o", "json")
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["api_url"] == machine.api_url
    assert "the platform is ready" in started.stderr
    assert machine.settings.state_dir.stat().st_mode & 0o777 == 0o700

    again = machine.polyray("up")
    assert again.returncode == 0, again.stderr
    assert "running already" in again.stderr

    server = machine.process("server")
    send(server, signal.SIGKILL)
    until(lambda: machine.process("server") != server and machine.ready(), seconds=60, what="the server is back")

    names = ("core", "fabric", "gateway", "responder", "server")
    before = {name: machine.process(name) for name in names}
    supervisor = machine.supervisor
    assert supervisor is not None
    send(supervisor, signal.SIGKILL)
    until(lambda: not is_alive(supervisor), what="the supervisor is dead")
    assert all(is_alive(process) for process in before.values())
    assert machine.polyray("up").returncode == 0
    assert {name: machine.process(name) for name in names} == before

    ended = machine.polyray("down")
    assert ended.returncode == 0, ended.stderr
    assert "nothing is left" in ended.stderr
    assert not any(is_alive(process) for process in before.values())
    assert not find_leftovers(machine.settings.state_dir, machine.settings.ray_dir, ())
    assert machine.supervisor is None
    assert "was not running" in machine.polyray("down").stderr


def test_what_a_killed_supervisor_left_is_ended_by_down(machine: Machine) -> None:
    assert machine.polyray("up", "--api-port", "0", "--gateway-port", "0").returncode == 0
    supervisor, core = machine.supervisor, machine.process("core")
    assert supervisor is not None
    send(supervisor, signal.SIGKILL)
    until(lambda: not is_alive(supervisor), what="the supervisor is dead")
    ended = machine.polyray("down")
    assert ended.returncode == 0, ended.stderr
    assert not is_alive(core)
    assert not find_leftovers(machine.settings.state_dir, machine.settings.ray_dir, ())


def test_in_the_foreground_it_ends_with_the_signal_that_systemd_sends(machine: Machine) -> None:
    child = machine.start("up", "--foreground", "--api-port", "0", "--gateway-port", "0")
    until(
        lambda: (machine.settings.state_dir / "run" / "endpoints.json").exists(), seconds=120, what="it has addresses"
    )
    until(machine.ready, seconds=120, what="it is ready")
    supervisor = machine.supervisor
    assert supervisor is not None
    assert supervisor.pid == child.pid
    child.terminate()
    assert child.wait(timeout=120) == 0
    assert "nothing is left" in machine.polyray("down").stderr


def test_a_port_that_is_taken_is_said_before_anything_starts(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = machine.polyray("up", "--api-port", str(port))
    assert refused.returncode == 5
    assert f"127.0.0.1:{port}" in refused.stderr
    assert "--api-port 0" in refused.stderr
    assert machine.supervisor is None


def test_a_file_that_is_wrong_is_said_before_anything_starts(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "platform.yaml").write_text("tenants: {Vision: {}}")
    refused = machine.polyray("up", "-f", str(tmp_path / "platform.yaml"))
    assert refused.returncode == 2
    assert "vision" in refused.stderr
    assert machine.supervisor is None
