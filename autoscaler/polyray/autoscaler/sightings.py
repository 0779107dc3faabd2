"""What providers and the core show, asked for once a second for everybody."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from polyray.autoscaler.provider import Instance, NodeProvider
from polyray.core.clock import Clock
from polyray.core.errors import PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.tenants.slices import Fabric, FabricNode

log = structlog.get_logger(__name__)

FRESH_SECONDS = 0.9


@dataclass(frozen=True)
class _Seen:
    """An answer, or None for no answer, at a moment (monotonic seconds)."""

    at: float
    instances: Mapping[str, Instance] | None = None
    nodes: Mapping[str, FabricNode] | None = None


class Sightings:
    """Answers at most a second old. Thread-safe."""

    def __init__(self, providers: Mapping[str, NodeProvider], fabric: Fabric, clock: Clock) -> None:
        self._providers = providers
        self._fabric = fabric
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        #: Who did not answer last time: an outage is told once, not every second.
        self._silent: set[str] = set()
        self._mutex = threading.Lock()

    def instances(self, provider: str) -> Mapping[str, Instance] | None:
        """Return what a provider lists by intent id; None if it does not answer, or is not configured."""
        with self._mutex:
            key = f"provider {provider}"
            if self._is_old(key):
                self._seen[key] = _Seen(self._clock.monotonic(), instances=self._list(provider))
            return self._seen[key].instances

    def core_nodes(self) -> Mapping[str, FabricNode] | None:
        """Return the core's nodes by node id; None if the core does not answer.

        Of several lives of one node the living one counts.
        """
        with self._mutex:
            if self._is_old("core"):
                self._seen["core"] = _Seen(self._clock.monotonic(), nodes=self._ask_core())
            return self._seen["core"].nodes

    def _is_old(self, key: str) -> bool:
        return key not in self._seen or self._clock.monotonic() - self._seen[key].at > FRESH_SECONDS

    def _list(self, provider: str) -> Mapping[str, Instance] | None:
        if provider not in self._providers:
            return None
        try:
            with outside("cloud.list"):
                listed = {instance.intent_id: instance for instance in self._providers[provider].list()}
        except PolyrayError as error:
            self._tell_silence(f"provider {provider}", error)
            return None
        self._silent.discard(f"provider {provider}")
        return listed

    def _ask_core(self) -> Mapping[str, FabricNode] | None:
        try:
            with outside("fabric.nodes"):
                nodes = self._fabric.nodes()
        except Unavailable as error:
            self._tell_silence("core", error)
            return None
        self._silent.discard("core")
        return {node.node_id: node for node in sorted(nodes, key=lambda node: node.alive)}

    def _tell_silence(self, who: str, error: PolyrayError) -> None:
        if who not in self._silent:
            log.warning("no_answer", who=who, error=str(error))
        self._silent.add(who)
