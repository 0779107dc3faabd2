"""The control plane dies right after any one write or outside call: its successor ends what was begun, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.crashes import Crash, Crashes
from support.invariants import check, check_quiet
from support.world import World

#: A life is a function of the second that passes: what happens to the workload then.
Life = Callable[[World, str, int], None]


def ends_well(world: World, workload_id: str, second: int) -> None:
    if world.workload(workload_id).state == "running":
        world.end_program(workload_id)


def is_stopped(world: World, workload_id: str, second: int) -> None:
    if second == 4:
        world.stop(workload_id)


def loses_its_head_once(world: World, workload_id: str, second: int) -> None:
    row = world.workload(workload_id)
    if row.attempt > 1:
        ends_well(world, workload_id, second)
    elif row.state == "running" and world.lease(workload_id, 0).lease_id in world.fabric.held:
        world.kill_slice(workload_id, 0)


def live(directory: Path, life: Life, *, workers: int, crash_after: int | None) -> tuple[tuple[str, int, int], int]:
    """Return how the job ended (state, attempts, retries) and how many effects its life had."""
    world = World(directory)
    world.settle(2, step_seconds=1)
    job = world.submit(workers=workers)
    crashes = Crashes(world)
    crashes.after = crash_after
    for second in range(60):
        _survive(world, partial(world.settle, 1, step_seconds=1))
        _survive(world, partial(life, world, job, second))
        check(world)
        if second > 4 and world.workload(job).ended_ms is not None and world.fabric.empty:
            break
    effects = crashes.count
    crashes.after = None
    world.settle(20, step_seconds=4)
    check_quiet(world)
    row = world.workload(job)
    return (row.state, row.attempt, row.retries), effects


def _survive(world: World, happens: Callable[[], None]) -> None:
    try:
        happens()
    except Crash:
        world.restart()


@pytest.mark.parametrize(
    ("life", "workers", "stride", "outcome"),
    [
        (ends_well, 1, 1, ("succeeded", 1, 0)),
        (is_stopped, 1, 2, ("stopped", 1, 0)),
        (loses_its_head_once, 1, 3, ("succeeded", 2, 1)),
        (ends_well, 2, 5, ("succeeded", 1, 0)),
    ],
)
def test_a_life_ends_as_if_nothing_had_happened(
    tmp_path: Path, life: Life, workers: int, stride: int, outcome: tuple[str, int, int]
) -> None:
    undisturbed, effects = live(tmp_path / "undisturbed", life, workers=workers, crash_after=None)
    assert undisturbed == outcome
    for k in range(1, effects + 1, stride):
        ended, _ = live(tmp_path / f"crash-{k}", life, workers=workers, crash_after=k)
        assert ended == outcome, f"after a crash at effect {k}"
