"""What to do next about one cluster: pure, total, tested in microseconds.

The life of a cluster reads as its states: hold the gang's leases in the core, start the head, start the
workers, be ready; at the end let everything go. A worker slice that dies is started again under its
lease; a dead head, lease or node ends the cluster, since Ray cannot outlive them, and its workload
decides what comes next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from polyray.core.lifecycle import ClusterState
from polyray.tenants.slices import GangState, SliceState

#: Starts in a row, none of which lasted, before the cluster is given up.
MAX_SHORT_STARTS = 5
#: A slice that lived for so long was a good one.
LASTING_MS = 600_000
#: A lease actor that an answering core does not show for so long is gone (T_lease).
MISSING_SECONDS = 30.0
#: One that the core itself says has ended does not come back; so long for its word on the node, which says more.
ENDED_SECONDS = 5.0
#: A grant is given up then, whatever the core says: one holder that never comes up must not keep the others for ever.
GRANT_SECONDS = 180.0


class Loss(StrEnum):
    """Why a cluster ended before its work did. The first two cost its workload no retry."""

    GRANT_REJECTED = "grant_rejected"
    SHUTDOWN = "shutdown"
    NODE_LOST = "node_lost"
    CLUSTER_LOST = "cluster_lost"


@dataclass(frozen=True)
class Member:
    """One lease of the cluster with what its slice was last seen to be."""

    rank: int
    #: Starts that the row has; 0 before the first.
    generation: int
    node_alive: bool
    #: Starts since a slice last lived for `LASTING_MS`, the present one included.
    short_starts: int
    #: None where the core shows no lease actor.
    seen: SliceState | None
    seen_generation: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Observed:
    state: ClusterState
    stop_requested: bool
    gang: GangState
    gang_detail: str
    #: By rank; the head first.
    members: tuple[Member, ...]
    #: For how long a lease actor has been missing from a core that answers.
    missing_seconds: float = 0.0
    #: For how long its leases have been granted.
    granted_seconds: float = 0.0
    #: Its rows come from a backup: the core has yet to show that it holds them.
    doubted: bool = False


@dataclass(frozen=True)
class HoldGang:
    """Ask the core for the leases, or how far it is."""


@dataclass(frozen=True)
class NewSlice:
    """Count a new start of this rank's slice, on fresh ports, and start it."""

    rank: int
    reason: str


@dataclass(frozen=True)
class SendSlice:
    """Start the slice that the row already counts: a start was decided, but did not arrive."""

    rank: int


@dataclass(frozen=True)
class Move:
    state: ClusterState
    reason: str = ""
    loss: Loss | None = None


@dataclass(frozen=True)
class Believe:
    """The core holds all that the rows of a restored cluster say: it goes on as if nothing had happened."""


@dataclass(frozen=True)
class ReleaseGang:
    """End slices, actors and placement group; the cluster is gone once nothing is left."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do but look again soon."""


Action = HoldGang | NewSlice | SendSlice | Move | Believe | ReleaseGang | Wait


def is_missing(state: ClusterState, member: Member) -> bool:
    """Return whether a lease's actor is gone: the core shows none, or one with nothing where a head served.

    Such an actor is a new one: a grant that was late came after the old one had ended.
    """
    served = state in {ClusterState.STARTING_WORKERS, ClusterState.READY}
    return member.seen is None or (served and member.rank == 0 and member.seen is SliceState.EMPTY)


