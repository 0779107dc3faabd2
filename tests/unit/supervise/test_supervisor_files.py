"""The supervisor's files: its lock, records, bounded logs; and finding what is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.core.settings import Settings
from polyray.supervise.components import base_environment, components
from polyray.supervise.control import forget_taken_ports, prepare_state_dir
from polyray.supervise.leftovers import end_leftovers, find_leftovers
from polyray.supervise.local import Local
from polyray.supervise.lock import SupervisorLock, running_supervisor
from polyray.supervise.logfiles import rotate, tail
from polyray.supervise.processes import ProcessRef, is_alive, read_record, ref_of, session_rest
from support.wait import until


def test_the_lock_is_for_one_and_names_its_holder(tmp_path: Path) -> None:
    first, second = SupervisorLock(tmp_path / "pid"), SupervisorLock(tmp_path / "pid")
    assert first.take()
    assert not second.take()
    assert running_supervisor(tmp_path / "pid") == ref_of(os.getpid())
    first.release()
    assert running_supervisor(tmp_path / "pid") is None
    assert second.take()
    second.release()


def test_a_state_directory_too_long_for_sockets_is_refused_before_it_is_made(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    with pytest.raises(Invalid) as refused:
        prepare_state_dir(Settings(state_dir=long))
    assert refused.value.field == "state_dir"
    assert not long.exists()


def test_a_freely_chosen_port_that_somebody_took_meanwhile_is_chosen_anew_at_the_next_start(tmp_path: Path) -> None:
    local = Local(Settings(state_dir=tmp_path, api_port=0, gateway_port=0))
    local.run_dir.mkdir()
    with socket.create_server((local.settings.host, 0)) as other:
        (local.run_dir / "api.json").write_text(json.dumps({"port": other.getsockname()[1]}))
        with socket.create_server((local.settings.host, 0)) as free:
            port = free.getsockname()[1]
        (local.run_dir / "gateway.json").write_text(json.dumps({"port": port}))
        forget_taken_ports(local)
    assert [path.name for path in local.run_dir.iterdir()] == ["gateway.json"]


def test_a_pid_that_is_anothers_by_now_is_not_ours(tmp_path: Path) -> None:
    me = ref_of(os.getpid())
    assert me is not None
    for other in (
        ProcessRef(me.pid, me.start_ticks - 1, me.boot_id),
        ProcessRef(me.pid, me.start_ticks, "another boot"),
        ProcessRef(2**22 + 1, 1, me.boot_id),
    ):
        assert not is_alive(other)
        assert session_rest(other) == ()
        (tmp_path / "pid").write_text(f"{other.pid} {other.start_ticks} {other.boot_id}\n")
        assert running_supervisor(tmp_path / "pid") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"process": {}}', '{"process": {"pid": 1}, "command_digest": ""}'])
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)
    assert read_record(tmp_path / "server.json") is None
    (tmp_path / "pid").write_text(content)
    assert running_supervisor(tmp_path / "pid") is None


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    process = ProcessRef(1, 2, "boot")
    (tmp_path / "server.json").write_text(json.dumps({"process": asdict(process), "command_digest": "d"}))
    record = read_record(tmp_path / "server.json")
    assert record is not None
    assert (record.process, record.command_digest) == (process, "d")


def test_a_log_that_no_room_is_left_to_keep_is_cut_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("x" * 200)
    (tmp_path / "server.log.1").symlink_to("/dev/full")
    assert rotate(log, max_bytes=100, kept=1)
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]
    assert log.read_text() == ""


def test_logs_are_bounded_while_their_writers_go_on(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("ab", buffering=0) as writer:
        log.chmod(0o600)
        for number in range(5):
            writer.write(f"{number} ".encode() + b"x" * 100)
            assert rotate(log, max_bytes=100, kept=2)
        writer.write(b"last\n")
    assert not rotate(log, max_bytes=100, kept=2)
    assert log.read_text() == "last\n"
    assert [(tmp_path / f"server.log.{n}").read_text()[0] for n in (1, 2)] == ["4", "3"]
    assert not (tmp_path / "server.log.3").exists()
    assert (tmp_path / "server.log.1").stat().st_mode & 0o077 == 0


def test_of_a_log_that_grew_without_measure_the_end_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"".join(b"%06d\n" % number for number in range(100_000)))
    assert rotate(log, max_bytes=1000, kept=1)
    assert log.read_bytes() == b""
    kept = (tmp_path / "server.log.1").read_bytes()
    assert len(kept) <= 2000
    assert kept.endswith(b"099999\n")


def test_the_last_lines_of_a_log_are_read_from_its_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"".join(b"%d \xff\n" % number for number in range(100_000)))
    assert tail(tmp_path / "log", 2) == ["99998 \ufffd", "99999 \ufffd"]
    assert tail(tmp_path / "absent") == []


def test_what_is_left_is_found_without_records_and_ended(tmp_path: Path) -> None:
    state_dir, ray_dir = tmp_path / "state", tmp_path / "ray"
    (state_dir / "logs").mkdir(parents=True)
    ray_dir.mkdir()
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (state_dir / "logs" / "x.log").open("wb") as log:
        writes_here = subprocess.Popen(sleeper, stdout=log, stderr=log, start_new_session=True)
    rays = subprocess.Popen([*sleeper, f"--temp-dir={ray_dir}/core"], start_new_session=True)
    # Ray's agents hide their arguments, and have their logs open besides pipes to the raylet that started them.
    hidden = ["bash", "-c", f"exec 9>>{ray_dir}/agent.log; exec -a ray::DashboardAgent sleep 600"]
    agent = subprocess.Popen(hidden, start_new_session=True)
    until(lambda: Path(f"/proc/{agent.pid}/cmdline").read_bytes().startswith(b"ray::"))
    reader = subprocess.Popen([*sleeper, f"{state_dir}/logs/x.log"], start_new_session=True)  # a user's own: let be
    try:
        found = find_leftovers(state_dir, ray_dir, (0,))
        assert {process.pid for process, _ in found.processes} == {writes_here.pid, rays.pid, agent.pid}
        assert found.directories == (ray_dir,)
        end_leftovers(state_dir, ray_dir)
        until(lambda: all(process.poll() is not None for process in (writes_here, rays, agent)))
        assert not find_leftovers(state_dir, ray_dir, ())
        assert reader.poll() is None
    finally:
        for process in (writes_here, rays, agent, reader):
            process.kill()
            process.wait()


def test_somebody_elses_link_in_the_shared_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "ray").symlink_to(tmp_path / "precious")
    end_leftovers(tmp_path / "state", tmp_path / "ray")
    assert (tmp_path / "precious").is_dir()


def test_components_hear_no_word_for_ray_of_the_users_shell() -> None:
    given = {
        "PATH": "/bin",
        "RAY_ADDRESS": "ray://elsewhere:1",
        "RAY_AUTH_TOKEN_PATH": "/t",
        "POLYRAY_LOG_LEVEL": "DEBUG",
    }
    made = base_environment(given)
    assert "RAY_ADDRESS" not in made
    assert "RAY_AUTH_TOKEN_PATH" not in made
    assert made["RAY_AUTH_MODE"] == "disabled"
    assert made["POLYRAY_LOG_LEVEL"] == "DEBUG"


def test_the_server_ends_first_and_the_core_last(tmp_path: Path) -> None:
    order = {component.name: component.stop_order for component in components(Settings(state_dir=tmp_path))}
    assert order["server"] < min(order["fabric"], order["gateway"], order["responder"])
    assert max(order["fabric"], order["gateway"], order["responder"]) < order["core"]
