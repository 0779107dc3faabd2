"""What the routes are given, who asks, and whether they may.

Everything comes in through `Services`; nothing here or below names an implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Annotated, Any, Protocol, cast

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from polyray.broker.snapshot import Offering
from polyray.core.clock import Clock
from polyray.core.errors import Forbidden
from polyray.core.explain import Explanation
from polyray.core.layout import Layout
from polyray.core.platform_file import PlatformFile
from polyray.core.settings import Settings
from polyray.core.spec import WorkloadSpec
from polyray.identity.policy import Action, Role, allowed
from polyray.identity.tokens import PlatformTokens, Principal
from polyray.jobs.turns import Turns
from polyray.store.audit import Audit
from polyray.store.engine import Store

GIB = 2**30


@dataclass(frozen=True)
class Endpoints:
    api_url: str
    gateway_url: str


@dataclass(frozen=True)
class Probe:
    """How a part of the platform is, at this moment."""

    ok: bool
    detail: str = ""


class History(Protocol):
    """Says whether the chain of events is whole."""

    def verify(self) -> Audit:
        """Walk all of it; seconds for a million events."""

    def acknowledge(self, by: str) -> Audit:
        """Take it that somebody knows of the gaps there are."""


@dataclass(frozen=True)
class Services:
    store: Store
    clock: Clock
    layout: Layout
    settings: Settings
    tokens: PlatformTokens
    #: `wake(kind, key)`: tells a reconciler which entity to look at.
    wake: Callable[[str, str], None]
    #: What the providers can launch now.
    offerings: Callable[[], tuple[Offering, ...]]
    #: Why a workload of a tenant can never run, however long it waits; None if it can.
    feasible: Callable[[Session, str, WorkloadSpec], Explanation | None]
    #: Kills the slice of (workload, rank) as a crash would.
    kill_worker: Callable[[str, int], None]
    #: Applies the operator's file and tells what changed; idempotent.
    apply_platform: Callable[[PlatformFile], list[str]]
    endpoints: Callable[[], Endpoints]
    audit: History
    #: By component; each answers within a second. `store`, `fabric` and `gateway` decide readiness.
    probes: Mapping[str, Callable[[], Probe]]
    #: Isolation grade of the nodes, and what it means in one sentence.
    grade: tuple[str, str]
    #: The queue as the broker looks at it.
    turns: Turns = field(default_factory=Turns)
    #: The largest blob one request may send.
    max_blob_bytes: int = 10 * GIB
    #: Names beside loopback that this API answers to.
    host_names: frozenset[str] = frozenset()


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


def principal_of(request: Request) -> Principal:
    return cast(Principal, request.scope["polyray.principal"])


Given = Annotated[Services, Depends(services_of)]
Caller = Annotated[Principal, Depends(principal_of)]


def member_tenant(principal: Principal) -> str:
    """Return the tenant that the caller's token names: the only place a tenant ever comes from.

    Raises:
        Forbidden: for an operator's token without a tenant.
    """
    if principal.tenant is None:
        raise Forbidden(
            "this belongs to a tenant, and your token names none",
            hint="log in as a member of the tenant: 'polyray login --tenant TENANT'",
        )
    return principal.tenant


def _who_may(role: str, action: Action) -> str:
    """Return the way out for a role that may not do an action."""
    if role == Role.OPERATOR:
        return "log in as a member of the tenant: 'polyray login --tenant TENANT'"
    return "ask an admin of your tenant" if allowed(Role.ADMIN, action) else "ask an operator of the platform"


class _Allow:
    def __init__(self, action: Action) -> None:
        self._action = action

    def __call__(self, caller: Caller) -> None:
        if not allowed(caller.role, self._action):
            raise Forbidden(
                f"role {caller.role} may not do this ({self._action})", hint=_who_may(caller.role, self._action)
            )


def may(action: Action) -> dict[str, Any]:
    """Return what a route's decorator needs to be open to the roles that the policy table gives `action`."""
    return {"dependencies": [Depends(_Allow(action))], "openapi_extra": {"x-polyray-action": str(action)}}


def public() -> dict[str, Any]:
    """Return what marks a route that needs no credential; the gate's list of public paths must have it too."""
    return {"openapi_extra": {"x-polyray-action": "public", "security": []}}


class GuardedRoute(APIRoute):
    """A route that names its action, or does not exist: nothing is open because somebody forgot.

    What may write runs in threads of its own: however many wait for the database's one writer, reads find a thread.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        if "x-polyray-action" not in (kwargs.get("openapi_extra") or {}):
            raise TypeError(f"{path} names no action: decorate it with **may(...) or **public()")
        if not set(kwargs.get("methods") or ["GET"]) <= _READING and not iscoroutinefunction(endpoint):
            endpoint = _among_writers(endpoint)
        super().__init__(path, endpoint, **kwargs)


_READING = {"GET", "HEAD"}
WRITER_THREADS = 40
#: One for each event loop.
_writers: RunVar[CapacityLimiter] = RunVar("polyray_writers")


def _among_writers(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def call(*arguments: Any, **named: Any) -> Any:
        limiter = _writers.get(None)
        if limiter is None:
            limiter = CapacityLimiter(WRITER_THREADS)
            _writers.set(limiter)
        return await to_thread.run_sync(partial(endpoint, *arguments, **named), limiter=limiter)

    return call


def guarded_router(prefix: str, tag: str) -> APIRouter:
    return APIRouter(prefix=prefix, tags=[tag], route_class=GuardedRoute)
