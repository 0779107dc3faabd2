from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from polyray.core.errors import Invalid
from polyray.core.resources import (
    MAX_BYTES,
    MAX_MILLI,
    MAX_SUM,
    Resources,
    format_amount,
    parse_bundle,
    parse_bytes,
    parse_milli,
    total,
)

AMOUNT = st.integers(0, 2**63 - 1)
VECTOR = st.dictionaries(st.sampled_from(["cpu", "memory", "h100", "a10"]), AMOUNT).map(Resources)
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.decimals(), st.lists(st.integers(), max_size=2)
)


@given(st.lists(VECTOR, max_size=8))
def test_a_sum_never_wraps_and_is_never_below_one_of_its_parts(vectors: list[Resources]) -> None:
    result = total(vectors)
    for flavor in ("cpu", "memory", "h100", "a10"):
        exact = sum(vector[flavor] for vector in vectors)
        assert result[flavor] == min(exact, MAX_SUM)


@given(VECTOR, VECTOR)
def test_addition_has_no_order(a: Resources, b: Resources) -> None:
    assert a + b == b + a
    assert a + Resources() == (a if all(n <= MAX_SUM for n in a.values()) else a + Resources())


@given(VECTOR, VECTOR)
def test_what_fits_lacks_nothing_and_leaves_the_rest(a: Resources, room: Resources) -> None:
    assert a.fits(room) == (not a.lacking(room))
    if a.fits(room):
        rest = room - a
        assert all(rest[flavor] + a[flavor] == room[flavor] for flavor in {*room, *a})
    else:
        lacking = a.lacking(room)
        assert all(a[flavor] - lacking[flavor] <= room[flavor] for flavor in a)


@given(st.integers(0, MAX_MILLI))
def test_a_count_survives_being_shown_and_read_again(milli: int) -> None:
    assert parse_milli(Decimal(format_amount("cpu", milli)), field="cpu") == milli


@given(st.integers(1, MAX_BYTES))
def test_a_size_survives_being_shown_and_read_again(size: int) -> None:
    assert parse_bytes(format_amount("memory", size), field="memory") == size


@given(st.integers(1, 1000))
def test_n_nths_of_a_device_in_thousandths_add_up_exactly(milli: int) -> None:
    share = Resources(gpu=parse_milli(milli / 1000, field="gpu"))
    assert total([share] * 1000)["gpu"] == milli * 1000


@given(ANYTHING)
def test_a_count_is_exact_or_refused_with_its_field(value: object) -> None:
    try:
        milli = parse_milli(value, field="resources.cpu")
    except Invalid as refused:
        assert refused.field == "resources.cpu"
        assert refused.message.isascii()
        assert len(refused.message) < 200
    else:
        assert isinstance(value, (int, float, Decimal))
        assert not isinstance(value, bool)
        assert Decimal(milli) / 1000 == Decimal(str(value))
        assert 0 <= milli <= MAX_MILLI


@given(st.dictionaries(st.one_of(st.sampled_from(["cpu", "gpu", "memory"]), st.text()), ANYTHING, max_size=4))
def test_a_bundle_is_bounded_or_refused_with_its_field(spec: dict[str, object]) -> None:
    try:
        bundle = parse_bundle(spec)
    except Invalid as refused:
        assert refused.field.startswith("resources")
    else:
        assert bundle["cpu"] > 0
        assert bundle["memory"] > 0
        assert all(amount <= max(MAX_MILLI, MAX_BYTES) for amount in bundle.values())
