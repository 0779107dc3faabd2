"""The providers' lists, asked for once a second for everybody."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from polyray.autoscaler.provider import Instance, NodeProvider
from polyray.core.clock import Clock
from polyray.core.errors import Unavailable

log = structlog.get_logger(__name__)

FRESH_SECONDS = 1.0


@dataclass(frozen=True)
class _Listed:
    #: Monotonic seconds.
    at: float
    instances: Mapping[str, Instance]


class Instances:
    """`of(provider)` is what a provider lists, by intent id."""

    def __init__(self, providers: Mapping[str, NodeProvider], clock: Clock) -> None:
        self._providers = providers
        self._clock = clock
        self._listed: dict[str, _Listed] = {}
        self._mutex = threading.Lock()

    def of(self, provider: str) -> Mapping[str, Instance] | None:
        """Return the instances at most a second old; None if the provider does not answer, or is not configured."""
        with self._mutex:
            listed = self._listed.get(provider)
            if listed is None or self._clock.monotonic() - listed.at > FRESH_SECONDS:
                listed = self._ask(provider)
            return None if listed is None else listed.instances

    def _ask(self, provider: str) -> _Listed | None:
        if provider not in self._providers:
            return None
        at = self._clock.monotonic()
        try:
            instances = self._providers[provider].list()
        except Unavailable as error:
            log.warning("provider_does_not_answer", provider=provider, error=str(error))
            return None
        listed = _Listed(at, {instance.intent_id: instance for instance in instances})
        self._listed[provider] = listed
        return listed
