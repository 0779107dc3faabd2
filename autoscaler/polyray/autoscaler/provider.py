"""The seam to whoever makes machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from polyray.broker.snapshot import Offering
from polyray.core.errors import Code, PolyrayError


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@dataclass(frozen=True)
class Instance:
    """A machine as its provider tells it. `intent_id` is our tag on it: the node's id."""

    instance_id: str
    intent_id: str
    offering: str
    state: InstanceState
    #: The billed interval so far, half-open, milliseconds since the epoch; `billed_to_ms` is None while it runs.
    billed_from_ms: int | None
    billed_to_ms: int | None
    detail: str = ""


class InsufficientCapacity(PolyrayError):
    """The provider has none of this offering now."""

    def __init__(self, offering: str, retry_after_seconds: int = 60) -> None:
        super().__init__(Code.INSUFFICIENT_CAPACITY, f"the provider has no {offering} now", retryable=True)
        self.offering, self.retry_after_seconds = offering, retry_after_seconds


class ProviderQuotaExceeded(PolyrayError):
    """The account's own limit at the provider."""

    def __init__(self, offering: str) -> None:
        super().__init__(
            Code.INSUFFICIENT_CAPACITY, f"the account's limit for {offering} is reached", "raise it at the provider"
        )
        self.offering = offering


class NodeNotFound(PolyrayError):
    def __init__(self, intent_id: str) -> None:
        super().__init__(Code.NOT_FOUND, f"the provider knows no node for {intent_id}")


class NodeProvider(Protocol):
    """Five verbs. Answers may lag behind the truth (eventual consistency)."""

    @property
    def name(self) -> str: ...

    def offerings(self) -> tuple[Offering, ...]: ...

    def launch(self, intent_id: str, offering: Offering) -> Instance:
        """Make a node, or return the one already made for this intent.

        Raises:
            InsufficientCapacity, ProviderQuotaExceeded, Unavailable
        """

    def terminate(self, intent_id: str) -> Instance:
        """Ask for its end and return its state; repeat until it is `terminated` or not found.

        Raises:
            NodeNotFound: if the provider knows no such node (any more): a success to the caller.
        """

    def list(self) -> tuple[Instance, ...]:
        """Return every node of ours, those that ended lately included."""
