from __future__ import annotations

from decimal import Decimal

import pytest

from polyray.core.errors import Invalid
from polyray.core.money import format_usd, parse_usd, price_of


@pytest.mark.parametrize(
    ("given", "micros"),
    [
        (0, 0),
        (250, 250_000_000),
        (3.06, 3_060_000),
        ("3.06", 3_060_000),
        (0.1, 100_000),
        ("0.000001", 1),
        (10**9, 10**15),
    ],
)
def test_dollars_become_exact_micro_dollars(given: object, micros: int) -> None:
    assert parse_usd(given, field="budget") == micros


@pytest.mark.parametrize(
    "given",
    [
        -1,
        "-0.01",
        10**9 + 1,
        10**5000,
        float("nan"),
        float("inf"),
        "NaN",
        "Infinity",
        "1e999999999",
        "9e999999",
        "1e-999999999",
        "0.0000001",
        "1.0000000000000000000000000000000001",
        Decimal("1e-1000030"),
        True,
        None,
        "ten",
        "",
        "٣",
        [1],
        "1" * 1000,
    ],
    ids=lambda g: ascii(g)[:12] if not isinstance(g, int) else "int",
)
def test_what_is_no_amount_of_money_is_refused_naming_its_field(given: object) -> None:
    with pytest.raises(Invalid) as refused:
        parse_usd(given, field="max_cost")
    assert refused.value.field == "max_cost"
    assert refused.value.hint


def test_a_price_counts_the_half_open_interval_once() -> None:
    hour = 3_600_000
    assert price_of(1_200_000, 0, hour) == 1_200_000
    assert price_of(1_200_000, 0, hour // 2) + price_of(1_200_000, hour // 2, hour) == 1_200_000
    assert price_of(1_200_000, hour, 0) == 0
    assert price_of(1, 0, 1) == 0


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "$0.00"), (1, "$0.000001"), (999_999, "$0.999999"), (1_000_000, "$1.00"), (3_060_000, "$3.06")],
)
def test_small_amounts_are_shown_with_the_decimals_they_need(micros: int, text: str) -> None:
    assert format_usd(micros) == text
