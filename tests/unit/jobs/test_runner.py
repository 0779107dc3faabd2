from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.runs import make_run


def run(run_dir: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "polyray.jobs.runner", str(run_dir)],
        env={"PATH": os.defpath, "POLYRAY_RUN_DIR": str(run_dir), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "src"
    directory.mkdir()
    (directory / "hello.py").write_text("import os, sys; print(os.getcwd(), os.path.dirname(sys.executable))")
    return directory


def test_a_job_s_command_runs_in_its_code_with_the_platform_s_python(tmp_path: Path, code: Path) -> None:
    make_run(tmp_path / "run", code=code, run="python hello.py && exit 7")
    done = run(tmp_path / "run")
    assert done.returncode == 7
    assert done.stdout.split() == [str(tmp_path / "run" / "code"), str(Path(sys.executable).parent)]


def test_a_signal_is_the_command_s_own_end(tmp_path: Path) -> None:
    make_run(tmp_path / "run", run="kill -9 $$")
    assert run(tmp_path / "run").returncode == -9


def test_the_workload_s_variables_are_set_but_never_the_platform_s(tmp_path: Path) -> None:
    env = {"EPOCHS": "3", "POLYRAY_TENANT": "speech", "RAY_ADDRESS": "elsewhere", "LD_PRELOAD": "x.so"}
    make_run(tmp_path / "run", env=env, run="env")
    shown = dict(line.split("=", 1) for line in run(tmp_path / "run", POLYRAY_TENANT="vision").stdout.splitlines())
    assert shown["EPOCHS"] == "3"
    assert shown["POLYRAY_TENANT"] == "vision"
    assert "RAY_ADDRESS" not in shown
    assert "LD_PRELOAD" not in shown


def test_a_job_sees_the_datasets_it_declared_and_no_others(tmp_path: Path) -> None:
    source = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1]}), source)
    make_run(tmp_path / "run", datasets={"digits": source}, run="ls $POLYRAY_DATASETS_DIR; cat */x 2>/dev/null; ls")
    (tmp_path / "run" / "datasets" / "left-over@1").symlink_to("/etc")
    assert run(tmp_path / "run").stdout.split() == ["digits@1"]


def test_code_that_cannot_be_unpacked_ends_the_job_with_the_reason(tmp_path: Path, code: Path) -> None:
    make_run(tmp_path / "run", code=code, run="true")
    description = json.loads((tmp_path / "run" / "run.json").read_text())
    Path(description["code_blob"]).write_bytes(b"not a zip")
    done = run(tmp_path / "run")
    assert done.returncode == 2
    assert "polyray: working_dir: its bytes changed" in done.stderr


def test_a_run_without_its_file_ends_with_the_reason(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert "run.json" in done.stderr
