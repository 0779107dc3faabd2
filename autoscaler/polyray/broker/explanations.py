"""The sentences for what waits: one function per reason, figures in the facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from polyray.broker.quota import Excess
from polyray.broker.snapshot import NodeView, Offering
from polyray.core.explain import Explanation
from polyray.core.money import format_usd
from polyray.core.resources import Resources

QUOTA_EXCEEDED = "quota_exceeded"


def suspended(tenant: str) -> Explanation:
    return Explanation("tenant_suspended", f"tenant {tenant} is suspended", "an operator lifts the suspension")


def paused(until_ms: int) -> Explanation:
    return Explanation(
        "paused",
        f"its last attempts did not last, and it pauses until {_clock(until_ms)}",
        "the pause ends",
        {"until_ms": until_ms},
    )


def far_behind(kinds: int) -> Explanation:
    return Explanation(
        "behind_others",
        f"{kinds} other kinds of request of the same tenant came first",
        "some of them start, or are stopped",
        {"kinds": kinds},
    )


def quota_exceeded(excess: Excess) -> Explanation:
    return Explanation(QUOTA_EXCEEDED, excess.sentence, f"{excess.flavor} of the tenant becomes free", excess.facts())


def behind_quota(excess: Excess, first: str) -> Explanation:
    return Explanation(
        "behind_others",
        f"{first} of the same tenant was first and needs what is left of the quota of {excess.flavor}",
        f"{first} starts, or is stopped",
        {"first": first, **excess.facts()},
    )


def behind_others() -> Explanation:
    return Explanation(
        "behind_others",
        "there is room for it, but it is held for workloads that came first",
        "those that came first start",
    )


def waiting_for_node(nodes: Sequence[NodeView], launched: Sequence[Offering]) -> Explanation:
    """Tell which nodes it waits for and since when (milliseconds since the epoch); `launched` were asked for now."""
    arriving = [{"node": node.node_id, "offering": node.offering, "since_ms": node.since_ms} for node in nodes]
    names = [str(node.node_id) for node in nodes] or [offering.name for offering in launched]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Explanation(
        "waiting_for_node",
        f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'} on the way",
        "they join the core" if len(names) > 1 else "it joins the core",
        {"nodes": arriving, "launched": [offering.name for offering in launched]},
    )


def waiting_for_capacity(lacking: Resources, *, cloud: dict[str, str], burst_ms: int | None) -> Explanation:
    """Tell what is lacking; `cloud` says of each offering why it does not help, `burst_ms` when the cloud is asked."""
    facts: dict[str, object] = {"lacking": lacking.as_dict(), "cloud": cloud}
    unblocks = "others end, or an operator adds machines"
    if burst_ms is not None:
        facts["burst_ms"] = burst_ms
        unblocks = f"others end, or at {_clock(burst_ms)} its max_wait passes and the cloud is asked"
    return Explanation("waiting_for_capacity", f"it lacks {lacking} among the nodes that it accepts", unblocks, facts)


def over_budget(estimate: int, left: int, offerings: Sequence[Offering]) -> Explanation:
    return Explanation(
        "budget_exhausted",
        f"cloud nodes for it would cost about {format_usd(estimate)},"
        f" but {format_usd(max(left, 0))} of the tenant's budget of this month is left",
        "reserved capacity becomes free, the budget is raised, or a new month begins",
        {"estimated_usd_micros": estimate, "left_usd_micros": left, "offerings": [each.name for each in offerings]},
    )


def over_max_cost(estimate: int, spent: int, most: int, offerings: Sequence[Offering]) -> Explanation:
    return Explanation(
        "budget_exhausted",
        f"cloud nodes for it would cost about {format_usd(estimate)}"
        f" beside {format_usd(spent)} so far, more than its max_cost of {format_usd(most)}",
        "reserved capacity becomes free, or it is submitted with a higher max_cost or a shorter max_duration",
        {
            "estimated_usd_micros": estimate,
            "spent_usd_micros": spent,
            "max_cost_usd_micros": most,
            "offerings": [each.name for each in offerings],
        },
    )


def _clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
