"""A crash at any step of a restore leaves the old database or the new one, whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import Tier
from polyray.core import faultpoints
from polyray.core.errors import Conflict, PolyrayError
from polyray.recovery.restore import restore
from support.crashes import Crash
from support.going_back import auditor_of, backed_up, contents
from support.world import World


@pytest.mark.parametrize("spoilt", [False, True], ids=["sound", "spoilt"])
def test_a_crash_at_any_step_leaves_the_old_database_or_the_new_one(tmp_path: Path, tier: Tier, spoilt: bool) -> None:
    world = World(tmp_path / "state")
    world.settle(5)
    auditor_of(world).look()
    (world.settings.state_dir / "platform.json").write_text("{}")
    backup = backed_up(world)
    world.submit()
    world.settle(5)
    world.store.close()
    if spoilt:
        (world.settings.state_dir / "polyray.db").write_bytes(b"no database" * 100)
        (world.settings.state_dir / "polyray.db-wal").write_bytes(b"no journal")
    pristine = tmp_path / "pristine"
    shutil.copytree(world.settings.state_dir, pristine)

    passed: list[str] = []
    with faultpoints.striking(passed.append):
        restore(world.settings, backup, clock=world.clock)
    assert {"restore.keep.after", "restore.swap.before", "restore.swap.after", "restore.definition.after"} <= set(
        passed
    )
    swap = passed.index("restore.swap.after")
    stride = tier.pick(quick=8, full=1)
    for k, point in enumerate(passed):
        if not point.startswith("restore.") and k % stride:
            continue
        shutil.rmtree(world.settings.state_dir)
        shutil.copytree(pristine, world.settings.state_dir)
        seen: list[str] = []

        def die(name: str, seen: list[str] = seen, k: int = k) -> None:
            seen.append(name)
            if len(seen) == k + 1:
                raise Crash(name)

        with faultpoints.striking(die), pytest.raises(Crash):
            restore(world.settings, backup, clock=world.clock)
        if spoilt and k < swap:
            with pytest.raises(PolyrayError):
                contents(world.settings)
        else:
            assert contents(world.settings) == ((0, True) if k >= swap else (1, False)), point
        # Restoring again ends it, whatever was left.
        world.clock.advance(1)
        restore(world.settings, backup, clock=world.clock)
        assert contents(world.settings) == (0, True)


def test_a_crash_in_the_middle_of_postgresqls_transaction_leaves_the_old_rows(
    tmp_path: Path, postgresql_url: str
) -> None:
    world = World(tmp_path / "state", database_url=postgresql_url)
    world.settle(5)
    backup = backed_up(world)
    world.submit()
    world.settle(5)
    world.store.close()
    with pytest.raises(Conflict, match="not empty"):
        restore(world.settings, backup, clock=world.clock)
    # The transaction begins at the swap; whatever ends it before its commit undoes it.
    for point, outcome in (
        ("restore.swap.before", (1, False)),
        ("portable.page.after", (1, False)),
        ("store.commit.before", (1, False)),
        ("store.commit.after", (0, True)),
    ):
        world.clock.advance(1)
        seen: list[str] = []

        def die(name: str, seen: list[str] = seen, point: str = point) -> None:
            seen.append(name)
            if name == point and "restore.swap.before" in seen:
                raise Crash(name)

        with faultpoints.striking(die), pytest.raises(Crash):
            restore(world.settings, backup, clock=world.clock, overwrite=True)
        assert contents(world.settings) == outcome, point


# From one kind of database to the other.
