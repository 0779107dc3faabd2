"""Cost reports from node and lease rows: per workload, tenant and month, reserved and cloud apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import and_, or_, select, true
from sqlalchemy.orm import Session

from polyray.core.lifecycle import NodeState
from polyray.core.money import HOUR_MS, price_of
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType
from polyray.reports.metering import (
    PLATFORM,
    LeaseInterval,
    Line,
    NodeInterval,
    Payer,
    bill,
    month_bounds,
    month_of,
)
from polyray.store.tables import Lease, Node, Workload


@dataclass(frozen=True)
class Costs:
    """Micro-dollars, and the lines they come from."""

    lines: tuple[Line, ...]

    @property
    def reserved_usd_micros(self) -> int:
        return sum(line.usd_micros for line in self.lines if line.reserved)

    @property
    def cloud_usd_micros(self) -> int:
        return sum(line.usd_micros for line in self.lines if not line.reserved)

    @property
    def usd_micros(self) -> int:
        return sum(line.usd_micros for line in self.lines)

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON values; lines that cost nothing are left out."""
        return {
            "usd_micros": self.usd_micros,
            "reserved_usd_micros": self.reserved_usd_micros,
            "cloud_usd_micros": self.cloud_usd_micros,
            "lines": [_as_dict(line) for line in self.lines if line.usd_micros],
        }


def costs_of_workload(session: Session, workload_id: str, now_ms: int) -> Costs:
    """Return what a workload cost since it was submitted, the boot and idle time of its cloud nodes included."""
    used = select(Lease.node_id).where(Lease.workload_id == workload_id)
    rows = session.scalars(select(Node).where(or_(Node.launched_for == workload_id, Node.node_id.in_(used)))).all()
    return Costs(tuple(line for line in _bill(session, rows, now_ms) if line.payer.workload_id == workload_id))


def costs_of_month(
    session: Session, month: str, now_ms: int, *, tenant: str | None = None, cloud_only: bool = False
) -> Costs:
    """Return a calendar month's costs (`2026-03`, UTC): a tenant's, or all with the platform's own.

    Raises:
        ValueError: if it is no month.
    """
    start, end = month_bounds(month)
    billed = and_(Node.billed_from_ms < end, or_(Node.billed_to_ms.is_(None), Node.billed_to_ms > start))
    kinds = Node.capacity_type != CapacityType.RESERVED.value if cloud_only else true()
    rows = session.scalars(select(Node).where(billed, kinds)).all()
    return Costs(
        tuple(
            line
            for line in _bill(session, rows, now_ms)
            if start <= line.start_ms < end and tenant in {None, line.payer.tenant}
        )
    )


def cloud_spend(session: Session, now_ms: int) -> dict[str, int]:
    """Return each tenant's cloud money of this month, what its live nodes are expected to cost yet included."""
    spent: dict[str, int] = {}
    for line in costs_of_month(session, month_of(now_ms), now_ms, cloud_only=True).lines:
        if line.payer.tenant:
            spent[line.payer.tenant] = spent.get(line.payer.tenant, 0) + line.usd_micros
    for node, workload in _living_with_owner(session):
        spent[workload.tenant] = spent.get(workload.tenant, 0) + _expected(node, now_ms)
    return spent


def spent_by_workload(session: Session, workload_id: str, now_ms: int) -> int:
    """Return a workload's cloud money, what its live nodes are expected to cost yet included."""
    expected = sum(
        _expected(node, now_ms) for node, workload in _living_with_owner(session) if workload.workload_id == workload_id
    )
    return costs_of_workload(session, workload_id, now_ms).cloud_usd_micros + expected


def _living_with_owner(session: Session) -> Iterable[tuple[Node, Workload]]:
    """Return the cloud nodes that somebody who has not ended still pays for."""
    rows = session.execute(
        select(Node, Workload)
        .join(Workload, Workload.workload_id == Node.launched_for)
        .where(Node.state != NodeState.TERMINATED.value, Node.billed_to_ms.is_(None), Workload.ended_ms.is_(None))
    )
    return [(node, workload) for node, workload in rows]


def _expected(node: Node, now_ms: int) -> int:
    """Return what of the estimate that was made at its launch it has not cost yet, in micro-dollars."""
    accrued = 0 if node.billed_from_ms is None else price_of(node.usd_micros_per_hour, node.billed_from_ms, now_ms)
    one_hour = price_of(node.usd_micros_per_hour, 0, HOUR_MS)
    return max(int((node.receipt or {}).get("estimated_usd_micros", one_hour)) - accrued, 0)


def _bill(session: Session, rows: Iterable[Node], now_ms: int) -> tuple[Line, ...]:
    nodes = [node for node in rows if node.billed_from_ms is not None]
    ids = [node.node_id for node in nodes]
    leases = session.scalars(select(Lease).where(Lease.node_id.in_(ids))).all()
    owners = {node.launched_for for node in nodes if node.launched_for is not None}
    payers = {
        workload.workload_id: Payer(workload.tenant, workload.project, workload.workload_id)
        for workload in session.scalars(select(Workload).where(Workload.workload_id.in_(owners)))
    }
    return bill(
        (_node_interval(node, payers.get(node.launched_for or "", PLATFORM), now_ms) for node in nodes),
        (
            LeaseInterval(
                lease_id=lease.lease_id,
                node_id=lease.node_id,
                payer=Payer(lease.tenant, lease.project, lease.workload_id),
                resources=Resources(lease.resources),
                start_ms=lease.granted_ms,
                end_ms=now_ms if lease.released_ms is None else lease.released_ms,
            )
            for lease in leases
        ),
    )


def _node_interval(node: Node, launched_for: Payer, now_ms: int) -> NodeInterval:
    assert node.billed_from_ms is not None
    return NodeInterval(
        node_id=node.node_id,
        pool=node.pool,
        capacity_type=CapacityType(node.capacity_type),
        usd_micros_per_hour=node.usd_micros_per_hour,
        resources=Resources(node.resources),
        start_ms=node.billed_from_ms,
        end_ms=now_ms if node.billed_to_ms is None else node.billed_to_ms,
        ready_ms=node.ready_ms,
        launched_for=launched_for,
        simulated=node.simulated,
    )


def _as_dict(line: Line) -> dict[str, object]:
    return {
        "workload_id": line.payer.workload_id or None,
        "tenant": line.payer.tenant or None,
        "project": line.payer.project or None,
        "kind": line.kind.value,
        "node_id": line.node.node_id,
        "pool": line.node.pool,
        "capacity_type": line.node.capacity_type.value,
        "simulated": line.node.simulated,
        "start_ms": line.start_ms,
        "end_ms": line.end_ms,
        "usd_micros": line.usd_micros,
    }
