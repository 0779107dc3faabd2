"""The control plane dies at any point of any story, and again while it recovers: nothing acknowledged is lost.

Each failure names the one history that failed: `CRASH_AT=STORY:POINT[:POINT] pytest THIS_FILE`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Tier
from support.exhaustive import Tally
from support.exploring import explored
from support.stage import Story
from support.stories import RUN, RUN_WITH_TWO, STORIES

pytestmark = pytest.mark.timeout(1200)

SHARED_MEMORY = Path("/dev/shm")
#: The seed of ids, and of which moments a stride takes.
SEED = int(os.environ.get("POLYRAY_SEED", "1"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty directory to work in, in memory where there is such a thing."""
    base = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else tmp_path))
    yield base
    shutil.rmtree(base)


def explore(home: Path, name: str, *strides: int) -> Tally:
    tally = explored(home, name, SEED, *strides)
    assert not tally.failures, f"{len(tally.failures)} histories failed, the first being\n" + tally.failures[0]
    return tally


def test_whatever_point_it_crashes_at_a_job_runs_once_and_its_client_is_told_the_same(
    home: Path, tier: Tier, record_property: Callable[[str, object], None]
) -> None:
    tally = explore(home, RUN.name, 1, *_again(tier))
    tell(record_property, RUN.name, tally)


@pytest.mark.parametrize("story", STORIES[1:], ids=lambda story: story.name)
def test_whatever_point_it_crashes_at_every_story_ends_as_if_nothing_had_happened(
    home: Path, tier: Tier, story: Story, record_property: Callable[[str, object], None]
) -> None:
    tally = explore(home, story.name, tier.pick(quick=24, full=1), *_again(tier))
    tell(record_property, story.name, tally)


@pytest.mark.parametrize("story", [RUN, RUN_WITH_TWO], ids=lambda story: story.name)
def test_whenever_a_stop_comes_it_is_kept_also_by_a_control_plane_that_dies_of_it(
    home: Path, tier: Tier, story: Story, record_property: Callable[[str, object], None]
) -> None:
    name = f"{story.name}-stopped"
    tally = explore(home, name, tier.pick(quick=40, full=1), *_again(tier))
    tell(record_property, name, tally)


def _again(tier: Tier) -> tuple[int, ...]:
    """Return the stride of crashes during a recovery, if there are any."""
    return (97,) if tier.full else ()


def tell(record_property: Callable[[str, object], None], name: str, tally: Tally) -> None:
    told = (
        f"{name}: {tally.passed} points of {len(tally.names)} names in {len(tally.places)} places;"
        f" {tally.runs[0]} crashes and {tally.runs[1]} second ones run, {tally.same} more the same as these"
    )
    record_property("faults", told)
