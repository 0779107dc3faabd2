"""The control plane dies at any point of any story, and again while it recovers: nothing acknowledged is lost.

Each failure names the one history that failed: `CRASH_AT=STORY:POINT[:POINT] pytest THIS_FILE`.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from conftest import Tier
from polyray.core import ids
from support.exhaustive import Explorer, Tally
from support.stage import Stage, Story
from support.stopping import StopOnStage
from support.stories import RUN, RUN_WITH_TWO, STORIES

pytestmark = pytest.mark.timeout(1200)

SHARED_MEMORY = Path("/dev/shm")
#: The seed of ids, and of which moments a stride takes.
SEED = int(os.environ.get("POLYRAY_SEED", "1"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in, in memory where there is such a thing, with quiet logs and repeatable ids."""
    base = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else tmp_path))
    for name in ("golden", "forked"):
        (base / name).mkdir()
    monkeypatch.chdir(base / "golden")
    monkeypatch.setattr(ids, "secrets", SimpleNamespace(choice=random.Random(SEED).choice))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield base
    structlog.reset_defaults()
    shutil.rmtree(base)


def explore(home: Path, name: str, make: Callable[[], Stage], *strides: int) -> Tally:
    stage = make()
    explorer = Explorer(name, stage, home / "forked", strides=strides, seed=SEED)
    stage.watching = explorer.watching
    tally = explorer.explore()
    assert not tally.failures, f"{len(tally.failures)} histories failed, the first being\n" + tally.failures[0]
    return tally


def test_whatever_point_it_crashes_at_a_job_runs_once_and_its_client_is_told_the_same(
    home: Path, tier: Tier, record_property: Callable[[str, object], None]
) -> None:
    tally = explore(home, RUN.name, lambda: Stage(RUN), 1, *_again(tier))
    tell(record_property, RUN.name, tally)


@pytest.mark.parametrize("story", STORIES[1:], ids=lambda story: story.name)
def test_whatever_point_it_crashes_at_every_story_ends_as_if_nothing_had_happened(
    home: Path, tier: Tier, story: Story, record_property: Callable[[str, object], None]
) -> None:
    tally = explore(home, story.name, lambda: Stage(story), tier.pick(quick=24, full=1), *_again(tier))
    tell(record_property, story.name, tally)


@pytest.mark.parametrize("story", [RUN, RUN_WITH_TWO], ids=lambda story: story.name)
def test_whenever_a_stop_comes_it_is_kept_also_by_a_control_plane_that_dies_of_it(
    home: Path, tier: Tier, story: Story, record_property: Callable[[str, object], None]
) -> None:
    name = f"{story.name}-stopped"
    again = (97,) if tier.full else ()
    tally = explore(home, name, lambda: StopOnStage(story, "job"), tier.pick(quick=40, full=1), *again)
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
