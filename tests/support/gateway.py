"""A gateway in memory, and the routes of a small world for both the fake and the real one."""

from __future__ import annotations

from polyray.core.errors import Unavailable
from polyray.serving.gateway import Backend, Routes


class FakeGateway:
    """Keeps what was applied last."""

    def __init__(self) -> None:
        self.routes = Routes()
        #: While true, it is as if the gateway's process were dead.
        self.down = False

    def apply(self, routes: Routes) -> None:
        self.routes = routes
        if self.down:
            raise Unavailable("the gateway does not answer")

    def actual(self) -> frozenset[str]:
        if self.down:
            raise Unavailable("the gateway does not answer")
        return frozenset(backend.cluster_id for backend in self.routes.backends)


def session_backend(
    cluster_id: str, tenant: str, *, ip: str = "127.0.0.1", client_port: int = 0, dashboard_port: int = 9
) -> Backend:
    return Backend(
        cluster_id=cluster_id,
        tenant=tenant,
        workload_id="ses-000000000001",
        name="default",
        kind="session",
        ip=ip,
        client_port=client_port,
        dashboard_port=dashboard_port,
        serve_port=0,
        cluster_secret=f"secret-of-{cluster_id}",
    )


def service_backend(cluster_id: str, tenant: str, name: str, *, ip: str = "127.0.0.1", serve_port: int = 9) -> Backend:
    return Backend(
        cluster_id=cluster_id,
        tenant=tenant,
        workload_id="svc-000000000001",
        name=name,
        kind="service",
        ip=ip,
        client_port=0,
        dashboard_port=0,
        serve_port=serve_port,
        cluster_secret=f"secret-of-{cluster_id}",
    )
