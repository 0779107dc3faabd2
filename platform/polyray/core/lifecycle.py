"""States and the steps allowed between them.

A state is stored, never inferred from flags. Each kind of entity has one table
`(from, to) -> reason`; a step that is not in it raises `ForbiddenStep` with the entity's story, and no
table has a step out of a terminal state. Cleaning up is the cluster's business and has states of its
own, so a failing clean-up never rewrites how a job ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class WorkloadState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class ClusterState(StrEnum):
    GRANTING = "granting"
    STARTING_HEAD = "starting_head"
    STARTING_WORKERS = "starting_workers"
    READY = "ready"
    LOST = "lost"
    STOPPING = "stopping"
    GONE = "gone"


class LeaseState(StrEnum):
    GRANTED = "granted"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASED = "released"


class NodeState(StrEnum):
    INTENDED = "intended"
    LAUNCHED = "launched"
    READY = "ready"
    CORDONED = "cordoned"
    LOST = "lost"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


State = WorkloadState | ClusterState | LeaseState | NodeState


@dataclass(frozen=True)
class TransitionTable:
    kind: str
    initial: State
    steps: Mapping[tuple[State, State], str]

    @property
    def states(self) -> frozenset[State]:
        return frozenset(type(self.initial))

    @property
    def terminal(self) -> frozenset[State]:
        """The states that nothing leaves."""
        return self.states - {start for start, _ in self.steps}

    def check(self, entity_id: str, start: State, finish: State, story: Sequence[str] = ()) -> str:
        """Return the reason of a step.

        Raises:
            ForbiddenStep: if the table does not have it.
        """
        try:
            return self.steps[start, finish]
        except KeyError:
            raise ForbiddenStep(self.kind, entity_id, start, finish, story) from None


class ForbiddenStep(RuntimeError):
    """A step that no table has: a defect of the platform, never of a user."""

    def __init__(self, kind: str, entity_id: str, start: State, finish: State, story: Sequence[str]) -> None:
        told = "".join(f"\n  {line}" for line in story)
        super().__init__(f"{kind} {entity_id}: no step from {start} to {finish}; its story:{told or ' none'}")
        self.kind, self.entity_id, self.start, self.finish = kind, entity_id, start, finish


_W, _C, _L, _N = WorkloadState, ClusterState, LeaseState, NodeState

WORKLOAD = TransitionTable(
    "workload",
    _W.QUEUED,
    {
        (_W.QUEUED, _W.STARTING): "granted",
        (_W.QUEUED, _W.STOPPED): "stopped while waiting",
        (_W.QUEUED, _W.FAILED): "can never run",
        (_W.STARTING, _W.RUNNING): "its cluster is ready and its program runs",
        (_W.STARTING, _W.QUEUED): "its grant was rejected or its cluster was lost; it waits again",
        (_W.STARTING, _W.STOPPING): "asked to stop",
        (_W.STARTING, _W.FAILED): "its cluster could not be started",
        (_W.STARTING, _W.SUCCEEDED): "its program ended well before it was seen running",
        (_W.RUNNING, _W.QUEUED): "its attempt was lost; it is tried again",
        (_W.RUNNING, _W.SUCCEEDED): "its program ended well",
        (_W.RUNNING, _W.FAILED): "its program failed, or its attempts are used up",
        (_W.RUNNING, _W.STOPPING): "asked to stop",
        (_W.STOPPING, _W.STOPPED): "stopped",
    },
)

CLUSTER = TransitionTable(
    "cluster",
    _C.GRANTING,
    {
        (_C.GRANTING, _C.STARTING_HEAD): "its leases are held in the core",
        (_C.GRANTING, _C.STOPPING): "not wanted any more, or the grant was rejected",
        (_C.STARTING_HEAD, _C.STARTING_WORKERS): "its head answers",
        (_C.STARTING_HEAD, _C.STOPPING): "not wanted any more",
        (_C.STARTING_HEAD, _C.LOST): "its head could not be started",
        (_C.STARTING_WORKERS, _C.READY): "all its slices answer",
        (_C.STARTING_WORKERS, _C.STOPPING): "not wanted any more",
        (_C.STARTING_WORKERS, _C.LOST): "a slice could not be started, or the head died",
        (_C.READY, _C.STARTING_WORKERS): "a worker slice died and is started again",
        (_C.READY, _C.STOPPING): "not wanted any more",
        (_C.READY, _C.LOST): "its head or a node died",
        (_C.LOST, _C.STOPPING): "cleaned up",
        (_C.STOPPING, _C.GONE): "nothing of it is left",
    },
)

LEASE = TransitionTable(
    "lease",
    _L.GRANTED,
    {
        (_L.GRANTED, _L.ACTIVE): "held in the core",
        (_L.GRANTED, _L.RELEASING): "not needed, or rejected by the core",
        (_L.ACTIVE, _L.RELEASING): "its cluster ends, or its node died",
        (_L.RELEASING, _L.RELEASED): "its slice is gone",
    },
)

NODE = TransitionTable(
    "node",
    _N.INTENDED,
    {
        (_N.INTENDED, _N.LAUNCHED): "the provider made it",
        (_N.INTENDED, _N.TERMINATING): "not wanted any more, or the provider refused",
        (_N.LAUNCHED, _N.READY): "it joined the core",
        (_N.LAUNCHED, _N.TERMINATING): "it did not join in time, or is not wanted any more",
        (_N.READY, _N.CORDONED): "idle, or asked to leave",
        (_N.READY, _N.LOST): "the core declared it dead",
        (_N.CORDONED, _N.READY): "wanted again",
        (_N.CORDONED, _N.LOST): "the core declared it dead",
        (_N.CORDONED, _N.TERMINATING): "drained",
        (_N.LOST, _N.READY): "it is back",
        (_N.LOST, _N.TERMINATING): "given up",
        (_N.TERMINATING, _N.TERMINATED): "the provider no longer knows it",
    },
)

TABLES: tuple[TransitionTable, ...] = (WORKLOAD, CLUSTER, LEASE, NODE)
