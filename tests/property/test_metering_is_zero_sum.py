"""Bills add up to what the providers bill, to the micro-dollar."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from polyray.core.money import price_of
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType
from polyray.reports.metering import (
    PLATFORM,
    LeaseInterval,
    LineKind,
    NodeInterval,
    Payer,
    apportion,
    bill,
    month_of,
)
from support.capacity import GIB

#: Nine days before a month ends, so that many intervals cross into the next.
START_MS = 1_790_000_000_000
MOMENTS = st.integers(START_MS, START_MS + 20 * 86_400_000)
PAYERS = [Payer("vision", "default", f"job-{n}") for n in range(3)] + [Payer("speech", "asr", "job-9")]


@st.composite
def node_intervals(draw: st.DrawFn, node_id: str) -> NodeInterval:
    return NodeInterval(
        node_id,
        pool="pool",
        capacity_type=draw(st.sampled_from(CapacityType)),
        usd_micros_per_hour=draw(st.integers(0, 100_000_000)),
        resources=Resources(cpu=draw(st.integers(0, 64)) * 1000, memory=draw(st.integers(0, 64)) * GIB, h100=8000),
        start_ms=draw(MOMENTS),
        end_ms=draw(MOMENTS),
        ready_ms=draw(st.one_of(st.none(), MOMENTS)),
        launched_for=draw(st.sampled_from([PLATFORM, *PAYERS])),
    )


@st.composite
def lease_intervals(draw: st.DrawFn, lease_id: str) -> LeaseInterval:
    asked = Resources(
        cpu=draw(st.integers(0, 64_000)), memory=draw(st.integers(0, 8)) * GIB, h100=draw(st.integers(0, 8000))
    )
    node_id, payer = draw(st.sampled_from(["nod-0", "nod-1"])), draw(st.sampled_from(PAYERS))
    return LeaseInterval(lease_id, node_id, payer, asked, draw(MOMENTS), draw(MOMENTS))


fleets = st.tuples(node_intervals("nod-0"), node_intervals("nod-1"))
leases = st.integers(0, 6).flatmap(lambda count: st.tuples(*[lease_intervals(f"lea-{n}") for n in range(count)]))


@given(fleets, leases)
def test_the_lines_of_each_node_add_up_to_its_price_exactly(
    nodes: tuple[NodeInterval, ...], held: tuple[LeaseInterval, ...]
) -> None:
    lines = bill(nodes, held)
    billed: Counter[str] = Counter()
    for line in lines:
        assert line.usd_micros >= 0
        assert line.node.start_ms <= line.start_ms < line.end_ms <= line.node.end_ms
        billed[line.node.node_id] += line.usd_micros
    for node in nodes:
        assert billed[node.node_id] == price_of(node.usd_micros_per_hour, node.start_ms, node.end_ms)


@given(fleets, leases)
def test_months_add_up_to_the_whole_and_no_line_crosses_one(
    nodes: tuple[NodeInterval, ...], held: tuple[LeaseInterval, ...]
) -> None:
    for line in bill(nodes, held):
        assert month_of(line.start_ms) == month_of(line.end_ms - 1)


@given(fleets, leases, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(
    nodes: tuple[NodeInterval, ...], held: tuple[LeaseInterval, ...], rng: object
) -> None:
    assert bill(nodes[::-1], held[::-1]) == bill(nodes, held)


@given(fleets, leases, MOMENTS)
def test_what_is_past_is_never_billed_otherwise_later(
    nodes: tuple[NodeInterval, ...], held: tuple[LeaseInterval, ...], now_ms: int
) -> None:
    """A bill made at a moment equals the later bill's pieces up to that moment, if something changed then."""

    def until(moment: int) -> tuple[tuple[NodeInterval, ...], tuple[LeaseInterval, ...]]:
        return (
            tuple(_cut(node, moment) for node in nodes),
            tuple(
                LeaseInterval(
                    each.lease_id, each.node_id, each.payer, each.resources, each.start_ms, min(each.end_ms, moment)
                )
                for each in held
            ),
        )

    marker = LeaseInterval("lea-zz", "nod-0", PAYERS[0], Resources(), now_ms, now_ms)
    earlier = bill(*until(now_ms))
    later_lines = bill(nodes, (*held, marker, LeaseInterval("lea-zy", "nod-1", PAYERS[0], Resources(), now_ms, now_ms)))
    spent: Counter[tuple[str, LineKind, Payer]] = Counter()
    for line in earlier:
        spent[line.node.node_id, line.kind, line.payer] += line.usd_micros
    total_later: Counter[tuple[str, LineKind, Payer]] = Counter()
    for line in later_lines:
        total_later[line.node.node_id, line.kind, line.payer] += line.usd_micros
    assert all(total_later[key] >= amount for key, amount in spent.items())


@given(st.integers(0, 10**12), st.lists(st.integers(1, 10**6), min_size=1, max_size=8))
def test_apportioning_is_exact_and_never_off_by_more_than_one(amount: int, weights: list[int]) -> None:
    from fractions import Fraction

    shares = [Fraction(weight, sum(weights)) for weight in weights]
    parts = apportion(amount, shares)
    assert sum(parts) == amount
    assert all(abs(part - amount * share) < 1 for part, share in zip(parts, shares, strict=True))


def _cut(node: NodeInterval, moment: int) -> NodeInterval:
    return NodeInterval(
        node.node_id,
        node.pool,
        node.capacity_type,
        node.usd_micros_per_hour,
        node.resources,
        node.start_ms,
        min(node.end_ms, moment),
        node.ready_ms,
        node.launched_for,
    )
