"""What to do next about one node: pure, total, tested in microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from polyray.autoscaler.provider import Instance, InstanceState
from polyray.core.lifecycle import NodeState

#: So long after the running core declared a node dead its leases end (T_lease).
DEAD_MS = 30_000


class Seen(StrEnum):
    """A node in the core's eyes."""

    ALIVE = "alive"
    #: Declared dead, or not among its nodes.
    DEAD = "dead"
    #: The core does not answer. That ends nothing.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Observed:
    """`_ms` is milliseconds: since the epoch where it is a moment."""

    state: NodeState
    reserved: bool
    #: For how long it has been asked for; once its provider bills it, for how long it has been billed.
    waited_ms: int
    join_limit_ms: int
    live_leases: int
    #: When it was last used; its joining, if it never was.
    used_until_ms: int | None
    idle_since_ms: int | None
    stop_requested: bool = False
    #: Who it was launched for has ended.
    unwanted: bool = False
    core: Seen = Seen.UNKNOWN
    #: The core's present id of it and its host, and what the row says of them.
    core_identity: tuple[str, str] | None = None
    row_identity: tuple[str, str] | None = None
    #: For how long the running core has called it dead.
    dead_ms: int = 0
    #: None if the provider does not list it.
    instance: Instance | None = None
    #: Whether the provider's list is known at all.
    instances_known: bool = False


@dataclass(frozen=True)
class Launch:
    """Ask the provider for it; asking twice makes one."""


@dataclass(frozen=True)
class Join:
    """It is in the core: as a new node of it, or as one that came back under a new id."""

    ray_node_id: str
    host: str


@dataclass(frozen=True)
class Move:
    state: NodeState
    reason: str = ""
    #: The offering is to blame and rests.
    offering_failed: bool = False


@dataclass(frozen=True)
class Idle:
    """It is idle since then; None while it is used."""

    since_ms: int | None


@dataclass(frozen=True)
class End:
    """Ask the provider for its end; repeated until it is gone."""


Action = Launch | Join | Move | Idle | End


def plan(observed: Observed, now_ms: int) -> tuple[Action, ...]:
    """Return the next actions."""
    match observed.state:
        case NodeState.INTENDED:
            return _intended(observed)
        case NodeState.LAUNCHED:
            return _launched(observed)
        case NodeState.READY:
            return _ready(observed, now_ms)
        case NodeState.CORDONED:
            return _cordoned(observed)
        case NodeState.LOST:
            return _lost(observed)
        case NodeState.TERMINATING:
            return (End(),)
        case NodeState.TERMINATED:
            return ()
    raise AssertionError(observed.state)


def _intended(observed: Observed) -> tuple[Action, ...]:
    if observed.stop_requested or observed.unwanted:
        return (Move(NodeState.TERMINATING, "not wanted any more"),)
    if observed.waited_ms >= observed.join_limit_ms:
        return (Move(NodeState.TERMINATING, "the provider could not be asked in time", offering_failed=True),)
    return (Launch(),)


def _launched(observed: Observed) -> tuple[Action, ...]:
    """There are five cases: it is not wanted, it joined, it ended by itself, its time is over, it boots."""
    if observed.stop_requested or observed.unwanted:
        return (Move(NodeState.TERMINATING, "not wanted any more"),)
    if observed.core is Seen.ALIVE and observed.core_identity is not None:
        return (Join(*observed.core_identity),)
    if _ended(observed):
        detail = observed.instance.detail if observed.instance else ""
        told = "it ended before it joined" + (f": {detail}" if detail else "")
        return (Move(NodeState.TERMINATING, told, offering_failed=True),)
    if observed.waited_ms >= observed.join_limit_ms:
        told = f"it did not join within {observed.join_limit_ms // 1000} s"
        # While the core does not answer nothing can join: that is not the offering's fault.
        return (Move(NodeState.TERMINATING, told, offering_failed=observed.core is not Seen.UNKNOWN),)
    return ()


def _ready(observed: Observed, now_ms: int) -> tuple[Action, ...]:
    """There are four cases: it is gone, it is asked to leave, it came back as another, its idle time changed."""
    if lost := _loss(observed):
        return (lost,)
    if observed.stop_requested:
        return (Move(NodeState.CORDONED, "asked to leave"),)
    actions: list[Action] = []
    if observed.core_identity not in {None, observed.row_identity} and observed.core is Seen.ALIVE:
        assert observed.core_identity is not None
        actions.append(Join(*observed.core_identity))
    if observed.live_leases and observed.idle_since_ms is not None:
        actions.append(Idle(None))
    elif not observed.live_leases and (observed.idle_since_ms is None or observed.idle_since_ms > now_ms):
        # A wall clock that was put back must not make it wait until it gets there again.
        actions.append(Idle(min(now_ms, now_ms if observed.used_until_ms is None else observed.used_until_ms)))
    return tuple(actions)


def _cordoned(observed: Observed) -> tuple[Action, ...]:
    if observed.live_leases == 0:
        return (Move(NodeState.TERMINATING),)
    lost = _loss(observed)
    return (lost,) if lost else ()


def _lost(observed: Observed) -> tuple[Action, ...]:
    """Once its leases have ended: a reserved node that is back is used again, any other is given up."""
    if observed.live_leases:
        return ()
    if observed.reserved and observed.core is Seen.ALIVE and not observed.stop_requested and not _ended(observed):
        return (Move(NodeState.READY),)
    return (Move(NodeState.TERMINATING),)


def _loss(observed: Observed) -> Move | None:
    """Return its loss: the core has called it dead for long enough, or the provider agrees that it is gone."""
    if observed.core is not Seen.DEAD:
        return None
    if observed.instances_known and (observed.instance is None or _ended(observed)):
        return Move(NodeState.LOST, "its machine is gone")
    if observed.dead_ms >= DEAD_MS:
        return Move(NodeState.LOST, f"the core has called it dead for {DEAD_MS // 1000} s")
    return None


def _ended(observed: Observed) -> bool:
    return observed.instance is not None and observed.instance.state is InstanceState.TERMINATED
