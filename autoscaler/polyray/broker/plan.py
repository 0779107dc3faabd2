"""Who gets what: the first broker.

In turn (`turns`): tenants by what they use of their quota, within a tenant by priority and age; quota; gangs
whole or not at all; reserved before cloud. Each tenant's first gang that lacks capacity holds a place for
itself, and later ones run only on what it cannot use.

A request that waits decides for all that are alike and come right after it, until a decision changes what is
left: ten thousand like jobs cost about as much as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyray.broker import burst, explanations
from polyray.broker.cycle import Cycle
from polyray.broker.explanations import QUOTA_EXCEEDED
from polyray.broker.feasibility import feasible
from polyray.broker.fit import Fit, Gang, place, resolve
from polyray.broker.quota import excess
from polyray.broker.snapshot import Drain, Grant, Plan, Refusal, Snapshot, TenantView, Waiting
from polyray.broker.turns import in_turn
from polyray.core.explain import Explanation
from polyray.core.resources import total
from polyray.core.spec import CapacityType

#: A workload that waited so long for quota keeps later ones of its tenant from taking it piece by piece.
QUOTA_PATIENCE_MS = 600_000
#: So many different requests of a tenant are looked at in one cycle; those behind them wait for their turn.
MOST_KINDS = 500

#: What decides of a request, its tenant first, beside the state of the cycle.
Alike = tuple[str, int, object]


def plan(snapshot: Snapshot, *, grouped: bool = True) -> Plan:
    """Return what to grant, launch, drain and refuse now, and why the rest waits. Pure and deterministic.

    Without `grouped` each workload is decided by itself; the plan is the same.
    """
    cycle = Cycle(snapshot)
    #: What was told to the last of its like, and at which version.
    told: dict[Alike, tuple[int, Explanation]] = {}
    infeasible: dict[Alike, Explanation | None] = {}
    kinds: dict[str, set[Alike]] = {}
    for waiting in in_turn(snapshot.queue, snapshot.tenants):
        if waiting.not_before_ms is not None and waiting.not_before_ms > snapshot.now_ms:
            cycle.changes(waiting.not_before_ms)
            cycle.wait(waiting, explanations.paused(waiting.not_before_ms))
            continue
        alike = _alike(cycle, waiting)
        version, explanation = told.get(alike, (-1, None))
        if explanation is None or version != cycle.version or not grouped:
            looked_at = kinds.setdefault(waiting.tenant, set())
            if len(looked_at) < MOST_KINDS:
                looked_at.add(alike)
            version = cycle.version
            explanation = (
                _consider(cycle, waiting, infeasible) if alike in looked_at else explanations.far_behind(MOST_KINDS)
            )
            if explanation is None:
                continue
            told[alike] = version, explanation
        if explanation.code == QUOTA_EXCEEDED:
            _note_patience(cycle, waiting)
        cycle.wait(waiting, explanation)
    drains = tuple(_drains(cycle))
    for _, until_ms in snapshot.cooling:
        cycle.changes(until_ms)
    return Plan(
        grants=tuple(cycle.grants),
        launches=tuple(cycle.launches),
        drains=drains,
        refusals=tuple(cycle.refusals),
        waits=tuple(cycle.waiting),
        changes_ms=cycle.changes_ms,
    )


def _alike(cycle: Cycle, waiting: Waiting) -> Alike:
    owner = waiting.workload_id if cycle.owns(waiting.workload_id) else None
    cost = None if waiting.max_cost_usd_micros is None else (waiting.max_cost_usd_micros, waiting.spent_usd_micros)
    burst_ms = _burst_ms(cycle, waiting)
    rest = (waiting.capacity, waiting.kind, burst_ms, cost, waiting.max_duration_ms, _patient(cycle, waiting), owner)
    return waiting.tenant, cycle.number(waiting.bundles), rest


def _consider(cycle: Cycle, waiting: Waiting, infeasible: dict[Alike, Explanation | None]) -> Explanation | None:
    """Decide one workload; return why it waits, None if it is granted or refused.

    There are six cases, tried in this order: it may not or can never run; it is over quota; it fits now; it fits once
    nodes on their way are there; the cloud is asked; it waits for capacity.
    """
    tenant = cycle.tenants.get(waiting.tenant)
    if tenant is None or tenant.suspended:
        return explanations.suspended(waiting.tenant)
    key = (waiting.tenant, cycle.number(waiting.bundles), (frozenset(waiting.capacity), waiting.kind))
    if key not in infeasible:
        nodes, offerings = cycle.snapshot.nodes, cycle.snapshot.offerings
        infeasible[key] = feasible(waiting.bundles, waiting.capacity, tenant, nodes, offerings, kind=waiting.kind)
    if (refusal := infeasible[key]) is not None:
        cycle.refusals.append(Refusal(waiting.workload_id, refusal))
        return None
    gangs, over_quota = _within_quota(cycle, waiting, tenant)
    if over_quota is not None:
        return over_quota
    for gang in gangs:
        if (fit := cycle.fit_now(gang)) is not None:
            cycle.grant(waiting, Grant(waiting.workload_id, fit.placements))
            return None
    for gang in gangs:
        if (fit := cycle.fit_soon(gang)) is not None:
            cycle.hold(waiting, gang, fit)
            return explanations.waiting_for_node(cycle.arriving(fit), ())
    return _ask_the_cloud(cycle, waiting, tenant, gangs)


def _within_quota(cycle: Cycle, waiting: Waiting, tenant: TenantView) -> tuple[tuple[Gang, ...], Explanation | None]:
    """Return the readings of a request that quota allows; with none left, why it waits."""
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
    if found:
        return tuple(found), None
    if pledged_excess is not None:
        return (), explanations.behind_quota(pledged_excess, cycle.pledged_for[waiting.tenant])
    assert first_excess is not None, "a request has a reading"
    if _patient(cycle, waiting) and waiting.tenant not in cycle.quota_blocked:
        cycle.quota_blocked.add(waiting.tenant)
        cycle.pledge(waiting, total(resolve(waiting.bundles, cycle.gpu_flavors)[0]))
    return (), explanations.quota_exceeded(first_excess)


def _ask_the_cloud(cycle: Cycle, waiting: Waiting, tenant: TenantView, gangs: tuple[Gang, ...]) -> Explanation:
    """Launch nodes for it, or let it wait for capacity and say why the cloud does not help."""
    on_reserved_only = not set(waiting.capacity) - {CapacityType.RESERVED}
    burst_ms = _burst_ms(cycle, waiting)
    if on_reserved_only or burst_ms is not None:
        later = None if on_reserved_only else burst_ms
        if later is not None:
            cycle.changes(later)
        return _wait_for_capacity(cycle, waiting, gangs, cycle.lacking(gangs[0], burst_ms=later), cloud=False)
    purchase = cycle.shop(gangs)
    if purchase is None:
        return _wait_for_capacity(cycle, waiting, gangs, cycle.lacking(gangs[0]), cloud=True)
    duration_ms = burst.expected_duration_ms(waiting.max_duration_ms)
    estimate = purchase.estimate(duration_ms)
    left = tenant.budget_left_usd_micros
    if left is not None and estimate > left - cycle.committed[waiting.tenant]:
        told = explanations.over_budget(estimate, left - cycle.committed[waiting.tenant], purchase.offerings)
        return _wait_for_capacity(cycle, waiting, gangs, told, cloud=False)
    most = waiting.max_cost_usd_micros
    if most is not None and waiting.spent_usd_micros + estimate > most:
        told = explanations.over_max_cost(estimate, waiting.spent_usd_micros, most, purchase.offerings)
        return _wait_for_capacity(cycle, waiting, gangs, told, cloud=False)
    cycle.launch(waiting, burst.launches(waiting.workload_id, purchase, cycle.market(), duration_ms), estimate)
    cycle.hold(waiting, purchase.gang, purchase.base)
    return explanations.waiting_for_node(cycle.arriving(purchase.base), purchase.offerings)


def _wait_for_capacity(
    cycle: Cycle, waiting: Waiting, gangs: tuple[Gang, ...], explanation: Explanation, *, cloud: bool
) -> Explanation:
    """Let it wait. A tenant's first that could run once all jobs ended holds a place for itself."""
    behind = any(cycle.fits_but_for_holds(gang) for gang in gangs)
    if cloud and cycle.market().cooling:
        # What was launched for it is kept while an offering that failed may soon be tried again.
        cycle.kept.update(node.node_id for node in cycle.nodes.values() if node.launched_for == waiting.workload_id)
    if waiting.tenant not in cycle.reserving:
        for gang in gangs:
            if (fit := _future(cycle, gang, cloud=cloud)) is not None:
                cycle.reserve(waiting, gang, fit)
                break
    return explanations.behind_others() if behind else explanation


def _burst_ms(cycle: Cycle, waiting: Waiting) -> int | None:
    """Return when its `max_wait` passes and the cloud is asked; None if it has, or there is none."""
    if waiting.max_wait_ms is None or waiting.since_ms + waiting.max_wait_ms <= cycle.snapshot.now_ms:
        return None
    return waiting.since_ms + waiting.max_wait_ms


def _patient(cycle: Cycle, waiting: Waiting) -> bool:
    return cycle.snapshot.now_ms - waiting.since_ms >= QUOTA_PATIENCE_MS


def _note_patience(cycle: Cycle, waiting: Waiting) -> None:
    """Look again when the first that waits for quota has waited long for it."""
    if waiting.tenant not in cycle.quota_blocked:
        cycle.changes(waiting.since_ms + QUOTA_PATIENCE_MS)


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
        if len(node.used) or node.node_id in cycle.kept:
            continue
        end_ms = node.idle_since_ms + snapshot.idle_seconds * 1000
        if snapshot.now_ms < end_ms:
            cycle.changes(end_ms)
        else:
            yield Drain(node.node_id, f"idle for {snapshot.idle_seconds} s")
