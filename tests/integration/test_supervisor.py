"""The supervisor on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polyray.core.settings import Settings
from polyray.supervise.control import prepare_state_dir
from polyray.supervise.processes import all_stats, is_alive, read_stat, ref_of, send
from support.small_disk import SmallDisk, on_small_disk
from support.supervised import DEAF, PARENT, POLITE, PYTHON, STEADY, Supervised, first_true


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    one = Supervised(tmp_path / "state")
    yield one
    one.end()


def component(name: str, program: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "argv": [PYTHON, "-c", program], "env": {"NAME": name}, **more}


def test_a_component_killed_with_9_is_back_within_seconds(supervised: Supervised) -> None:
    supervised.start(component("server", STEADY))
    first = supervised.running("server")
    send(first, signal.SIGKILL)
    first_true(lambda: (p := supervised.process("server")) and p != first, "another server runs", seconds=5)
    assert supervised.told("server")["failures"] == 1


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (40, "signal 40")])
def test_it_tells_which_signal_ended_a_component_even_one_without_a_name(
    supervised: Supervised, number: int, name: str
) -> None:
    supervised.start(component("server", STEADY))
    os.kill(supervised.running("server").pid, number)
    first_true(lambda: supervised.told("server").get("last_exit") == name, "it tells the signal")
    supervised.running("server")


def test_a_supervisor_that_cannot_write_what_it_sees_goes_on_and_tells_it_later(supervised: Supervised) -> None:
    in_the_way = supervised.state_dir / "run" / "supervisor.json"
    in_the_way.mkdir()
    child = supervised.start(component("server", STEADY))
    first = supervised.running("server")
    send(first, signal.SIGKILL)
    first_true(lambda: (p := supervised.process("server")) and p != first, "another server runs")
    assert child.poll() is None
    in_the_way.rmdir()
    first_true(lambda: supervised.told("server").get("pid"), "it tells what it sees")


def test_a_supervisor_killed_with_9_leaves_its_components_running_and_the_next_adopts_them(
    supervised: Supervised,
) -> None:
    child = supervised.start(component("server", STEADY), component("core", STEADY))
    before = [supervised.running(name) for name in ("server", "core")]
    child.kill()
    child.wait()
    assert all(is_alive(process) for process in before)
    supervised.start(component("server", STEADY), component("core", STEADY))
    first_true(lambda: supervised.told("core").get("pid"), "the new supervisor looked")
    assert [supervised.process(name) for name in ("server", "core")] == before


def test_an_adopted_component_that_dies_is_started_again(supervised: Supervised) -> None:
    child = supervised.start(component("server", STEADY))
    first = supervised.running("server")
    child.kill()
    child.wait()
    supervised.start(component("server", STEADY))
    send(first, signal.SIGKILL)
    first_true(lambda: (p := supervised.process("server")) and p != first, "another server runs")


def test_a_left_component_of_another_command_is_ended_before_the_new_one_starts(supervised: Supervised) -> None:
    child = supervised.start(component("server", STEADY))
    first = supervised.running("server")
    child.kill()
    child.wait()
    supervised.start(component("server", STEADY + " # newer"))
    second = first_true(lambda: (p := supervised.process("server")) and p != first and p, "the newer server runs")
    assert not is_alive(first)
    assert is_alive(second)


def test_a_left_component_that_there_no_longer_is_is_ended(supervised: Supervised) -> None:
    child = supervised.start(component("server", STEADY), component("former", STEADY))
    former = supervised.running("former")
    child.kill()
    child.wait()
    supervised.start(component("server", STEADY))
    first_true(lambda: not is_alive(former), "the former component has ended")


def test_two_supervisors_never_run_on_one_state_directory(supervised: Supervised) -> None:
    supervised.start(component("server", STEADY))
    server = supervised.running("server")
    second = supervised.start(component("server", STEADY))
    assert second.wait(timeout=20) == 3
    assert supervised.process("server") == server


def test_a_component_that_keeps_failing_is_tried_ever_more_rarely_and_reported(supervised: Supervised) -> None:
    supervised.start(component("server", "raise SystemExit(7)"), component("core", STEADY))
    first_true(lambda: supervised.told("server").get("failing"), "the server is reported", seconds=30)
    assert supervised.told("server")["last_exit"] == "exit code 7"
    assert supervised.told("server")["failures"] == 5
    assert supervised.running("core")


def test_a_program_that_is_not_there_is_reported_and_does_not_end_the_supervisor(supervised: Supervised) -> None:
    supervised.start({"name": "gateway", "argv": ["/nonexistent/haproxy"]})
    first_true(lambda: "cannot start" in supervised.told("gateway").get("last_exit", ""), "the reason is told")
    assert supervised.supervisor is not None


def test_stopping_ends_components_in_their_order_and_leaves_nothing(supervised: Supervised) -> None:
    names = ("core", "fabric", "server")
    child = supervised.start(*(component(name, POLITE, stop_order=2 - i) for i, name in enumerate(names)))
    processes = [supervised.running(name) for name in names]
    first_true(lambda: all("up" in supervised.log(name) for name in names), "all are up")
    child.terminate()
    assert child.wait(timeout=20) == 0
    assert not any(is_alive(process) for process in processes)
    ended = sorted(names, key=lambda name: int(supervised.log(name).split()[1]))
    assert ended == ["server", "fabric", "core"]
    assert list((supervised.state_dir / "run" / "components").iterdir()) == []
    assert supervised.supervisor is None


def test_while_the_server_drains_what_it_needs_is_kept_alive(supervised: Supervised) -> None:
    drains = POLITE + "; time.sleep(600)"
    child = supervised.start(
        component("server", drains, grace_seconds=600), component("core", STEADY, stop_order=1, grace_seconds=5)
    )
    first_true(lambda: "up" in supervised.log("server"), "the server is up")
    core = supervised.running("core")
    child.terminate()
    first_true(lambda: len(supervised.log("server").split()) == 2, "the server drains")
    send(core, signal.SIGKILL)
    first_true(lambda: (p := supervised.process("core")) and p != core, "the core is back")
    child.terminate()  # the second time: at once
    assert child.wait(timeout=20) == 0


def test_a_component_that_does_not_hear_is_killed_after_its_grace(supervised: Supervised) -> None:
    child = supervised.start(component("server", DEAF, grace_seconds=0.5))
    server = supervised.running("server")
    first_true(lambda: "deaf" in supervised.log("server"), "the server is deaf")
    child.terminate()
    assert child.wait(timeout=20) == 0
    assert not is_alive(server)


def test_what_a_component_left_in_its_session_ends_before_it_is_started_again(supervised: Supervised) -> None:
    supervised.start(component("core", PARENT))
    first = supervised.running("core")
    words = first_true(lambda: supervised.log("core").split(), "the core told its children")
    inner = ref_of(int(words[1]))
    assert inner is not None
    send(first, signal.SIGKILL)
    first_true(lambda: (p := supervised.process("core")) and p != first, "the core is back")
    assert not is_alive(inner)


def test_after_stopping_no_orphan_of_a_component_is_left_either(supervised: Supervised) -> None:
    child = supervised.start(component("core", PARENT))
    words = first_true(lambda: supervised.log("core").split(), "the core told its children")
    children = [ref_of(int(words[1])), ref_of(int(words[3]))]
    child.terminate()
    assert child.wait(timeout=20) == 0
    assert not any(is_alive(one) for one in children if one is not None)


def test_the_supervisor_leaves_no_zombies(supervised: Supervised) -> None:
    supervised.start(component("server", "pass"))
    first_true(lambda: supervised.told("server").get("failures", 0) >= 3, "it ended some times")
    supervisor = supervised.supervisor
    assert supervisor is not None

    def zombies() -> list[int]:
        return [stat.pid for stat in all_stats() if stat.parent == supervisor.pid and stat.state == "Z"]

    first_true(lambda: not zombies(), "all are reaped")


def test_components_start_in_a_session_of_their_own_and_with_private_logs(supervised: Supervised) -> None:
    supervised.start(component("server", "print('hello', flush=True)\n" + STEADY))
    server = supervised.running("server")
    first_true(lambda: "hello" in supervised.log("server"), "it said hello")
    stat = read_stat(server.pid)
    assert stat is not None
    assert stat.session == server.pid
    for path in ("logs/server.log", "run/components/server.json", "run/supervisor.pid", "run/supervisor.json"):
        assert (supervised.state_dir / path).stat().st_mode & 0o077 == 0, path


def test_a_supervisor_without_room_for_its_lock_says_so_in_a_line(tmp_path: Path) -> None:
    def body(disk: SmallDisk) -> None:
        state_dir = disk.root / "state"
        prepare_state_dir(Settings(state_dir=state_dir))
        (state_dir / "run" / "supervisor.pid").touch()
        disk.fill(free_pages=0)
        command = [PYTHON, "-m", "polyray.supervise", "--state-dir", str(state_dir)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 6
        assert ended.stderr.startswith("error: the state directory cannot be written: No space left"), ended.stderr
        assert "make room" in ended.stderr

    on_small_disk(tmp_path / "disk", body)
