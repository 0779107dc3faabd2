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
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Tier
from polyray.api import idempotency
from polyray.api.routes import workloads
from polyray.store import claims
from support.fabric import FakeFabric
from support.simulation.run import SimulationFailed, simulate
from support.simulation.weather import Weather

#: The full tier takes some minutes of one core.
pytestmark = pytest.mark.timeout(1200)

FIRST_SEED = int(os.environ.get("POLYRAY_SIMULATION_SEED", "1"))
STEPS = 2500
Sabotage = Callable[[pytest.MonkeyPatch], None]


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


def answers_nobody_twice(patch: pytest.MonkeyPatch) -> None:
    """A request that is sent again is done again."""
    patch.setattr(
        workloads,
        "once",
        lambda session, request, *, now_ms, status, work: idempotency.once(
            session,
            idempotency.Request(request.principal, None, request.route, request.body),
            now_ms=now_ms,
            status=status,
            work=work,
        ),
    )


def forgets_what_it_released(patch: pytest.MonkeyPatch) -> None:
    """A grant that arrives after its release is granted."""
    release = FakeFabric.release

    def forget(fabric: FakeFabric, cluster_id: str) -> object:
        answer = release(fabric, cluster_id)
        fabric._ended.pop(cluster_id, None)
        return answer

    patch.setattr(FakeFabric, "release", forget)


def lets_everybody_write(patch: pytest.MonkeyPatch) -> None:
    """A control plane that was succeeded writes, and grants what is given already."""
    patch.setattr(claims, "require", lambda session, key, epoch: None)


@pytest.mark.parametrize(
    ("sabotage", "kinds", "found"),
    [
        (answers_nobody_twice, ("points",), "was answered"),
        (forgets_what_it_released, ("late",), "the core holds"),
        (lets_everybody_write, ("pauses",), "took over from it"),
    ],
)
def test_a_platform_that_breaks_a_rule_is_found_out(
    sabotage: Sabotage, kinds: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worlds above would say nothing."""
    sabotage(monkeypatch)
    with pytest.raises(SimulationFailed, match=found) as failure:
        for seed in range(1, 13):
            simulate(seed, 2_000, Weather.storm(*kinds))
    assert "python -m support.simulation --seed" in str(failure.value)
