"""Submitting, watching and explaining workloads against the real API."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyray.cli import follow
from polyray.cli.render import say
from polyray.core.errors import OUTCOMES
from polyray.core.lifecycle import ClusterState, WorkloadState
from polyray.sdk.credentials import claims_of
from polyray.store.steps import created, step
from polyray.store.tables import Cluster, Node, Workload
from support.live_api import LiveApi
from support.rows import add_lease, add_node

from .conftest import Run

NOW_MS = 1_790_000_000_000


def job_file(home: Path, **changes: Any) -> str:
    path = home / "job" / "job.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"kind": "job", "name": "digits", "run": "python train.py", **changes}))
    return str(path)


def submitted(run: Run, home: Path, **changes: Any) -> str:
    result = run("job", "submit", job_file(home, **changes), "-o", "json")
    assert result.code == 0, result.err
    return str(json.loads(result.out)["id"])


def start(api: LiveApi, workload_id: str) -> str:
    """Make a queued workload run, as the control plane would; return its cluster's id."""
    cluster_id = f"clu-{workload_id[4:]}"
    with api.platform.store.write() as session:
        row = session.get_one(Workload, workload_id)
        cluster = Cluster(
            cluster_id=cluster_id,
            workload_id=workload_id,
            tenant=row.tenant,
            attempt=1,
            secret="s",
            created_ms=NOW_MS,
        )
        created(session, cluster, now_ms=NOW_MS, reason="granted")
        row.cluster_id = cluster_id
        for state in (ClusterState.STARTING_HEAD, ClusterState.STARTING_WORKERS, ClusterState.READY):
            step(session, cluster, state, now_ms=NOW_MS)
        step(session, row, WorkloadState.STARTING, now_ms=NOW_MS)
        step(session, row, WorkloadState.RUNNING, now_ms=NOW_MS)
    return cluster_id


def end(api: LiveApi, workload_id: str, state: WorkloadState) -> None:
    with api.platform.store.write() as session:
        row = session.get_one(Workload, workload_id)
        row.ended_ms = NOW_MS + 60_000
        step(session, row, state, now_ms=NOW_MS)


