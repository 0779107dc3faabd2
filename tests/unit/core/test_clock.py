from __future__ import annotations

from polyray.core.clock import SystemClock, VirtualClock


def test_a_virtual_clock_moves_only_when_told_to() -> None:
    clock = VirtualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_a_step_of_the_wall_clock_moves_no_lease() -> None:
    clock = VirtualClock(now_ms=10_000)
    clock.step_wall(-5)
    assert (clock.now_ms(), clock.monotonic()) == (5000, 0.0)


def test_the_systems_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)
    assert clock.now_ms() > 1_700_000_000_000
