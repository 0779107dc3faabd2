"""Which cloud nodes to launch for a gang that reserved capacity cannot hold in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from polyray.broker.fit import Fit, Gang, Room, place, room_of_offering
from polyray.broker.snapshot import Launch, Offering
from polyray.core.money import HOUR_MS, format_usd, price_of
from polyray.core.spec import CapacityType


@dataclass(frozen=True)
class Market:
    """What the cloud has now: offering name -> how many more of it may be launched, and until when it cools down."""

    offerings: tuple[Offering, ...]
    left: Mapping[str, int]
    cooling: Mapping[str, int]

    def open_to(self, gang: Gang) -> tuple[Offering, ...]:
        return tuple(offering for offering in self.offerings if self.closed_because(gang, offering) is None)

    def closed_because(self, gang: Gang, offering: Offering) -> str | None:
        """Return why an offering cannot be launched for a gang now; None if it can."""
        if offering.capacity_type not in gang.capacity:
            return f"{offering.capacity_type} is not among the capacity types that it accepts"
        if offering.name in self.cooling:
            return "it failed lately and cools down"
        if self.left[offering.name] <= 0:
            return f"all {offering.max_nodes} nodes that it allows are there"
        return None


@dataclass(frozen=True)
class Purchase:
    """Nodes that, with what is free now (`base`), hold the whole gang."""

    gang: Gang
    base: Fit
    offerings: tuple[Offering, ...]
    #: Other choices that would do: offering names and their price an hour.
    considered: tuple[tuple[tuple[str, ...], int], ...] = ()

    @property
    def usd_micros_per_hour(self) -> int:
        return sum(offering.usd_micros_per_hour for offering in self.offerings)

    def estimate(self, duration_ms: int) -> int:
        """Return the price of all its nodes for so long, in micro-dollars."""
        return sum(price_of(offering.usd_micros_per_hour, 0, duration_ms) for offering in self.offerings)


def shop(gangs: Sequence[Gang], rooms: Mapping[str, Room], market: Market) -> Purchase | None:
    """Return the cheapest purchase found that lets a gang (of readings of one request) start whole.

    Tried are each offering alone, and a mix by price per bundle placed; each with the head placed first, with
    the head bought last, and with only the workers on what is free.
    """
    found: list[Purchase] = []
    for gang in gangs:
        candidates = market.open_to(gang)
        choices = [(offering,) for offering in candidates] + ([candidates] if len(candidates) > 1 else [])
        workers = range(1, len(gang.bundles))
        bases = (
            [place(gang, rooms), Fit(place(gang, rooms, workers).placements, ())] if workers else [place(gang, rooms)]
        )
        for base in bases:
            placed = {placement.rank for placement in base.placements}
            unplaced = [rank for rank in range(len(gang.bundles)) if rank not in placed]
            for choice in choices:
                bought = [_buy(gang, choice, market, [unplaced])]
                if unplaced[:1] == [0]:
                    bought.append(_buy(gang, choice, market, [unplaced[1:], [0]]))
                found += [Purchase(gang, base, offerings) for offerings in bought if offerings is not None]
    if not found:
        return None
    best = min(found, key=_dearness)
    considered = sorted({(_names(each), each.usd_micros_per_hour) for each in found}, key=lambda each: (each[1], each))
    return Purchase(best.gang, best.base, best.offerings, tuple(considered))


def launches(workload_id: str, purchase: Purchase, market: Market, duration_ms: int) -> tuple[Launch, ...]:
    """Return one launch per node, each with the receipt of the choice."""
    refused = {
        offering.name: reason
        for offering in market.offerings
        if (reason := market.closed_because(purchase.gang, offering)) is not None
    }
    names = list(_names(purchase))
    receipt: dict[str, object] = {
        "chosen": names,
        "usd_micros_per_hour": purchase.usd_micros_per_hour,
        "considered": [{"offerings": list(each), "usd_micros_per_hour": price} for each, price in purchase.considered],
        "refused": refused,
        "why": f"the cheapest of {len(purchase.considered)} that let the whole gang start:"
        f" {', '.join(names)} for {format_usd(purchase.usd_micros_per_hour)} an hour",
        "estimated_for_ms": duration_ms,
        "gang_estimated_usd_micros": purchase.estimate(duration_ms),
    }
    return tuple(
        Launch(
            workload_id,
            offering,
            receipt | {"estimated_usd_micros": price_of(offering.usd_micros_per_hour, 0, duration_ms)},
        )
        for offering in purchase.offerings
    )


def expected_duration_ms(max_duration_ms: int | None) -> int:
    """Return for how long new nodes are reckoned: as long as the workload may run, or an hour."""
    return HOUR_MS if max_duration_ms is None else max_duration_ms


def _buy(
    gang: Gang, choice: Sequence[Offering], market: Market, phases: Sequence[list[int]]
) -> tuple[Offering, ...] | None:
    """Return nodes for the ranks of each phase, step by step those of the least price per bundle; None if none do."""
    bought: list[Offering] = []
    left = {offering.name: market.left[offering.name] for offering in choice}
    for unplaced in phases:
        while unplaced:
            step = _best_step(gang, [offering for offering in choice if left[offering.name] > 0], unplaced)
            if step is None:
                return None
            offering, placed = step
            nodes = _like_nodes(gang, placed, unplaced, left[offering.name])
            bought += [offering] * nodes
            left[offering.name] -= nodes
            alike = [rank for rank in unplaced if rank > 0 and gang.bundles[rank] == gang.bundles[placed[0]]]
            taken = set(placed) if nodes == 1 else set(alike[: nodes * len(placed)])
            unplaced = [rank for rank in unplaced if rank not in taken]
    return tuple(sorted(bought, key=lambda offering: offering.name))


def _best_step(gang: Gang, choice: Sequence[Offering], unplaced: Sequence[int]) -> tuple[Offering, list[int]] | None:
    """Return the offering whose node holds bundles at the least price each, and which.

    On a tie a node that nobody reclaims: spot at on-demand price is no spot.
    """
    steps = [(offering, placed) for offering in choice if (placed := _ranks_on(gang, offering, unplaced))]

    def dearness(step: tuple[Offering, list[int]]) -> tuple[object, ...]:
        offering, placed = step
        price = offering.usd_micros_per_hour
        return Fraction(price, len(placed)), offering.capacity_type is CapacityType.SPOT, price, offering.name

    return min(steps, key=dearness, default=None)


def _ranks_on(gang: Gang, offering: Offering, unplaced: Sequence[int]) -> list[int]:
    fit = place(gang, {"new": room_of_offering(offering, "new")}, unplaced)
    return [placement.rank for placement in fit.placements]


def _like_nodes(gang: Gang, placed: list[int], unplaced: Sequence[int], most: int) -> int:
    """Return how many nodes the same step would buy in a row, so that a thousand workers take one step."""
    bundle = gang.bundles[placed[0]]
    if 0 in placed or any(gang.bundles[rank] != bundle for rank in placed):
        return 1
    alike = sum(gang.bundles[rank] == bundle for rank in unplaced if rank > 0)
    return max(1, min(alike // len(placed), most))


def _dearness(purchase: Purchase) -> tuple[object, ...]:
    spots = sum(offering.capacity_type is CapacityType.SPOT for offering in purchase.offerings)
    bundle = tuple(purchase.gang.bundles[-1].items())
    return purchase.usd_micros_per_hour, spots, len(purchase.offerings), _names(purchase), bundle


def _names(purchase: Purchase) -> tuple[str, ...]:
    return tuple(offering.name for offering in purchase.offerings)
