"""A whole control plane at work: a real port, the reconcilers on their threads, a core and a cloud in memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from polyray.api.app import create_app
from polyray.api.deps import Endpoints, Probe, Services
from polyray.autoscaler.offerings import offerings_of
from polyray.control.auditing import Auditor
from polyray.control.leadership import KEY, Leadership
from polyray.core.clock import SystemClock
from polyray.core.ids import new_id
from polyray.core.layout import Layout
from polyray.core.lifecycle import WorkloadState
from polyray.core.platform_file import PlatformFile
from polyray.core.reconcile import Loop
from polyray.core.settings import Settings
from polyray.core.spec import parse_workload
from polyray.identity.keys import SigningKeys
from polyray.identity.tokens import PlatformTokens
from polyray.jobs.refusals import Refusals
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from polyray.store.migrate import migrate
from polyray.store.steps import created, step
from polyray.store.tables import Cluster, Workload
from polyray.tenants.definitions import apply_definitions
from polyray.tenants.observer import Observer
from support.api import GATEWAY_URL, NamedIdentities
from support.fabric import FakeFabric
from support.gateway import FakeGateway
from support.providers import FakeProvider
from support.wait import until
from support.world import reconcilers_of

#: As in the platform's own process.
THREADS = {"cluster": 4, "workload": 4, "node": 2}
RESYNC_SECONDS = 10.0


def platform_of(nodes: int) -> dict[str, Any]:
    """Return a platform of reserved nodes of 8 cpus, with tenants vision (ada) and speech (bob)."""
    quota = {"cpu": 8 * nodes, "memory": f"{16 * nodes}GiB"}
    return {
        "tenants": {
            "vision": {"quota": quota, "members": {"ada": "admin"}},
            "speech": {"quota": quota, "members": {"bob": "admin"}},
        },
        "users": {name: {"password": f"{name}-password"} for name in ("ada", "bob")},
        "pools": {
            "rack": {
                "provider": "local",
                "capacity_type": "reserved",
                "count": nodes,
                "resources": {"cpu": 8, "memory": "16GiB"},
                "usd_per_hour": "0.40",
            }
        },
    }


@dataclass
class LivePlane:
    url: str
    services: Services
    store: Store
    fabric: FakeFabric

    def token(self, user: str) -> str:
        return self.services.tokens.exchange(f"login:{user}").token

    def queue(self, count: int, *, tenant: str = "vision", ended: bool = False, **spec: Any) -> list[str]:
        """Put so many like jobs in as the API does, all at once; `ended` ones were stopped since."""
        content = parse_workload({"kind": "job", "name": "digits", "run": "python train.py", **spec})
        stored, now_ms, ids = content.model_dump(mode="json"), self.services.clock.now_ms(), []
        with self.store.write() as session:
            for n in range(count):
                row = Workload(
                    workload_id=new_id(content.kind.value),
                    kind=content.kind.value,
                    tenant=tenant,
                    project="default",
                    name=content.name if content.kind == "job" else f"{content.name}-{n}",
                    live_name=None if content.kind == "job" else f"{content.name}-{n}",
                    submitted_by="ada",
                    spec=stored,
                    created_ms=now_ms + n,
                    queued_ms=now_ms + n,
                )
                created(session, row, now_ms=now_ms, reason="submitted")
                if ended:
                    step(session, row, WorkloadState.STOPPED, now_ms=now_ms, reason="stopped while it waited")
                    row.ended_ms = now_ms
                ids.append(row.workload_id)
        self.services.wake("broker", "cycle")
        return ids


@contextmanager
def live_plane(directory: Path, nodes: int, *, database_url: str = "") -> Iterator[LivePlane]:
    """Serve and reconcile as the platform's own process does, on a free port of loopback."""
    settings = Settings(state_dir=directory, database_url=database_url)
    clock, file = SystemClock(), PlatformFile.model_validate(platform_of(nodes))
    store = Store(settings.store_url)
    migrate(store)
    apply_definitions(store, file, now_ms=clock.now_ms())
    Path(settings.store_root).mkdir(parents=True, exist_ok=True)
    tokens = PlatformTokens(store, SigningKeys(directory / "keys", "platform", clock), NamedIdentities(file), clock)
    fabric, gateway = FakeFabric(clock), FakeGateway()
    cloud = FakeProvider(
        offerings_of(file),
        clock=clock,
        on_join=lambda node_id, offering: fabric.add_node(
            node_id, offering.resources["cpu"], 0, offering.resources["memory"]
        ),
        on_end=lambda node_id: None,
    )
    leadership, refusals = Leadership(store, clock), Refusals()
    loops: dict[str, Loop] = {}

    def wake(kind: str, key: str) -> None:
        if kind in loops:
            loops[kind].wake(key)

    def changed(cluster_id: str) -> None:
        wake("cluster", cluster_id)
        with store.read() as session:
            cluster = session.get(Cluster, cluster_id)
        if cluster is not None:
            wake("workload", cluster.workload_id)

    observer = Observer(fabric, clock, changed)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    services = Services(
        store=store,
        clock=clock,
        layout=Layout(settings.store_root),
        settings=settings,
        tokens=tokens,
        wake=wake,
        offerings=cloud.offerings,
        feasible=lambda session, tenant, spec: refusals.of(session, tenant, spec, cloud.offerings()),
        kill_worker=lambda workload_id, rank: None,
        apply_platform=lambda given: [],
        endpoints=lambda: Endpoints(url, GATEWAY_URL),
        audit=Auditor(store, Anchors(directory), clock, leadership.held),
        probes={"store": lambda: Probe(True)},
        grade=("process", "tenants must trust each other"),
    )
    for reconciler in reconcilers_of(
        store=FencedStore(store, KEY, leadership.epoch),
        fabric=fabric,
        cloud=cloud,
        gateway=gateway,
        observer=observer,
        clock=clock,
        settings=settings,
        platform=lambda: file,
        probe=lambda address: True,
        wake=wake,
    ):
        loops[reconciler.kind] = Loop(
            reconciler,
            threads=THREADS.get(reconciler.kind, 1),
            clock=clock,
            resync_seconds=RESYNC_SECONDS,
            may_run=leadership.held,
        )
    leadership.start()
    observer.start()
    for loop in loops.values():
        loop.start()
    try:
        with _serving(create_app(services), listener):
            yield LivePlane(url, services, store, fabric)
    finally:
        for loop in loops.values():
            loop.stop()
        observer.stop()
        leadership.give_up()
        store.close()


@contextmanager
def _serving(app: FastAPI, listener: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started, what="the API serves")
        yield
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
