"""The seam to the gateway, and the routes it is made to have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Backend:
    """One cluster behind the gateway. A port of 0 means that the class is not served there."""

    cluster_id: str
    tenant: str
    workload_id: str
    name: str
    kind: str
    ip: str
    client_port: int
    dashboard_port: int
    serve_port: int
    #: Put in place of the caller's credential.
    cluster_secret: str = field(repr=False)


@dataclass(frozen=True)
class Key:
    """An API key as the gateway needs it: hashed (SHA-256, upper-case hexadecimal), with what it opens."""

    key_hash: str
    key_id: str
    tenant: str
    #: Name of the one service it opens; empty for all of the tenant.
    service: str
    expires_ms: int


@dataclass(frozen=True)
class Routes:
    """Everything the gateway should know, whole: what is not in here must not be reachable."""

    backends: tuple[Backend, ...] = ()
    keys: tuple[Key, ...] = ()
    #: Public keys by kid, PEM.
    signing_keys: tuple[tuple[str, str], ...] = ()
    suspended_tenants: tuple[str, ...] = ()
    revoked_sids: tuple[str, ...] = ()
    #: (sid, tenant) of revoked sids: whose open streams are cut. For a sid that is not in it, everybody's are.
    sid_tenants: tuple[tuple[str, str], ...] = ()
    #: (tenant, cluster) of its default session: where a token that names no cluster goes.
    defaults: tuple[tuple[str, str], ...] = ()


class Gateway(Protocol):
    def apply(self, routes: Routes) -> None:
        """Make the gateway have exactly these routes; cut the streams of what is gone. Idempotent.

        Raises:
            Unavailable: if the gateway does not answer; the files are written all the same.
        """

    def actual(self) -> frozenset[str]:
        """Return the cluster ids that the running gateway routes to."""
