"""What a workload would cost: a priced plan for `dry_run`, from what can be launched now. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from polyray.api.views import OfferView, PlanView
from polyray.broker.fit import resolve, room_of_offering
from polyray.broker.snapshot import Offering
from polyray.core.money import price_of
from polyray.core.resources import Resources, is_gpu, total
from polyray.core.spec import WorkloadSpec


def priced_plan(spec: WorkloadSpec, tenant: str, offerings: Iterable[Offering]) -> PlanView:
    """Return the gang, and each offering that could carry all of it with the number of nodes and the price."""
    bundles = spec.bundles
    offers = []
    for offering in offerings:
        nodes = _nodes_needed(bundles, offering)
        if offering.capacity_type in spec.capacity and 0 < nodes <= offering.max_nodes:
            offers.append(
                OfferView(
                    offering=offering.name,
                    pool=offering.pool,
                    capacity_type=offering.capacity_type.value,
                    simulated=offering.simulated,
                    nodes=nodes,
                    usd_micros_per_hour=nodes * offering.usd_micros_per_hour,
                )
            )
    offers.sort(key=lambda offer: (offer.usd_micros_per_hour, offer.offering))
    hourly = offers[0].usd_micros_per_hour if offers else None
    longest = spec.max_duration_ms
    at_most = None if hourly is None or longest is None else price_of(hourly, 0, longest)
    limits = [limit for limit in (at_most, spec.max_cost_usd_micros) if limit is not None]
    return PlanView(
        kind=spec.kind.value,
        name=spec.name,
        tenant=tenant,
        project=spec.project,
        bundles=[bundle.as_dict() for bundle in bundles],
        total=total(bundles).as_dict(),
        offers=offers,
        usd_micros_per_hour=hourly,
        max_usd_micros=min(limits, default=None),
    )


def _nodes_needed(bundles: tuple[Resources, ...], offering: Offering) -> int:
    """Return how many nodes of an offering carry a gang of a head and like workers; 0 if none can."""
    flavors = [flavor for flavor in offering.resources if is_gpu(flavor)]
    head, *workers = resolve(bundles, flavors)[0]
    empty = room_of_offering(offering, "")
    first = empty.take(head)
    if first is None:
        return 0
    if not workers:
        return 1
    beside_head, on_one = first[0].count(workers[0]), empty.count(workers[0])
    left = max(len(workers) - beside_head, 0)
    if left and not on_one:
        return 0
    return 1 + (-(-left // on_one) if left else 0)