def plan(observed: Observed) -> tuple[Action, ...]:
    """Return the next actions. The same observation gives the same actions; doing them twice does no harm."""
    state = observed.state
    if state is ClusterState.GONE:
        return ()
    if state is ClusterState.STOPPING:
        return (ReleaseGang(),)
    if state is ClusterState.LOST:
        return (Move(ClusterState.STOPPING),)
    if observed.stop_requested:
        return (Move(ClusterState.STOPPING, "not wanted any more"),)
    if loss := _loss(observed):
        return (loss,)
    if observed.doubted and observed.gang is GangState.HELD and all(m.seen is not None for m in observed.members):
        return (Believe(),)
    match state:
        case ClusterState.GRANTING:
            return _granting(observed)
        case ClusterState.STARTING_HEAD:
            return _start(observed.members[:1]) or (Move(ClusterState.STARTING_WORKERS),)
        case ClusterState.STARTING_WORKERS:
            return _start(observed.members[1:]) or (Move(ClusterState.READY),)
        case ClusterState.READY:
            dead = [m for m in observed.members[1:] if m.seen in {SliceState.EXITED, SliceState.EMPTY}]
            if dead:
                return (Move(ClusterState.STARTING_WORKERS, _told(dead[0])),)
            return (Wait(),) if any(is_missing(observed.state, m) for m in observed.members) else ()
    raise AssertionError(state)


def _granting(observed: Observed) -> tuple[Action, ...]:
    if observed.gang is GangState.HELD:
        return (Move(ClusterState.STARTING_HEAD),)
    if observed.gang is GangState.REJECTED:
        return (_rejected(f"grant rejected: {observed.gang_detail}"),)
    if observed.granted_seconds >= GRANT_SECONDS:
        told = f"the core did not hold its leases within {GRANT_SECONDS:.0f} s: {observed.gang_detail or 'no word'}"
        return (_rejected(told),)
    return (HoldGang(),)


def _rejected(reason: str) -> Move:
    return Move(ClusterState.STOPPING, reason, Loss.GRANT_REJECTED)


def _start(members: tuple[Member, ...]) -> tuple[Action, ...]:
    """Return what brings `members` to ready; nothing if all are."""
    actions: list[Action] = []
    waiting = False
    for member in members:
        if member.seen is None:
            waiting = True
        elif member.generation == 0:
            actions.append(NewSlice(member.rank, "first start"))
        elif member.seen_generation < member.generation:
            actions.append(SendSlice(member.rank))
        elif member.seen is SliceState.EXITED:
            actions.append(NewSlice(member.rank, _told(member)))
        elif member.seen is not SliceState.READY:
            waiting = True
    return tuple(actions) or ((Wait(),) if waiting else ())


def _loss(observed: Observed) -> Move | None:
    """Return the step that ends a cluster which cannot go on.

    There are five cases: a node died; the core took the gang back; it no longer shows a lease; the head
    died after it had served; a slice failed to start too often. Of a grant that the core does not hold yet
    nothing is lost but the grant.
    """
    granted, finish = observed.state is not ClusterState.GRANTING, ClusterState.LOST
    if dead := [m for m in observed.members if not m.node_alive]:
        told = f"the node of rank {dead[0].rank} was lost"
        return Move(finish, told, Loss.NODE_LOST) if granted else _rejected(told)
    if not granted:
        return None
    if observed.gang is GangState.REJECTED:
        return Move(finish, f"the core ended its leases: {observed.gang_detail}", Loss.NODE_LOST)
    # A gang that was held once and is so no more has lost a holder.
    patience = ENDED_SECONDS if observed.gang is GangState.PENDING else MISSING_SECONDS
    if any(is_missing(observed.state, m) for m in observed.members) and observed.missing_seconds >= patience:
        return Move(finish, "the core no longer holds its leases", Loss.CLUSTER_LOST)
    head = observed.members[0]
    served = observed.state is not ClusterState.STARTING_HEAD
    if served and head.seen is SliceState.EXITED:
        return Move(finish, f"its head died: {head.detail or 'no word'}", Loss.CLUSTER_LOST)
    for member in observed.members:
        exited = member.seen is SliceState.EXITED and member.seen_generation == member.generation
        if exited and member.short_starts >= MAX_SHORT_STARTS:
            told = f"rank {member.rank} could not be kept up after {member.short_starts} starts: {member.detail}"
            return Move(finish, told, Loss.CLUSTER_LOST)
    return None


def _told(member: Member) -> str:
    return f"the slice of rank {member.rank} ended ({member.detail or 'no word'}) and is started again"
