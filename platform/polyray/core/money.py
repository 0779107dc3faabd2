"""Money in integer micro-dollars. A float never touches an amount."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from polyray.core.errors import Invalid
from polyray.core.ids import shown

MICROS = 10**6
MICRO = Decimal("0.000001")
MAX_USD = 10**9
MAX_USD_MICROS = MAX_USD * MICROS
HOUR_MS = 3_600_000


def parse_usd(value: object, *, field: str) -> int:
    """Return dollars (`250`, `"3.06"`) in micro-dollars.

    Raises:
        Invalid: for booleans, negatives, non-finite numbers, over 10^9 dollars or below a micro-dollar.
    """
    try:
        exact = _exact(value)
    except InvalidOperation:
        raise Invalid(f"{shown(value)} is not an amount of dollars", field=field, hint="such as 250 or 3.06") from None
    if not exact.is_finite() or not 0 <= exact <= MAX_USD:
        raise Invalid(f"{shown(value)} is out of range", field=field, hint="from 0 to 10^9 dollars")
    if exact != exact.quantize(MICRO):
        raise Invalid(f"{shown(value)} is finer than a micro-dollar", field=field, hint="six decimals at most")
    return int(exact * MICROS)


def _exact(value: object) -> Decimal:
    match value:
        case bool():
            raise InvalidOperation
        case int() | Decimal():
            return Decimal(value)
        case float():
            return Decimal(str(value))  # the decimals that its author wrote
        case str() if len(value) <= 40 and value.isascii():
            return Decimal(value)
        case _:
            raise InvalidOperation


def price_of(usd_micros_per_hour: int, start_ms: int, end_ms: int) -> int:
    """Return the price of the half-open interval [start, end) in micro-dollars, rounded down."""
    return usd_micros_per_hour * max(end_ms - start_ms, 0) // HOUR_MS


def format_usd(usd_micros: int) -> str:
    """Return an amount for people: cents, or as many decimals as a small amount needs."""
    dollars = Decimal(usd_micros) / MICROS
    return f"${dollars:.2f}" if usd_micros == 0 or abs(usd_micros) >= MICROS else f"${dollars:.6f}"
