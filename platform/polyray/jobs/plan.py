"""What to do next about one workload: pure, total, tested in microseconds.

A lost attempt goes back to the queue only once nothing of its cluster is left: two attempts of one
workload are never alive together.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyray.core.lifecycle import ClusterState, WorkloadState
from polyray.core.spec import Kind, Retry, RetryReason
from polyray.tenants.cluster_plan import Loss
from polyray.tenants.slices import DriverStatus

#: How long a driver may take to end after it was asked to.
STOP_GRACE_SECONDS = 10.0
#: Its slice kills a program after its grace; where nothing is heard of that, its cluster is ended over it.
STOP_LIMIT_SECONDS = STOP_GRACE_SECONDS + 5.0


@dataclass(frozen=True)
class Observed:
    kind: Kind
    state: WorkloadState
    stop_requested: bool
    retry: Retry
    retries: int
    #: Of its present attempt; None before the first.
    cluster: ClusterState | None
    #: The platform asked the cluster to end (a shutdown, a preemption).
    cluster_unwanted: bool = False
    #: The head's slice has ended: what its driver says may be its echo.
    head_down: bool = False
    #: The core shows no head: there is nobody to ask, and its cluster decides how long to hope.
    head_unseen: bool = False
    cluster_reason: str = ""
    loss: Loss | None = None
    #: The driver of this attempt as its head slice tells; None where there is none (yet).
    driver: DriverStatus | None = None
    #: Whether a driver of this attempt was asked for.
    driver_asked: bool = False
    #: Whether the service answers its health check.
    healthy: bool = False
    #: Since its program was first asked to end; 0 before.
    stop_asked_seconds: float = 0.0
    #: Milliseconds it ran beyond its `max_duration`; 0 or less while it may go on.
    overtime_ms: int = 0


@dataclass(frozen=True)
class StartDriver:
    """Write the run's description and start its program beside the head. Idempotent per attempt."""


@dataclass(frozen=True)
class StopDriver:
    grace_seconds: float = STOP_GRACE_SECONDS


@dataclass(frozen=True)
class Move:
    state: WorkloadState
    reason: str = ""
    exit_code: int | None = None
    #: The lost attempt counts against the retry limit.
    counts: bool = False


@dataclass(frozen=True)
class EndCluster:
    """The cluster is not wanted any more. A service's or job's end, or a stop, asks for it."""


@dataclass(frozen=True)
class Wait:
    pass


Action = StartDriver | StopDriver | Move | EndCluster | Wait

_ENDING = {ClusterState.LOST, ClusterState.STOPPING}


def plan(observed: Observed) -> tuple[Action, ...]:
    """Return the next actions."""
    match observed.state:
        case WorkloadState.QUEUED:
            return (Move(WorkloadState.STOPPED),) if observed.stop_requested else ()
        case WorkloadState.STARTING | WorkloadState.RUNNING:
            return _living(observed)
        case WorkloadState.STOPPING:
            return _stopping(observed)
        case WorkloadState.SUCCEEDED | WorkloadState.FAILED | WorkloadState.STOPPED:
            over = observed.cluster in {None, ClusterState.STOPPING, ClusterState.GONE}
            return () if over else (EndCluster(),)
    raise AssertionError(observed.state)


def _living(observed: Observed) -> tuple[Action, ...]:
    """There are six cases: work that is done, a stop, an ending cluster, an ended program, a cluster on its way, a
    ready one."""
    driver = observed.driver
    if _done(observed):
        return (Move(WorkloadState.SUCCEEDED, exit_code=0),)
    if observed.stop_requested:
        return (Move(WorkloadState.STOPPING),)
    if observed.cluster in _ENDING or (observed.cluster_unwanted and observed.cluster is not ClusterState.GONE):
        return (Wait(),)
    if driver is not None and not driver.running and observed.cluster is not ClusterState.GONE:
        return _ended(observed, driver)
    if observed.cluster is ClusterState.GONE:
        return (_after_loss(observed),)
    if observed.overtime_ms > 0:
        return (Move(WorkloadState.FAILED, "it ran for longer than its max_duration"),)
    if observed.cluster is not ClusterState.READY:
        return (Wait(),)
    if observed.kind is Kind.SESSION:
        return (Move(WorkloadState.RUNNING),) if observed.state is WorkloadState.STARTING else ()
    if driver is None:
        return (Wait(),) if observed.head_unseen else (StartDriver(),)
    runs = observed.healthy if observed.kind is Kind.SERVICE else True
    if observed.state is WorkloadState.STARTING:
        return (Move(WorkloadState.RUNNING),) if runs else (Wait(),)
    return ()


def _done(observed: Observed) -> bool:
    """Return whether a job's program ended well before it was asked to end: no stop and no loss undoes that.

    A cluster that ends kills its program with -9, which is no good exit.
    """
    driver = observed.driver
    return observed.kind is Kind.JOB and driver is not None and not driver.running and driver.exit_code == 0


def _ended(observed: Observed, driver: DriverStatus) -> tuple[Action, ...]:
    """A job's program ends it; a service's program should not have ended, so the attempt is lost.

    A failure beside a head that is down is the head's, not the program's: the cluster's loss decides.
    """
    code = driver.exit_code
    if observed.head_down:
        return (Wait(),)
    if observed.kind is Kind.JOB:
        return (Move(WorkloadState.FAILED, f"its program ended with {_told(code)}", exit_code=code),)
    if observed.state is WorkloadState.STARTING:
        told = f"its application could not be started ({_told(code)}); see 'polyray logs'"
        return (Move(WorkloadState.FAILED, told, exit_code=code),)
    return (EndCluster(),)


def _after_loss(observed: Observed) -> Move:
    """Decide what follows a cluster that ended before its work did.

    There are three cases: what the platform did costs nothing; what the retry policy covers is tried
    again while retries are left; anything else ends the workload.
    """
    loss = observed.loss or Loss.CLUSTER_LOST
    told = observed.cluster_reason or "its cluster ended"
    if loss in {Loss.GRANT_REJECTED, Loss.SHUTDOWN}:
        return Move(WorkloadState.QUEUED, told)
    covered = RetryReason(loss.value) in observed.retry.on
    lives_on = observed.kind is not Kind.JOB
    if covered and (lives_on or observed.retries < observed.retry.limit):
        return Move(WorkloadState.QUEUED, f"{told}; it is tried again", counts=True)
    why = f"its {observed.retry.limit} retries are used up" if covered else f"its retry policy does not cover {loss}"
    return Move(WorkloadState.FAILED, f"{told}; {why}")


def _stopping(observed: Observed) -> tuple[Action, ...]:
    """End the program first, with grace, then the cluster; stopped is stopped once neither runs."""
    if observed.cluster in {None, ClusterState.GONE, ClusterState.STOPPING, ClusterState.LOST}:
        return (Move(WorkloadState.STOPPED),)
    if observed.driver is not None and observed.driver.running:
        overdue = observed.stop_asked_seconds >= STOP_LIMIT_SECONDS
        return (EndCluster(),) if overdue else (StopDriver(), Wait())
    return (Move(WorkloadState.STOPPED),)


def _told(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
