"""Keeps reserved pools at their size, and empties everything when the platform ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.autoscaler.cooling import Cooling
from polyray.broker.snapshot import Offering
from polyray.core.clock import Clock
from polyray.core.ids import new_id
from polyray.core.lifecycle import LeaseState, NodeState
from polyray.core.spec import CapacityType
from polyray.store.engine import Store
from polyray.store.steps import created
from polyray.store.tables import Lease, Node

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Member:
    """A node of a pool that is not terminated."""

    node_id: str
    #: It is on its way out, but its place is not free before its provider says so.
    leaving: bool
    used: bool
    created_ms: int


@dataclass(frozen=True)
class Balance:
    create: int
    stop: tuple[str, ...]


def balance(count: int, members: Sequence[Member]) -> Balance:
    """Return how many nodes to create, and which to stop: unused ones first, then the newest."""
    staying = [member for member in members if not member.leaving]
    surplus = sorted(staying, key=lambda member: (member.used, -member.created_ms, member.node_id))
    return Balance(
        create=max(count - len(members), 0),
        stop=tuple(member.node_id for member in surplus[: max(len(staying) - count, 0)]),
    )


class PoolKeeper:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        offerings: Callable[[], tuple[Offering, ...]],
        cooling: Cooling,
        wake: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._offerings = offerings
        self._cooling = cooling
        self._wake = wake
        self._closed = False

    def names(self) -> list[str]:
        """Return the reserved pools that there are or should be."""
        with self._store.read() as session:
            there = session.scalars(
                select(Node.pool).where(
                    Node.capacity_type == CapacityType.RESERVED.value, Node.state != NodeState.TERMINATED.value
                )
            )
            return sorted({*there, *self._reserved()})

    def keep(self, pool: str) -> None:
        """Write intents for what a pool lacks, and ask what it has too much of to leave."""
        offering = self._reserved().get(pool)
        if self._closed or (offering is not None and self._cooling.rests(offering.name)):
            return
        now_ms, count = self._clock.now_ms(), offering.max_nodes if offering else 0
        with self._store.write() as session:
            todo = balance(count, _members(session, pool))
            new = [_reserved_node(offering, now_ms) for _ in range(todo.create)] if offering else []
            for node in new:
                created(session, node, now_ms=now_ms, reason=f"pool {pool} keeps {count}")
            for node_id in todo.stop:
                session.get_one(Node, node_id).stop_requested_ms = now_ms
        for node_id in (*(node.node_id for node in new), *todo.stop):
            log.info("pool_balanced", pool=pool, node=node_id)
            self._wake("node", node_id)

    def close(self) -> None:
        """Keep nothing any more, and ask every node to leave."""
        self._closed = True
        with self._store.write() as session:
            living = select(Node).where(Node.state != NodeState.TERMINATED.value, Node.stop_requested_ms.is_(None))
            asked = session.scalars(living).all()
            for node in asked:
                node.stop_requested_ms = self._clock.now_ms()
        for node in asked:
            self._wake("node", node.node_id)

    def _reserved(self) -> dict[str, Offering]:
        return {each.pool: each for each in self._offerings() if each.capacity_type is CapacityType.RESERVED}


def _members(session: Session, pool: str) -> list[Member]:
    reserved = Node.capacity_type == CapacityType.RESERVED.value
    rows = session.scalars(select(Node).where(Node.pool == pool, reserved, Node.state != NodeState.TERMINATED.value))
    used = set(session.scalars(select(Lease.node_id).where(Lease.state != LeaseState.RELEASED.value)))
    staying = {NodeState.INTENDED, NodeState.LAUNCHED, NodeState.READY}
    return [
        Member(
            node_id=node.node_id,
            leaving=node.stop_requested_ms is not None or NodeState(node.state) not in staying,
            used=node.node_id in used,
            created_ms=node.created_ms,
        )
        for node in rows
    ]


def _reserved_node(offering: Offering, now_ms: int) -> Node:
    return Node(
        node_id=new_id("node"),
        pool=offering.pool,
        provider=offering.provider,
        offering=offering.as_dict(),
        capacity_type=offering.capacity_type.value,
        usd_micros_per_hour=offering.usd_micros_per_hour,
        resources=offering.resources.as_dict(),
        simulated=offering.simulated,
        created_ms=now_ms,
    )
