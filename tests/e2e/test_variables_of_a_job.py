"""Variables in a workload's file and in its code's runtime_env: which one a task sees (C06)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.runs import make_run
from support.slice_cluster import slice_cluster

pytestmark = pytest.mark.ray

CODE = """
import json, os
import ray

ray.init(runtime_env={"env_vars": {"A": "code", "B": "code"}})

@ray.remote
def seen():
    return {name: os.environ.get(name) for name in ("A", "B", "C", "POLYRAY_TENANT", "RAY_AUTH_MODE")}

driver = {name: os.environ.get(name) for name in ("A", "B", "C")}
print("SEEN " + json.dumps({"driver": driver, "task": ray.get(seen.remote())}), flush=True)
"""


def test_a_task_sees_both_and_where_both_set_one_the_code_s_own_while_the_program_sees_the_file_s(
    tmp_path: Path,
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "variables.py").write_text(CODE)
    run_dir = tmp_path / "run"
    given = {"A": "file", "C": "file"}
    env = make_run(run_dir, code=code, run="python variables.py", env=given)
    with slice_cluster({**given, **env}, head_cpus=1, workers=0) as cluster:
        driver = cluster.run_driver("polyray.jobs.runner", run_dir=run_dir)
        log = run_dir / "logs" / "driver.log"
        assert driver.wait(timeout=120) == 0, log.read_text()[-4000:]
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("SEEN ")]
    seen = json.loads(line.removeprefix("SEEN "))
    assert seen["driver"] == {"A": "file", "B": None, "C": "file"}
    assert seen["task"] == {"A": "code", "B": "code", "C": "file", "POLYRAY_TENANT": "vision", "RAY_AUTH_MODE": "token"}
