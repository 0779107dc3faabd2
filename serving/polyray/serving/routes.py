"""What the gateway should route, read from the rows."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.lifecycle import ClusterState, WorkloadState
from polyray.core.spec import Kind
from polyray.identity.tokens import revoked_sids
from polyray.serving.gateway import Backend, Key, Routes
from polyray.store.tables import ApiKey, Cluster, Lease, PortBlock, Tenant, Workload
from polyray.tenants import ports

#: The session that a token reaches when it names no cluster.
DEFAULT_SESSION = "default"

#: What a backend needs to know: this is read every two seconds, whole rows would cost several times as much.
_COLUMNS = (
    Workload.workload_id,
    Workload.kind,
    Workload.name,
    Workload.state,
    Cluster.tenant,
    Cluster.cluster_id,
    Cluster.secret,
    PortBlock.index,
)


def desired(session: Session, *, first_port: int, signing_keys: tuple[tuple[str, str], ...], now_ms: int) -> Routes:
    """Return the routes of every cluster that serves: ready, wanted, of a workload that nobody stopped."""
    rows = session.execute(
        select(*_COLUMNS)
        .join(Cluster, Cluster.cluster_id == Workload.cluster_id)
        .join(Lease, (Lease.cluster_id == Cluster.cluster_id) & (Lease.rank == 0))
        .join(PortBlock, PortBlock.lease_id == Lease.lease_id)
        .where(Cluster.state.in_([ClusterState.READY.value, ClusterState.STARTING_WORKERS.value]))
        .where(Cluster.ready_ms.is_not(None), Cluster.stop_requested_ms.is_(None))
        .where(Workload.state.in_([WorkloadState.STARTING.value, WorkloadState.RUNNING.value]))
        .where(Workload.stop_requested_ms.is_(None), Workload.kind != Kind.JOB.value)
        .order_by(Cluster.cluster_id)
    ).all()
    backends = []
    for workload_id, kind, name, state, tenant, cluster_id, secret, block in rows:
        if kind == Kind.SERVICE and state != WorkloadState.RUNNING:
            continue
        address = ports.address_of(block, first_port)
        interactive = kind == Kind.SESSION
        backends.append(
            Backend(
                cluster_id=cluster_id,
                tenant=tenant,
                workload_id=workload_id,
                name=name,
                kind=kind,
                ip=address.ip,
                client_port=address.client_port if interactive else 0,
                dashboard_port=address.dashboard_port if interactive else 0,
                serve_port=0 if interactive else address.serve_port,
                cluster_secret=secret,
            )
        )
    revoked = revoked_sids(session, now_ms)
    return Routes(
        backends=tuple(backends),
        keys=_keys(session, now_ms),
        signing_keys=signing_keys,
        suspended_tenants=tuple(session.scalars(select(Tenant.name).where(Tenant.suspended).order_by(Tenant.name))),
        revoked_sids=tuple(sid for sid, _ in revoked),
        # Tokens of operators name no tenant, and open no streams that would have to be cut.
        sid_tenants=tuple((sid, tenant or "-") for sid, tenant in revoked),
        defaults=tuple(
            (b.tenant, b.cluster_id) for b in backends if b.kind == Kind.SESSION and b.name == DEFAULT_SESSION
        ),
    )


def _keys(session: Session, now_ms: int) -> tuple[Key, ...]:
    rows = session.scalars(
        select(ApiKey).where(ApiKey.revoked_ms.is_(None), ApiKey.expires_ms > now_ms).order_by(ApiKey.key_id)
    )
    return tuple(Key(row.key_hash, row.key_id, row.tenant, row.service or "", row.expires_ms) for row in rows)
