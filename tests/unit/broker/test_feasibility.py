"""What can never run is refused with the nearest that can."""

from __future__ import annotations

from polyray.broker.feasibility import feasible
from polyray.core.explain import Explanation
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType, Kind
from support.capacity import ON_DEMAND, RESERVED, SPOT, amounts, gang, node, offering, tenant

RACK = node("n1", amounts(2, 4))
CLOUD = offering("cloud", amounts(1, 2), 1.2, max_nodes=2)
BOTH = (RESERVED, ON_DEMAND)


def why(bundles: tuple[Resources, ...], capacity: tuple[CapacityType, ...] = BOTH, **more: Kind) -> Explanation | None:
    return feasible(bundles, capacity, tenant(nominal=amounts(8, 16)), (RACK,), (CLOUD,), **more)


def test_what_fits_the_empty_fleet_is_not_refused() -> None:
    assert why(gang(3, amounts(1))) is None


def test_load_and_budget_refuse_nothing_at_submit() -> None:
    full = node("n1", amounts(2, 4), amounts(2, 4))
    poor = tenant(nominal=amounts(8, 16), used=amounts(8, 16), budget_left_usd_micros=0)
    assert feasible((amounts(2),), (RESERVED,), poor, (full,), ()) is None


def test_a_bundle_larger_than_any_machine_names_the_largest_that_fits() -> None:
    told = why((amounts(3, 8),))
    assert told is not None
    assert told.cause == "no machine of capacity type on_demand, reserved can hold cpu 3, memory 8 GiB on one node"
    assert told.facts["nearest"] == {"resources": {"cpu": "2", "memory": "4 GiB"}}
    assert told.unblocks.startswith("ask for resources: {cpu: 2, memory: 4 GiB}")


def test_too_many_workers_name_how_many_fit() -> None:
    told = why(gang(5, amounts(1)))
    assert told is not None
    assert (told.facts["reason"], told.facts["nearest"]) == ("fleet", {"workers": 3})


def test_more_than_the_quota_could_ever_allow_names_what_it_allows() -> None:
    small = tenant(nominal=amounts(3, 16))
    told = feasible(gang(3, amounts(1)), BOTH, small, (RACK,), (CLOUD,))
    assert told is not None
    assert (told.facts["reason"], told.facts["nearest"]) == ("quota", {"workers": 2})
    assert "an operator can raise the quota" in told.unblocks


def test_a_gpu_that_nobody_has_is_refused_and_the_rest_is_named() -> None:
    rich = tenant(nominal=amounts(8, 16, h100=8))
    told = feasible((amounts(1, 1, h100=1),), BOTH, rich, (RACK,), (CLOUD,))
    assert told is not None
    assert told.facts["nearest"] == {"resources": {"cpu": "1", "memory": "1 GiB"}}


def test_a_capacity_type_that_nobody_offers_names_those_there_are() -> None:
    told = why((amounts(1),), (SPOT,))
    assert told is not None
    assert told.facts["nearest"] == {"capacity": ["on_demand", "reserved"]}


def test_a_session_that_accepts_only_spot_can_never_run() -> None:
    spot = offering("spot", amounts(1, 2), 0.3, capacity_type=SPOT)
    told = feasible((amounts(1),), (SPOT,), tenant(), (), (spot,), kind=Kind.SESSION)
    assert told is not None
    assert "its head may use" in told.cause
    assert feasible((amounts(1),), (SPOT,), tenant(), (), (spot,), kind=Kind.JOB) is None


def test_a_reserved_node_that_is_being_replaced_still_counts() -> None:
    rack = offering("rack", amounts(2, 4), capacity_type=RESERVED, max_nodes=1)
    assert feasible((amounts(2),), (RESERVED,), tenant(), (), (rack,)) is None
