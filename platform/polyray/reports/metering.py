"""What the nodes cost and who pays: pure, in integer micro-dollars, zero-sum.

A node's billed interval is half-open, UTC. Its price is split where anything changes: a lease begins or
ends, the node joins, a month begins. The price of each piece is a difference of whole prices since the
interval's start, so pieces add up to the interval's price exactly, and what is past never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from polyray.core.money import price_of
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType


class LineKind(StrEnum):
    #: A workload's share of a node while it held a lease.
    LEASE = "lease"
    #: From the start of billing until the node joined the core.
    BOOT = "boot"
    #: What no lease held.
    IDLE = "idle"
    #: The same of a cloud node that was launched for nobody: one that no row knew, or whose workload is unknown.
    UNATTRIBUTED = "unattributed"


@dataclass(frozen=True)
class Payer:
    """Who a line is booked to. All empty: the platform."""

    tenant: str = ""
    project: str = ""
    workload_id: str = ""


PLATFORM = Payer()


@dataclass(frozen=True)
class NodeInterval:
    """A node as its provider bills it: [start, end), milliseconds since the epoch."""

    node_id: str
    pool: str
    capacity_type: CapacityType
    usd_micros_per_hour: int
    resources: Resources
    start_ms: int
    end_ms: int
    #: When it joined the core; None if it never did.
    ready_ms: int | None
    #: Who it was launched for, and so who pays for its boot and idle time; the platform for reserved nodes.
    launched_for: Payer = PLATFORM
    simulated: bool = False

    @property
    def usd_micros(self) -> int:
        return price_of(self.usd_micros_per_hour, self.start_ms, self.end_ms)


@dataclass(frozen=True)
class LeaseInterval:
    lease_id: str
    node_id: str
    payer: Payer
    resources: Resources
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Line:
    """A payer's part of one node's price within [start, end)."""

    node: NodeInterval
    kind: LineKind
    payer: Payer
    start_ms: int
    end_ms: int
    usd_micros: int

    @property
    def reserved(self) -> bool:
        return self.node.capacity_type is CapacityType.RESERVED


def bill(nodes: Iterable[NodeInterval], leases: Iterable[LeaseInterval]) -> tuple[Line, ...]:
    """Return lines whose sum is exactly the price of all the nodes' intervals.

    Leases count only while their node is billed. Those that together claim more than the node are
    scaled down to the whole of it.
    """
    by_node: dict[str, list[LeaseInterval]] = {}
    for lease in leases:
        by_node.setdefault(lease.node_id, []).append(lease)
    lines: list[Line] = []
    for node in sorted(nodes, key=lambda node: (node.start_ms, node.node_id)):
        lines += _lines(node, by_node.get(node.node_id, []))
    return tuple(lines)


def month_bounds(month: str) -> tuple[int, int]:
    """Return [start, end) of a month such as `2026-03` in milliseconds since the epoch, UTC.

    Raises:
        ValueError: if it is no month.
    """
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return _ms(start), _ms(_next_month(start))


def month_of(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m}"


def dominant_share(resources: Resources, node: Resources) -> Fraction:
    """Return the largest part of any one resource of the node that is taken; at most 1."""
    shares = [Fraction(amount, node[flavor]) for flavor, amount in resources.items() if node[flavor]]
    return min(max(shares, default=Fraction(0)), Fraction(1))


def apportion(amount: int, weights: Sequence[Fraction]) -> list[int]:
    """Split `amount` by weights that sum to 1, exactly: largest remainders first, earlier ones on a tie."""
    exact = [amount * weight for weight in weights]
    parts = [int(each) for each in exact]
    order = sorted(range(len(parts)), key=lambda index: (parts[index] - exact[index], index))
    for index in order[: amount - sum(parts)]:
        parts[index] += 1
    return parts


def _lines(node: NodeInterval, leases: Sequence[LeaseInterval]) -> list[Line]:
    """Return the node's lines, neighbouring pieces of one payer joined."""
    lines: list[Line] = []
    last: dict[tuple[LineKind, Payer], int] = {}
    for start, end, held in _pieces(node, leases):
        price = price_of(node.usd_micros_per_hour, node.start_ms, end) - price_of(
            node.usd_micros_per_hour, node.start_ms, start
        )
        claims = _claims(node, held, start)
        for (kind, payer), part in zip(claims, apportion(price, list(claims.values())), strict=True):
            index = last.get((kind, payer))
            if index is not None and lines[index].end_ms == start and not _is_month_start(start):
                before = lines[index]
                lines[index] = Line(node, kind, payer, before.start_ms, end, before.usd_micros + part)
            else:
                last[kind, payer] = len(lines)
                lines.append(Line(node, kind, payer, start, end, part))
    return lines


def _pieces(
    node: NodeInterval, leases: Sequence[LeaseInterval]
) -> Iterator[tuple[int, int, tuple[LeaseInterval, ...]]]:
    """Yield (start, end, leases held), piece by piece, within each of which nothing changes."""
    coming = sorted(leases, key=lambda lease: lease.start_ms, reverse=True)
    held: list[LeaseInterval] = []
    for start, end in pairwise(_edges(node, leases)):
        while coming and coming[-1].start_ms <= start:
            held.append(coming.pop())
        held = [lease for lease in held if lease.end_ms > start]
        yield start, end, tuple(held)


def _claims(node: NodeInterval, held: Sequence[LeaseInterval], start: int) -> dict[tuple[LineKind, Payer], Fraction]:
    """Return who pays which part of the piece from `start`; the parts sum to 1."""
    shares: dict[tuple[LineKind, Payer], Fraction] = {}
    for lease in sorted(held, key=lambda lease: lease.lease_id):
        key = LineKind.LEASE, lease.payer
        shares[key] = shares.get(key, Fraction(0)) + dominant_share(lease.resources, node.resources)
    claimed = sum(shares.values(), Fraction(0))
    if claimed > 1:
        return {key: share / claimed for key, share in shares.items()}
    if claimed < 1:
        shares[_unclaimed(node, start), node.launched_for] = 1 - claimed
    return shares


def _unclaimed(node: NodeInterval, start: int) -> LineKind:
    if node.launched_for == PLATFORM and node.capacity_type is not CapacityType.RESERVED:
        return LineKind.UNATTRIBUTED
    return LineKind.BOOT if node.ready_ms is None or start < node.ready_ms else LineKind.IDLE


def _edges(node: NodeInterval, leases: Sequence[LeaseInterval]) -> list[int]:
    """Return all moments at which something changes, the interval's own ends included."""
    if node.end_ms <= node.start_ms:
        return []
    moments = {node.ready_ms or node.end_ms, *(lease.start_ms for lease in leases), *(lease.end_ms for lease in leases)}
    month = _next_month(datetime.fromtimestamp(node.start_ms / 1000, UTC))
    while _ms(month) < node.end_ms:
        moments.add(_ms(month))
        month = _next_month(month)
    within = {moment for moment in moments if node.start_ms < moment < node.end_ms}
    return sorted({node.start_ms, node.end_ms} | within)


def _is_month_start(at_ms: int) -> bool:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at_ms == _ms(datetime(at.year, at.month, 1, tzinfo=UTC))


def _next_month(at: datetime) -> datetime:
    return datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)


def _ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000
