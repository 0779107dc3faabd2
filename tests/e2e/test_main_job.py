"""The main job, end to end on real parts: what `make demo` shows is what holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"

#: Sentences that the demo prints only after it has checked them, in this order.
PROMISES = [
    r"the platform is up",
    r"bob logged in by device code: admin of speech",
    r"both have a Ray cluster of their own",
    r"ada again, from a new process: the actor is still there",
    r"bob, the same script: sees his own cluster, and no actor of ada's",
    r"stock 'ray job submit' and 'ray job logs -f' work",
    r"the Ray dashboard answers through the gateway",
    r"no token: refused after [0-9]\.\d s: .*no token was sent",
    r"a forged token: refused after [0-9]\.\d s: .*signature",
    r"an expired token: refused after [0-9]\.\d s: .*expired",
    r"published digits@1: 1437 rows",
    r"polyray why: waiting_for_node: .* is on the way",
    r"head and worker 1 on the rack, worker 2 on a cloud node",
    r"killed worker 2 with -9",
    r"killed the control plane .* restarted, and the job never noticed",
    r"training goes on from its checkpoint",
    r"succeeded, in one attempt",
    r"registered digits@1: .* on digits@1, digits-held-out@1",
    r"accuracy on 360 held-out digits, asked over HTTP with an API key: 0\.9[5-9]",
    r"a wrong key: 401",
    r"the cloud node went idle, was drained and terminated; it cost \$0\.\d+ \(simulated prices\)",
    r"everything is down: no process, port, directory, node or lease is left",
]


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_main_job_runs_through_and_leaves_nothing() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    told = done.stdout
    for promise in PROMISES:
        found = re.search(promise, told)
        assert found, f"the demo did not say: {promise}\n{done.stdout}"
        told = told[found.end() :]
    memory = re.search(r"([\d.]+) GiB of memory at its peak", told)
    assert memory
    assert float(memory[1]) <= 6.0
