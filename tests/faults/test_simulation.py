"""Whole platforms live under seeds: two control planes, a core, a cloud, a gateway and people, and all that fails.

Each world runs its real loops, API, leadership and store on a virtual clock. The seed decides who goes on at every
point, which calls are lost, doubled or late, who is paused, killed and started again. Whatever fails prints its seed
and how to see it again; `POLYRAY_SIMULATION_SEED` tries other ones:

    POLYRAY_SIMULATION_SEED=7000 make test ARGS=tests/faults/test_simulation.py
    PYTHONPATH=tests python -m support.simulation --seed 7000 --worlds 500
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import Tier
from support.simulation.run import simulate

FIRST_SEED = int(os.environ.get("POLYRAY_SIMULATION_SEED", "1"))
STEPS = 2500


def test_whatever_fails_in_whatever_order_all_that_must_hold_holds_and_everything_comes_to_rest(tier: Tier) -> None:
    made, seed = 0, FIRST_SEED
    while made < tier.pick(quick=5_000, full=100_000):
        report = simulate(seed, STEPS)
        made += report.steps
        print(f"seed {seed}: {report.steps} steps, {report.digest}; {report.weather}")
        seed += 1


def test_the_same_seed_is_the_same_life_in_any_process() -> None:
    program = "from support.simulation.run import simulate; r = simulate(7, 400); print(r.steps, r.digest)"
    lives = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()[-1]
        for hash_seed in ("1", "2")
    }
    assert lives == {simulate(7, 400).digest}
    assert simulate(8, 400).digest not in lives
