"""Ends machines of ours that no row knows: they cost money, and nobody else would ever end or book them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from sqlalchemy import select

from polyray.autoscaler.provider import Instance, InstanceState, NodeNotFound, NodeProvider
from polyray.broker.snapshot import Offering
from polyray.core.clock import Clock
from polyray.core.errors import PolyrayError
from polyray.core.faultpoints import outside
from polyray.core.ids import is_id
from polyray.core.lifecycle import NodeState
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType
from polyray.store.engine import Store
from polyray.store.steps import created, step
from polyray.store.tables import Node

log = structlog.get_logger(__name__)

ADOPTED = "no row knew it: adopted, to be ended and booked"
_LIVING = {InstanceState.PENDING, InstanceState.RUNNING}


class OrphanSweep:
    """`adopted(node_id)` is called for each machine that got a row, so that it is looked at."""

    def __init__(
        self, store: Store, providers: Mapping[str, NodeProvider], clock: Clock, adopted: Callable[[str], None]
    ) -> None:
        self._store = store
        self._providers = providers
        self._clock = clock
        self._adopted = adopted

    def sweep(self, name: str) -> None:
        """End what a provider lists and no living row knows; one that fails does not keep the others.

        The list is asked for before the rows are read: an intent is a row before it is a machine, so
        what was launched in between cannot look like an orphan.

        Raises:
            PolyrayError: the first failure, after all were tried.
        """
        provider = self._providers[name]
        with outside("cloud.list"):
            listed = provider.list()
        with self._store.read() as session:
            query = select(Node).where(Node.node_id.in_({each.intent_id for each in listed}))
            rows = {row.node_id: row for row in session.scalars(query)}
        failures: list[PolyrayError] = []
        for instance in listed:
            row = rows.get(instance.intent_id)
            if row is not None and row.state != NodeState.TERMINATED:
                continue
            try:
                if row is None and is_id(instance.intent_id):
                    self._adopt(provider, instance)
                elif row is None or instance.state in _LIVING or not billed_as(row, instance):
                    self._end_without_row(provider, instance)
            except PolyrayError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _adopt(self, provider: NodeProvider, instance: Instance) -> None:
        """Give a machine a row, on its way out from the start: its life, and its price, is in the ledger.

        A restored database knows nothing of what was launched since, be it still there or not.
        """
        offering = next((each for each in provider.offerings() if each.name == instance.offering), None)
        reason = (
            ADOPTED if offering is not None else f"{ADOPTED}; its offering {instance.offering} has no price any more"
        )
        with self._store.write() as session:
            if session.get(Node, instance.intent_id) is not None:
                return
            now_ms = self._clock.now_ms()
            row = _row(provider.name, instance, offering or _unknown(provider.name, instance.offering), now_ms)
            created(session, row, now_ms=now_ms, reason=reason)
            step(session, row, NodeState.TERMINATING, now_ms=now_ms, reason=reason)
            if instance.state is InstanceState.TERMINATED:
                step(session, row, NodeState.TERMINATED, now_ms=now_ms, reason=reason)
        log.warning("orphan_adopted", provider=provider.name, instance=instance.instance_id, node=instance.intent_id)
        self._adopted(instance.intent_id)

    def _end_without_row(self, provider: NodeProvider, instance: Instance) -> None:
        """End what rose again after its row's end, or bears no id of ours; book what it cost where there is a row."""
        if instance.state in _LIVING:
            log.warning("orphan_ended", provider=provider.name, instance=instance.instance_id, node=instance.intent_id)
            try:
                with outside("cloud.terminate"):
                    instance = provider.terminate(instance.intent_id)
            except NodeNotFound:
                return
        with self._store.write() as session:
            if (row := session.get(Node, instance.intent_id)) is not None:
                take_bill(row, instance)


def billed_as(node: Node, instance: Instance) -> bool:
    """Return whether the row says what the provider bills."""
    return (instance.billed_from_ms in {None, node.billed_from_ms}) and (
        instance.billed_to_ms in {None, node.billed_to_ms}
    )


def take_bill(node: Node, instance: Instance) -> None:
    """Take over what the provider bills."""
    if instance.billed_from_ms is not None:
        node.billed_from_ms = instance.billed_from_ms
    if instance.billed_to_ms is not None:
        node.billed_to_ms = instance.billed_to_ms


def _row(provider: str, instance: Instance, offering: Offering, now_ms: int) -> Node:
    """Return the row of a machine that was launched for nobody whom the platform knows."""
    return Node(
        node_id=instance.intent_id,
        pool=offering.pool,
        provider=provider,
        offering=offering.as_dict(),
        capacity_type=offering.capacity_type.value,
        usd_micros_per_hour=offering.usd_micros_per_hour,
        resources=offering.resources.as_dict(),
        simulated=offering.simulated,
        instance_id=instance.instance_id[:64],
        created_ms=now_ms,
        billed_from_ms=instance.billed_from_ms,
        billed_to_ms=instance.billed_to_ms,
    )


def _unknown(provider: str, name: str) -> Offering:
    """Return an offering of which nothing is known any more, its price neither."""
    return Offering(
        name=name,
        pool=name[:40],
        provider=provider,
        instance_type="",
        zone="",
        capacity_type=CapacityType.ON_DEMAND,
        usd_micros_per_hour=0,
        resources=Resources(),
    )
