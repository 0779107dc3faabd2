"""What the broker sees, from rows. Usage is derived from lease rows that are not released."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, Text, cast, func, select
from sqlalchemy.orm import Session

from polyray.broker.fit import devices_of
from polyray.broker.snapshot import NodeView, Offering, Snapshot, TenantView
from polyray.core.lifecycle import LeaseState, NodeState
from polyray.core.resources import Resources, total
from polyray.core.spec import CapacityType, Kind
from polyray.jobs.waiting import WaitingRows
from polyray.reports.costs import cloud_spend
from polyray.store.tables import Budget, Lease, Node, Quota, Tenant, Workload

#: By name, since an index finds what a column is and not what it is not.
_HOLDING = [state.value for state in LeaseState if state is not LeaseState.RELEASED]

_LIVING = [state.value for state in NodeState if state is not NodeState.TERMINATED]

#: Nodes that take leases, or will.
_COMING = (NodeState.INTENDED.value, NodeState.LAUNCHED.value, NodeState.READY.value)


def snapshot(
    session: Session,
    waiting: WaitingRows,
    now_ms: int,
    offerings: tuple[Offering, ...],
    cooling: tuple[tuple[str, int], ...],
    idle_seconds: int,
) -> Snapshot:
    """Return the whole picture for one planning cycle."""
    leases = live_leases(session)
    living = session.scalars(select(Node).where(Node.state.in_(_LIVING)).order_by(Node.node_id)).all()
    coming = [node for node in living if is_coming(node)]
    return Snapshot(
        now_ms=now_ms,
        tenants=tenant_views(session, cloud_spend(session, now_ms)),
        nodes=node_views(session, coming, leases),
        queue=waiting.read(session, now_ms),
        offerings=offerings,
        cooling=cooling,
        idle_seconds=idle_seconds,
        leaving=_counted(node for node in living if not is_coming(node)),
    )


def is_coming(node: Node) -> bool:
    """Return whether a node takes leases, or will."""
    return node.state in _COMING and node.stop_requested_ms is None


def coming() -> ColumnElement[bool]:
    """Return the condition of being a node that takes leases, or will."""
    return Node.state.in_(_COMING) & Node.stop_requested_ms.is_(None)


def live_leases(session: Session, *of: ColumnElement[bool]) -> Sequence[Lease]:
    return session.scalars(select(Lease).where(Lease.state.in_(_HOLDING), *of)).all()


def used_by_tenants(session: Session, only: str | None = None) -> dict[str, Resources]:
    """Return what live leases hold, of each tenant or of one; like leases are counted by the database."""
    amounts = cast(Lease.resources, Text)
    rows = select(Lease.tenant, amounts, func.count()).where(Lease.state.in_(_HOLDING))
    if only is not None:
        rows = rows.where(Lease.tenant == only)
    used: dict[str, Resources] = {}
    for tenant, text, count in session.execute(rows.group_by(Lease.tenant, amounts)):
        used[tenant] = used.get(tenant, Resources()) + Resources(json.loads(text)).times(count)
    return used


def node_views(session: Session, nodes: Iterable[Node], leases: Iterable[Lease]) -> tuple[NodeView, ...]:
    """Return nodes with what `leases` hold of them."""
    by_node: dict[str, list[Lease]] = {}
    for lease in leases:
        by_node.setdefault(lease.node_id, []).append(lease)
    held = {lease.workload_id for each in by_node.values() for lease in each}
    jobs = set(
        session.scalars(
            select(Workload.workload_id).where(Workload.workload_id.in_(held), Workload.kind == Kind.JOB.value)
        )
        if held
        else ()
    )
    return tuple(_node_view(node, by_node.get(node.node_id, []), jobs) for node in nodes)


def tenant_views(session: Session, spent: Mapping[str, int]) -> tuple[TenantView, ...]:
    """Return every tenant with its quota, its use, and its budget less what it `spent` (micro-dollars)."""
    used = used_by_tenants(session)
    quotas: dict[str, list[Quota]] = {}
    for quota in session.scalars(select(Quota)):
        quotas.setdefault(quota.tenant, []).append(quota)
    budgets = {
        row.tenant: row.usd_micros_per_month - spent.get(row.tenant, 0) for row in session.scalars(select(Budget))
    }
    return tuple(
        _tenant_view(row, quotas.get(row.name, []), used.get(row.name, Resources()), budgets.get(row.name))
        for row in session.scalars(select(Tenant).order_by(Tenant.name))
    )


def tenant_view(session: Session, tenant: str) -> TenantView:
    """Return one tenant with its quota and its use; of its budget nothing."""
    quotas = session.scalars(select(Quota).where(Quota.tenant == tenant)).all()
    used = used_by_tenants(session, tenant).get(tenant, Resources())
    return _tenant_view(session.get_one(Tenant, tenant), quotas, used, None)


def _tenant_view(row: Tenant, quotas: Sequence[Quota], used: Resources, budget_left: int | None) -> TenantView:
    return TenantView(
        tenant=row.name,
        nominal=_nominal(quotas),
        borrowing_limit=_borrowing(quotas),
        used=used,
        budget_left_usd_micros=budget_left,
        suspended=row.suspended,
    )


def _node_view(node: Node, leases: Sequence[Lease], jobs: set[str]) -> NodeView:
    resources = Resources(node.resources)
    lasting = [lease for lease in leases if lease.workload_id not in jobs]
    return NodeView(
        node_id=node.node_id,
        pool=node.pool,
        capacity_type=CapacityType(node.capacity_type),
        resources=resources,
        used=total(Resources(lease.resources) for lease in leases),
        free_devices=_free_devices(resources, leases),
        ready=node.state == NodeState.READY.value and node.stop_requested_ms is None,
        offering=str(node.offering["name"]),
        launched_for=node.launched_for,
        idle_since_ms=node.idle_since_ms,
        since_ms=node.created_ms,
        lasting=total(Resources(lease.resources) for lease in lasting),
        lasting_free_devices=_free_devices(resources, lasting),
    )


def _free_devices(resources: Resources, leases: Iterable[Lease]) -> tuple[int, ...]:
    left = list(devices_of(resources))
    for lease in leases:
        for index, share in lease.devices.items():
            left[int(index)] -= int(share)
    return tuple(max(amount, 0) for amount in left)


def _nominal(quotas: Iterable[Quota]) -> Resources:
    return Resources({quota.flavor: quota.nominal for quota in quotas})


def _borrowing(quotas: Iterable[Quota]) -> Resources:
    return Resources({quota.flavor: quota.borrowing_limit for quota in quotas})


def _counted(nodes: Iterable[Node]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for node in nodes:
        name = str(node.offering["name"])
        counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts.items()))