def write_log(api: LiveApi, workload_id: str, content: bytes) -> None:
    log = api.platform.layout.driver_log("vision", workload_id)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(content)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody who waits has been told where the workload is."""
    event = threading.Event()

    def tell(text: str) -> None:
        say(text)
        event.set()

    monkeypatch.setattr(follow, "say", tell)
    return event


def test_a_job_is_packed_sent_and_queued_and_its_code_is_sent_once(ada: Run, api: LiveApi, home: Path) -> None:
    (home / "job").mkdir()
    (home / "job" / "train.py").write_text("print('hello')\n")
    file = job_file(home, working_dir=".")
    first, second = ada("job", "submit", file, "-o", "json"), ada("job", "submit", file, "-o", "json")
    assert first.code == second.code == 0, first.err
    digest = json.loads(first.out)["spec"]["working_dir"]
    assert digest == json.loads(second.out)["spec"]["working_dir"]
    assert api.platform.layout.blob("vision", digest).exists()
    assert "bytes sent" in first.err
    assert "were there already" in second.err


def test_a_dry_run_is_a_priced_plan_and_sends_nothing(ada: Run, home: Path) -> None:
    (home / "job").mkdir()
    (home / "job" / "unique.py").write_text(str(home))
    file = job_file(
        home, working_dir=".", resources={"cpu": 2, "memory": "4GiB"}, max_duration="2h", name="only-planned"
    )
    result = ada("job", "submit", file, "--dry-run")
    assert result.code == 0, result.err
    assert "$1.20" in result.out
    assert "cloud (simulated)" in result.out
    assert "would be sent" in result.err
    assert "planned" not in ada("job", "ls").out


def test_a_bad_file_is_refused_with_the_field_and_the_way_out_before_anything_is_sent(ada: Run, home: Path) -> None:
    result = ada("job", "submit", job_file(home, resources={"gpu": 1.5}))
    assert result.code == 2
    assert result.out == ""
    assert "error: resources.gpu" in result.err
    assert "hint: " in result.err


def test_an_impossible_job_is_refused_by_the_platform(ada: Run, home: Path) -> None:
    result = ada("job", "submit", job_file(home, resources={"gpu": "b200:8"}))
    assert result.code == 2
    assert "error: " in result.err
    assert "Traceback" not in result.err


def test_a_file_of_another_kind_says_the_right_command(ada: Run, home: Path) -> None:
    file = job_file(home)
    result = ada("service", "deploy", file)
    assert result.code == 2
    assert f"polyray job submit {file}" in result.err


def test_a_link_out_of_the_working_dir_stops_the_submit_by_name(ada: Run, home: Path) -> None:
    (home / "job").mkdir()
    (home / "job" / "passwd").symlink_to("/etc/passwd")
    result = ada("job", "submit", job_file(home, working_dir="."))
    assert result.code == 2
    assert "error: working_dir: 'passwd': the link leads out" in result.err


def test_why_queue_and_ps_tell_of_a_waiting_job(ada: Run, api: LiveApi, home: Path) -> None:
    job = submitted(ada, home, name="waits")
    with api.platform.store.write() as session:
        session.get_one(Workload, job).explanation = {
            "code": "no_capacity",
            "cause": "all nodes are full",
            "unblocks": "a node becomes free",
            "facts": {"position": 3},
        }
    assert "all nodes are full" in ada("why", job).out
    assert "a node becomes free" in ada("why", job).out
    assert "waits" in ada("queue").out
    assert job in ada("ps").out
    assert ada("stop", job).code == 0
    assert job not in ada("ps").out
    assert job in ada("ps", "--all").out


@pytest.mark.parametrize(("state", "code"), [(WorkloadState.SUCCEEDED, 0), (WorkloadState.FAILED, 10)])
def test_wait_ends_with_the_jobs_own_outcome(
    ada: Run, api: LiveApi, home: Path, told: threading.Event, state: WorkloadState, code: int
) -> None:
    job = submitted(ada, home)
    start(api, job)

    def ends() -> None:
        assert told.wait(20)
        end(api, job, state)

    platform = threading.Thread(target=ends)
    platform.start()
    result = ada("job", "wait", job, "-o", "json")
    platform.join()
    assert result.code == code
    assert json.loads(result.out)["state"] == state
    assert f"{job}) is running" in result.err


def test_a_wait_has_a_bound(ada: Run, home: Path) -> None:
    job = submitted(ada, home)
    result = ada("job", "wait", job, "--timeout", "0")
    assert result.code == 6
    assert f"polyray why {job}" in result.err
    ada("stop", job)


def test_a_log_is_shown_so_that_nothing_in_it_acts_on_the_terminal(ada: Run, api: LiveApi, home: Path) -> None:
    job = submitted(ada, home)
    write_log(api, job, b"ok\n\x1b[31mred\x1b[0m\x07\n\200\xff bad\n 10%\r 20%\rdone\n\xe2\x80\xaeturned\n")
    assert ada("logs", job).out.splitlines() == [
        "ok",
        "\\x1b[31mred\\x1b[0m\\x07",
        "\ufffd\ufffd bad",
        "done",
        "\\u202eturned",
    ]
    ada("stop", job)


def test_a_log_that_has_nothing_yet_says_so_and_why(ada: Run, home: Path) -> None:
    job = submitted(ada, home)
    shown = ada("logs", job)
    assert (shown.code, shown.out) == (0, "")
    assert "nothing is logged yet" in shown.err
    assert "queued" in shown.err
    ada("stop", job)


def test_a_raw_log_is_the_very_bytes(ada: Run, api: LiveApi, home: Path) -> None:
    content = b"ok\n\200\xffbin\r\nend"
    job = submitted(ada, home)
    write_log(api, job, content)
    command = [sys.executable, "-m", "polyray.cli.main", "logs", job, "--raw"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == content
    ada("stop", job)


def test_following_a_log_ends_with_the_job(ada: Run, api: LiveApi, home: Path) -> None:
    job = submitted(ada, home)
    start(api, job)
    write_log(api, job, b"epoch 1\n")

    def goes_on() -> None:
        write_log(api, job, "épo".encode()[:1])
        write_log(api, job, "épo".encode()[1:] + b"ch 2\nlast")
        end(api, job, WorkloadState.SUCCEEDED)

    platform = threading.Timer(0.5, goes_on)
    platform.start()
    result = ada("job", "logs", job, "-f")
    platform.join()
    assert result.code == 0, result.err
    assert result.out.splitlines() == ["epoch 1", "époch 2", "last"]
    assert "succeeded" in result.err


def test_env_makes_the_default_session_waits_and_gives_stock_ray_its_words(
    ada: Run, api: LiveApi, home: Path, told: threading.Event
) -> None:
    def grants() -> None:
        def waiting() -> list[Workload]:
            with api.platform.store.read() as session:
                return list(session.query(Workload).filter_by(kind="session", state="queued"))

        assert told.wait(20)
        start(api, waiting()[0].workload_id)

    platform = threading.Thread(target=grants)
    platform.start()
    result = ada("env")
    platform.join()
    assert result.code == 0, result.err
    words = dict(line.removeprefix("export ").split("=", 1) for line in result.out.splitlines())
    assert words["RAY_ADDRESS"] == "ray://127.0.0.1:8471"
    assert words["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:8471"
    assert words["RAY_AUTH_MODE"] == "token"
    token_file = Path(words["RAY_AUTH_TOKEN_PATH"])
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert claims_of(token_file.read_text())["cluster"].startswith("clu-")
    assert "is queued" in result.err
    assert "eyJ" not in result.out + result.err
    again = ada("env", "-o", "json")
    assert json.loads(again.out) == words
    shown = ada("session", "show", "default", "-o", "json")
    assert json.loads(shown.out)["state"] == "running"


def test_env_of_a_session_that_there_is_not_says_how_to_start_it(ada: Run) -> None:
    result = ada("env", "nosuch")
    assert (result.code, result.out) == (4, "")
    assert "polyray session start nosuch" in result.err


def test_simulated_nodes_say_so_wherever_they_are_shown(ada: Run, api: LiveApi, home: Path) -> None:
    job = submitted(ada, home)
    cluster_id = start(api, job)
    with api.platform.store.write() as session:
        if session.get(Node, "nod-0000000000a1") is None:
            add_node(session, simulated=True)
        add_lease(session, f"lea-{job[4:]}", cluster_id=cluster_id, workload_id=job)
    assert "(simulated)" in ada("node", "ls").out
    assert "(simulated)" in ada("job", "show", job).out


def test_a_foreign_job_is_as_good_as_absent(ada: Run) -> None:
    result = ada("job", "show", "job-00000000000z")
    assert result.code == 4
    assert "no such job" in result.err


def test_a_word_that_is_no_id_says_where_ids_are(ada: Run) -> None:
    result = ada("why", "../keys")
    assert result.code == 2
    assert "polyray ps" in result.err


def test_events_tell_a_jobs_story(ada: Run, api: LiveApi, home: Path) -> None:
    job = submitted(ada, home)
    start(api, job)
    told = ada("job", "events", job).out
    assert "running" in told
    assert "submitted by ada" in told


def test_killing_a_worker_reaches_the_platform(ada: Run, api: LiveApi, home: Path) -> None:
    job = submitted(ada, home)
    assert ada("job", "kill-worker", job, "--rank", "1").code == 5  # it has no workers yet
    cluster_id = start(api, job)
    with api.platform.store.write() as session:
        if session.get(Node, "nod-0000000000a1") is None:
            add_node(session, simulated=True)
        add_lease(session, f"lea-{job[4:]}", cluster_id=cluster_id, workload_id=job, rank=1)
    assert ada("job", "kill-worker", job, "--rank", "1").code == 0
    assert (job, 1) in api.platform.killed


def test_the_exit_codes_of_the_help_are_those_of_the_table(run: Run) -> None:
    told = run("--help").out
    for outcome in OUTCOMES.values():
        assert f"\n    {outcome.exit_code}   " in told
