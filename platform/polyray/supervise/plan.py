"""What the supervisor should do next, decided without doing anything.

Level-triggered: the plan follows from what is seen now, so it is the same whether a component was just
started by us, was left by a supervisor that was killed, or died a moment ago.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from polyray.supervise.processes import ProcessRef

#: A component that lived so long was well; its next failure counts as the first.
HEALTHY_SECONDS = 30.0
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
#: After so many failures in a row it is reported as failing. It is still tried, every 30 s.
FAILING_AFTER = 5


@dataclass(frozen=True)
class Component:
    """A process that the supervisor keeps. Components of lower `stop_order` end first, as long as the others live."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_order: int = 0
    #: From the request to end until it is killed.
    grace_seconds: float = 10.0
    #: Makes what the program reads at its start (a configuration, a secret). Idempotent.
    prepare: Callable[[], None] | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.argv, sorted(self.env.items())]).encode()).hexdigest()


@dataclass(frozen=True)
class Observed:
    """One component as it is. `rest` are processes of its session that outlived its leader."""

    process: ProcessRef | None = None
    command_digest: str = ""
    rest: tuple[ProcessRef, ...] = ()


@dataclass(frozen=True)
class Memory:
    """What the supervisor remembers of one component. Times are monotonic seconds."""

    failures: int = 0
    #: Not started again before.
    retry_at: float = 0.0
    started_at: float | None = None
    #: When it was asked to end.
    asked_at: float | None = None
    last_exit: str = ""

    def after_start(self, now: float) -> Memory:
        return replace(self, started_at=now, asked_at=None)

    def after_exit(self, now: float, reason: str) -> Memory:
        """Return the memory with the back-off that a failure after this life earns."""
        lived = 0.0 if self.started_at is None else now - self.started_at
        failures = 1 if lived >= HEALTHY_SECONDS else self.failures + 1
        backoff = min(FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 16), MAX_BACKOFF_SECONDS)
        return Memory(failures, now + backoff, None, None, reason)

    @property
    def failing(self) -> bool:
        return self.failures >= FAILING_AFTER


class Verb(StrEnum):
    START = "start"
    #: SIGTERM to the component.
    ASK = "ask"
    #: SIGKILL to the component and all of its session.
    KILL = "kill"
    #: SIGKILL to what outlived the component.
    SWEEP = "sweep"


@dataclass(frozen=True)
class Action:
    verb: Verb
    component: str


def plan(
    components: Sequence[Component],
    observed: Mapping[str, Observed],
    memory: Mapping[str, Memory],
    *,
    stopping: bool,
    hurried: bool = False,
    now: float,
) -> tuple[Action, ...]:
    """Return the next actions. `hurried` gives no grace (asked to stop a second time)."""
    actions = []
    turn = _stop_turn(components, observed) if stopping else None
    for component in components:
        seen, past = observed.get(component.name, Observed()), memory.get(component.name, Memory())
        kept = turn is None or component.stop_order > turn
        if kept and (seen.process is None or seen.command_digest == component.digest):
            if seen.process is None and seen.rest:
                actions.append(Action(Verb.SWEEP, component.name))
            elif seen.process is None and now >= past.retry_at and not (stopping and hurried):
                actions.append(Action(Verb.START, component.name))
        elif seen.process is not None:
            actions.extend(_end(component, past, hurried=hurried, now=now))
        elif seen.rest:
            actions.append(Action(Verb.SWEEP, component.name))
    return tuple(actions)


def all_ended(observed: Mapping[str, Observed]) -> bool:
    return all(seen.process is None and not seen.rest for seen in observed.values())


def _stop_turn(components: Sequence[Component], observed: Mapping[str, Observed]) -> int:
    """Return the lowest stop order of which something lives; all lower ones have ended and stay so."""
    alive = [c.stop_order for c in components if (s := observed.get(c.name)) and (s.process is not None or s.rest)]
    return min(alive, default=max((c.stop_order for c in components), default=0))


def _end(component: Component, past: Memory, *, hurried: bool, now: float) -> list[Action]:
    if hurried or (past.asked_at is not None and now - past.asked_at >= component.grace_seconds):
        return [Action(Verb.KILL, component.name)]
    return [] if past.asked_at is not None else [Action(Verb.ASK, component.name)]
