"""Ends machines of ours that no row knows: they cost money and nobody would ever end them."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from sqlalchemy import select

from polyray.autoscaler.provider import InstanceState, NodeNotFound, NodeProvider
from polyray.core.errors import PolyrayError
from polyray.core.faultpoints import outside
from polyray.core.lifecycle import NodeState
from polyray.store.engine import Store
from polyray.store.tables import Node

log = structlog.get_logger(__name__)


class OrphanSweep:
    def __init__(self, store: Store, providers: Mapping[str, NodeProvider]) -> None:
        self._store = store
        self._providers = providers

    def sweep(self, name: str) -> None:
        """End what a provider lists and no living row knows; one that fails does not keep the others.

        The list is asked for before the rows are read: an intent is a row before it is a machine, so
        what was launched in between cannot look like an orphan.

        Raises:
            PolyrayError: the first failure, after all were tried.
        """
        provider = self._providers[name]
        running = [each for each in provider.list() if each.state in {InstanceState.PENDING, InstanceState.RUNNING}]
        with self._store.read() as session:
            known = set(session.scalars(select(Node.node_id).where(Node.state != NodeState.TERMINATED.value)))
        failures: list[PolyrayError] = []
        for instance in running:
            if instance.intent_id in known:
                continue
            log.warning("orphan_ended", provider=name, instance=instance.instance_id, node=instance.intent_id)
            try:
                with outside("cloud.terminate"):
                    provider.terminate(instance.intent_id)
            except NodeNotFound:
                continue
            except PolyrayError as error:
                failures.append(error)
        if failures:
            raise failures[0]
