"""What an operator is told of the machine's clock."""

from __future__ import annotations

import pytest

from polyray.control.timekeeping import told


@pytest.mark.parametrize("behind_ms", [0, 1_999, -1_999])
def test_clocks_that_agree_are_well(behind_ms: int) -> None:
    assert told(behind_ms)[0]


@pytest.mark.parametrize(("behind_ms", "said"), [(3_600_000, "3600 s ahead of"), (-3_600_000, "3600 s behind")])
def test_a_clock_that_was_moved_is_told_with_its_way_and_what_it_means(behind_ms: int, said: str) -> None:
    well, detail = told(behind_ms)
    assert not well
    assert said in detail
    assert "bills stay right" in detail
    assert "polyray down" in detail, "the way out"
