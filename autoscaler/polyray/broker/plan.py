"""Who gets what: the first broker.

First in, first out within a priority; quota; gangs whole or not at all; reserved before cloud. The oldest
gang that lacks capacity holds a place for itself, and later ones run only on what it cannot use.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyray.broker import burst, explanations
from polyray.broker.cycle import Cycle, GangKey
from polyray.broker.feasibility import feasible
from polyray.broker.fit import Fit, Gang, place, resolve
from polyray.broker.quota import excess
from polyray.broker.snapshot import Drain, Grant, Plan, Refusal, Snapshot, TenantView, Waiting
from polyray.core.explain import Explanation
from polyray.core.resources import total
from polyray.core.spec import CapacityType

#: A workload that waited so long for quota keeps later ones of its tenant from taking it piece by piece.
QUOTA_PATIENCE_MS = 600_000


def plan(snapshot: Snapshot) -> Plan:
    """Return what to grant, launch, drain and refuse now, and why the rest waits. Pure and deterministic."""
    cycle = Cycle(snapshot)
    refused: dict[GangKey, Explanation | None] = {}
    for waiting in in_order(snapshot.queue):
        _consider(cycle, waiting, refused)
    return Plan(
        grants=tuple(cycle.grants),
        launches=tuple(cycle.launches),
        drains=tuple(_drains(cycle)),
        refusals=tuple(cycle.refusals),
        explanations=_placed(cycle),
    )


def in_order(queue: Iterable[Waiting]) -> list[Waiting]:
    """Return the queue as it is served: by priority, then age, then id."""
    return sorted(queue, key=lambda waiting: (-waiting.priority, waiting.queued_ms, waiting.workload_id))


def _consider(cycle: Cycle, waiting: Waiting, refused: dict[GangKey, Explanation | None]) -> None:
    """Decide one workload.

    There are six cases, tried in this order: it may not or can never run; it is over quota; it fits now; it fits once
    nodes on their way are there; the cloud is asked; it waits for capacity.
    """
    tenant = cycle.tenants.get(waiting.tenant)
    if tenant is None or tenant.suspended:
        cycle.wait(waiting, explanations.suspended(waiting.tenant))
        return
    key = (waiting.tenant, waiting.bundles, frozenset(waiting.capacity), waiting.kind)
    if key not in refused:
        nodes, offerings = cycle.snapshot.nodes, cycle.snapshot.offerings
        refused[key] = feasible(waiting.bundles, waiting.capacity, tenant, nodes, offerings, kind=waiting.kind)
    if (refusal := refused[key]) is not None:
        cycle.refusals.append(Refusal(waiting.workload_id, refusal))
        return
    gangs = _within_quota(cycle, waiting, tenant)
    if not gangs:
        return
    for gang in gangs:
        if (fit := cycle.fit_now(gang)) is not None:
            cycle.grant(waiting, Grant(waiting.workload_id, fit.placements))
            return
    for gang in gangs:
        if (fit := cycle.fit_soon(gang)) is not None:
            cycle.hold(waiting, gang, fit)
            cycle.wait(waiting, explanations.waiting_for_node(cycle.arriving(fit), ()))
            return
    _ask_the_cloud(cycle, waiting, tenant, gangs)


def _within_quota(cycle: Cycle, waiting: Waiting, tenant: TenantView) -> tuple[Gang, ...]:
    """Return the readings of a request that quota allows; with none left, say why it waits."""
    capacity = frozenset(waiting.capacity)
    found, first_excess, pledged_excess = [], None, None
    used = cycle.used[waiting.tenant]
    for bundles in resolve(waiting.bundles, cycle.gpu_flavors):
        asked = total(bundles)
        over = excess(tenant, used, asked)
        if over is not None:
            first_excess = first_excess or over
        elif (pledged_over := excess(tenant, used + cycle.pledged[waiting.tenant], asked)) is not None:
            pledged_excess = pledged_excess or pledged_over
        else:
            found.append(Gang(waiting.workload_id, bundles, capacity, waiting.kind))
    if not found and pledged_excess is not None:
        cycle.wait(waiting, explanations.behind_quota(pledged_excess, cycle.pledged_for[waiting.tenant]))
    elif not found and first_excess is not None:
        cycle.wait(waiting, explanations.quota_exceeded(first_excess))
        patient = cycle.snapshot.now_ms - waiting.queued_ms >= QUOTA_PATIENCE_MS
        if patient and waiting.tenant not in cycle.quota_blocked:
            cycle.quota_blocked.add(waiting.tenant)
            cycle.pledge(waiting, total(resolve(waiting.bundles, cycle.gpu_flavors)[0]))
    return tuple(found)


def _ask_the_cloud(cycle: Cycle, waiting: Waiting, tenant: TenantView, gangs: tuple[Gang, ...]) -> None:
    """Launch nodes for it, or let it wait for capacity and say why the cloud does not help."""
    now_ms = cycle.snapshot.now_ms
    burst_ms = None if waiting.max_wait_ms is None else waiting.queued_ms + waiting.max_wait_ms
    on_reserved_only = not set(waiting.capacity) - {CapacityType.RESERVED}
    if on_reserved_only or (burst_ms is not None and now_ms < burst_ms):
        later = None if on_reserved_only else burst_ms
        _wait_for_capacity(cycle, waiting, gangs, cycle.lacking(gangs[0], burst_ms=later), cloud=False)
        return
    purchase = cycle.shop(gangs)
    if purchase is None:
        _wait_for_capacity(cycle, waiting, gangs, cycle.lacking(gangs[0]), cloud=True)
        return
    duration_ms = burst.expected_duration_ms(waiting.max_duration_ms)
    estimate = purchase.estimate(duration_ms)
    left = tenant.budget_left_usd_micros
    if left is not None and estimate > left - cycle.committed[waiting.tenant]:
        told = explanations.over_budget(estimate, left - cycle.committed[waiting.tenant], purchase.offerings)
        _wait_for_capacity(cycle, waiting, gangs, told, cloud=False)
        return
    most = waiting.max_cost_usd_micros
    if most is not None and waiting.spent_usd_micros + estimate > most:
        told = explanations.over_max_cost(estimate, waiting.spent_usd_micros, most, purchase.offerings)
        _wait_for_capacity(cycle, waiting, gangs, told, cloud=False)
        return
    cycle.launch(waiting, burst.launches(waiting.workload_id, purchase, cycle.market(), duration_ms), estimate)
    cycle.hold(waiting, purchase.gang, purchase.base)
    cycle.wait(waiting, explanations.waiting_for_node(cycle.arriving(purchase.base), purchase.offerings))


def _wait_for_capacity(
    cycle: Cycle, waiting: Waiting, gangs: tuple[Gang, ...], explanation: Explanation, *, cloud: bool
) -> None:
    """Let it wait. The first that lacks capacity, and could run once all jobs ended, holds a place for itself."""
    behind = any(cycle.fits_but_for_holds(gang) for gang in gangs)
    cycle.wait(waiting, explanations.behind_others() if behind else explanation)
    if cloud and cycle.market().cooling:
        # What was launched for it is kept while an offering that failed may soon be tried again.
        cycle.kept.update(node.node_id for node in cycle.nodes.values() if node.launched_for == waiting.workload_id)
    if cycle.reserved_for is not None:
        return
    for gang in gangs:
        if (fit := _future(cycle, gang, cloud=cloud)) is not None:
            cycle.reserved_for = waiting.workload_id
            cycle.hold(waiting, gang, fit, keep=False)
            return


def _future(cycle: Cycle, gang: Gang, *, cloud: bool) -> Fit | None:
    """Return where a gang would sit once jobs have ended, on the least used nodes that can hold it whole.

    With `cloud` the part that it would have on real nodes, beside all that may still be launched.
    """
    rooms = cycle.rooms_after_jobs(gang)
    bought = cycle.rooms_to_buy(gang) if cloud else {}
    low, high = 0, len(rooms)
    whole = place(gang, {**dict(rooms), **bought})
    if not whole.whole:
        return None
    while low < high:
        middle = (low + high) // 2
        fit = place(gang, {**dict(rooms[:middle]), **bought})
        if fit.whole:
            high, whole = middle, fit
        else:
            low = middle + 1
    real = tuple(placement for placement in whole.placements if placement.node_id in cycle.nodes)
    return Fit(real, whole.unplaced)


def _drains(cycle: Cycle) -> Iterable[Drain]:
    """Yield cloud nodes that were idle for too long and that nobody who waits is going to use."""
    snapshot = cycle.snapshot
    for node in cycle.nodes.values():
        if node.capacity_type is CapacityType.RESERVED or not node.ready or node.idle_since_ms is None:
            continue
        idle_ms = snapshot.now_ms - node.idle_since_ms
        if len(node.used) or node.node_id in cycle.kept or idle_ms < snapshot.idle_seconds * 1000:
            continue
        yield Drain(node.node_id, f"idle for {snapshot.idle_seconds} s")


def _placed(cycle: Cycle) -> dict[str, Explanation]:
    """Return the explanations with each workload's place among those that wait."""
    result: dict[str, Explanation] = {}
    ahead: dict[str, list[str]] = {}
    for position, (waiting, explanation) in enumerate(cycle.waiting, start=1):
        own = ahead.setdefault(waiting.tenant, [])
        others = position - 1 - len(own)
        result[waiting.workload_id] = explanations.placed(explanation, position, own, others)
        own.append(waiting.workload_id)
    return result
