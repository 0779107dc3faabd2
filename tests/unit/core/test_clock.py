from __future__ import annotations

from polyray.core.clock import Stopwatch, SystemClock, VirtualClock


def test_a_virtual_clock_moves_only_when_told_to() -> None:
    clock = VirtualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_a_step_of_the_wall_clock_moves_no_lease() -> None:
    clock = VirtualClock(now_ms=10_000)
    clock.step_wall(-5)
    assert (clock.now_ms(), clock.monotonic()) == (5000, 0.0)


def test_what_lasts_grows_with_monotonic_time_alone() -> None:
    clock = VirtualClock(now_ms=10_000)
    stopwatch = Stopwatch(clock)
    assert stopwatch.lasted_ms("job", 8_000) == 2_000
    clock.step_wall(3600)
    clock.advance(1)
    assert stopwatch.lasted_ms("job", 8_000) == 3_000
    clock.step_wall(-7200)
    assert stopwatch.lasted_ms("job", 8_000) == 3_000
    stopwatch.forget("job")
    assert stopwatch.lasted_ms("job", 8_000) == 0, "never negative"


def test_what_began_later_than_was_known_has_lasted_so_much_less_and_never_longer() -> None:
    clock = VirtualClock(now_ms=10_000)
    stopwatch = Stopwatch(clock)
    stopwatch.lasted_ms("node", 10_000)
    clock.advance(5)
    assert stopwatch.lasted_ms("node", 13_000) == 2_000
    clock.step_wall(-3600)
    assert stopwatch.lasted_ms("node", clock.now_ms()) == 2_000
    clock.step_wall(7200)
    assert stopwatch.lasted_ms("node", clock.now_ms()) == 0


def test_the_systems_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)
    assert clock.now_ms() > 1_700_000_000_000
