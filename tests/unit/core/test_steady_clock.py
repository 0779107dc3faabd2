"""The platform's time goes on evenly, whatever is done to the machine's clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyray.core.steady_clock import SLEW, SteadyClock

HOUR_MS = 3_600_000
UTC_MS = 1_790_000_000_000


@dataclass
class Machine:
    """A machine whose clock can be put anywhere."""

    up_ms: float = 1_000.0
    moved_ms: float = 0.0

    def wall_ms(self) -> float:
        return UTC_MS + self.up_ms + self.moved_ms

    def clock(self, kept: Path, boot_id: str = "boot") -> SteadyClock:
        return SteadyClock(kept, wall_ms=self.wall_ms, uptime_ms=lambda: self.up_ms, boot_id=boot_id)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "clock.json"


def test_a_clock_that_is_left_alone_tells_wall_time(kept: Path) -> None:
    machine = Machine()
    clock = machine.clock(kept)
    for _ in range(100):
        machine.up_ms += 12_345
        assert clock.now_ms() == int(machine.wall_ms())


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS, 10 * 365 * 24 * HOUR_MS])
def test_a_step_of_the_wall_clock_changes_no_duration_by_more_than_a_hundredth(kept: Path, step_ms: int) -> None:
    machine = Machine()
    clock = machine.clock(kept)
    began_ms = clock.now_ms()
    machine.moved_ms = step_ms
    machine.up_ms += HOUR_MS
    assert abs(clock.now_ms() - began_ms - HOUR_MS) <= SLEW * HOUR_MS + 1


def test_a_step_there_and_back_is_as_if_it_had_not_been(kept: Path) -> None:
    machine = Machine()
    clock = machine.clock(kept)
    machine.moved_ms = HOUR_MS
    machine.up_ms += 60_000
    clock.now_ms()
    machine.moved_ms = 0
    machine.up_ms += 60_000
    assert clock.now_ms() == int(machine.wall_ms())


def test_a_difference_that_stays_is_told_and_is_gone_after_a_hundred_times_as_long(kept: Path) -> None:
    machine = Machine()
    clock = machine.clock(kept)
    machine.moved_ms = HOUR_MS
    assert clock.behind_ms() == HOUR_MS
    for _ in range(101):
        machine.up_ms += HOUR_MS
        clock.now_ms()
    assert abs(clock.behind_ms()) <= 1


def test_a_process_of_the_same_boot_goes_on_where_the_last_one_was(kept: Path) -> None:
    machine = Machine()
    before = machine.clock(kept)
    before.keep()
    at_ms = before.now_ms()
    machine.moved_ms = -HOUR_MS
    machine.up_ms += 5_000
    assert 4_949 <= machine.clock(kept).now_ms() - at_ms <= 5_000


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"boot_id": "boot", "offset_ms": "x"}', "\0"])
def test_what_was_kept_and_cannot_be_read_counts_as_nothing(kept: Path, content: str) -> None:
    kept.write_text(content)
    machine = Machine()
    assert machine.clock(kept).now_ms() == int(machine.wall_ms())


def test_after_a_boot_or_a_clean_end_the_wall_clock_is_believed(kept: Path) -> None:
    machine = Machine()
    clock = machine.clock(kept)
    clock.keep()
    machine.moved_ms = HOUR_MS
    assert machine.clock(kept, boot_id="another").now_ms() == int(machine.wall_ms())
    clock.forget()
    assert machine.clock(kept).now_ms() == int(machine.wall_ms())


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(-1e9, 1e9))))
def test_it_never_goes_back(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock(Path("/nonexistent/clock.json"))
    last = clock.now_ms()
    for passed, moved in steps:
        machine.up_ms += passed
        machine.moved_ms = moved
        assert clock.now_ms() >= last
        last = clock.now_ms()
