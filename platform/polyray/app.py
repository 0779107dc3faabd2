"""The control plane's process: the composition root, the only module that names every implementation.

`python -m polyray.app --state-dir DIR` serves the API, runs the reconcilers while it holds the claim to
lead, and at SIGTERM ends every cluster and node before it exits. Killed in any other way it leaves all of
them running, and its successor goes on from the rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import structlog
import uvicorn
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from polyray.api.app import create_app
from polyray.api.deps import Endpoints, Probe, Services
from polyray.autoscaler.controller import NodeController
from polyray.autoscaler.cooling import Cooling
from polyray.autoscaler.offerings import offerings_of
from polyray.autoscaler.providers.local import LocalProvider
from polyray.broker.snapshot import Offering
from polyray.control import disk
from polyray.control.auditing import Auditor
from polyray.control.definition import PlatformDefinition
from polyray.control.leadership import KEY, Leadership
from polyray.control.listening import listen, write_private
from polyray.control.retention import Retention
from polyray.control.shutdown import drain
from polyray.control.timekeeping import Timekeeper, told
from polyray.core import faultpoints
from polyray.core import log as logging
from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import OUTCOMES, PolyrayError
from polyray.core.explain import Explanation
from polyray.core.interpreter import answer_soon
from polyray.core.layout import Layout
from polyray.core.reconcile import Loop
from polyray.core.settings import Settings, load_settings
from polyray.core.spec import WorkloadSpec
from polyray.core.steady_clock import SteadyClock
from polyray.fabric.client import FabricClient
from polyray.identity.access_tokens import AccessTokenRules, BuiltInProvider
from polyray.identity.devissuer import build_issuer_router, issuer_rules
from polyray.identity.key_epoch import key_epoch_ms
from polyray.identity.keys import SigningKeys
from polyray.identity.oidc import OidcProvider
from polyray.identity.provider import IdentityProvider
from polyray.identity.tokens import PlatformTokens
from polyray.jobs.controller import WorkloadController
from polyray.jobs.refusals import Refusals
from polyray.jobs.scheduling import Scheduler
from polyray.jobs.turns import Turns
from polyray.jobs.waiting import WaitingRows
from polyray.jobs.workers import kill_worker
from polyray.serving.controller import RouteController
from polyray.serving.haproxy import HAProxyGateway, gateway_url
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from polyray.store.migrate import migrate
from polyray.store.tables import Cluster
from polyray.tenants.controller import ClusterController
from polyray.tenants.observer import Observer
from polyray.tenants.sandboxes.process import ProcessSandbox
from polyray.tenants.slices import Address

log = structlog.get_logger(__name__)

#: Threads of each reconciler: those that wait for the core most have most.
THREADS = {"cluster": 4, "workload": 4, "node": 2, "routes": 1, "broker": 1, "retention": 1}
RESYNC_SECONDS = 10.0
RETENTION_SECONDS = 300.0
ISSUER_PATH = "/issuer"


class Platform:
    """Everything the control plane is made of, put together. Nothing runs before `start`."""

    def __init__(self, settings: Settings, api_url: str) -> None:
        clock = SteadyClock(settings.state_dir / "run" / "clock.json")
        #: What others judge by their own clocks: the times in tokens.
        self.wall = wall = SystemClock()
        self.timekeeper = Timekeeper(clock)
        self.settings, self.clock, self.api_url = settings, clock, api_url
        self.store = Store(settings.store_url)
        self.store.require_sound()
        migrate(self.store)
        self.leadership = Leadership(self.store, clock)
        self.auditor = Auditor(self.store, Anchors(settings.state_dir), clock, self.leadership.held)
        self.auditor.begin()
        self.definition = PlatformDefinition(self.store, clock, settings.state_dir / "platform.json")
        self.definition.load(settings.platform_file)
        keys_dir = settings.state_dir / "keys"
        with self.store.read() as session:
            epoch_ms = key_epoch_ms(session)
        self.issuer_keys = SigningKeys(keys_dir, "issuer", epoch_ms=epoch_ms)
        self.platform_keys = SigningKeys(keys_dir, "platform", epoch_ms=epoch_ms)
        self.tokens = PlatformTokens(self.store, self.platform_keys, self._identity_provider(wall), wall)
        self.fabric = FabricClient(settings.state_dir / "run" / "fabric.sock")
        self.gateway = HAProxyGateway(settings)
        self.sandbox = ProcessSandbox(settings.ray_dir)
        #: What the reconcilers write to: a paused control plane that wakes after it was succeeded changes nothing.
        self.as_leader = FencedStore(self.store, KEY, self.leadership.epoch)
        self.cooling = Cooling(clock)
        self.waiting = WaitingRows()
        self.refusals = Refusals()
        self.draining = False
        self.observer = Observer(self.fabric, clock, self._cluster_changed)
        self._health = httpx.Client(timeout=1.0, trust_env=False, follow_redirects=False)
        self.provider = LocalProvider(settings, offerings=self.offerings, clock=clock)
        self.nodes = NodeController(
            store=self.as_leader,
            clock=clock,
            fabric=self.fabric,
            providers={"local": self.provider},
            platform=self.definition.current,
            cooling=self.cooling,
            wake=self.wake,
        )
        self.loops = self._loops()

    def _loops(self) -> dict[str, Loop]:
        scheduler = Scheduler(
            store=self.as_leader,
            clock=self.clock,
            offerings=self.offerings,
            cooling=self.cooling.offerings,
            idle_seconds=lambda: self.definition.current().idle_seconds,
            wake=self.wake,
            waiting=self.waiting,
        )
        clusters = ClusterController(
            store=self.as_leader,
            fabric=self.fabric,
            observer=self.observer,
            clock=self.clock,
            settings=self.settings,
            wake=self.wake,
        )
        workloads = WorkloadController(
            store=self.as_leader,
            fabric=self.fabric,
            observer=self.observer,
            clock=self.clock,
            settings=self.settings,
            probe=self._service_answers,
            wake=self.wake,
        )
        routes = RouteController(
            store=self.as_leader,
            gateway=self.gateway,
            clock=self.wall,
            settings=self.settings,
            signing_keys=self.platform_keys.public_pems,
        )
        retention = Retention(
            store=self.as_leader,
            layout=Layout(self.settings.store_root),
            clock=self.clock,
            wall=self.wall,
            history_days=lambda: self.definition.current().history_days,
        )
        return {
            reconciler.kind: Loop(
                reconciler,
                threads=THREADS[reconciler.kind],
                clock=self.clock,
                resync_seconds=RETENTION_SECONDS if reconciler is retention else RESYNC_SECONDS,
                may_run=self._may_schedule if reconciler is scheduler else self.leadership.held,
            )
            for reconciler in (scheduler, clusters, workloads, routes, self.nodes, retention)
        }

    def services(self) -> Services:
        """Return what the API is given."""
        notes = self.sandbox.grade_notes()
        return Services(
            store=self.store,
            clock=self.clock,
            layout=Layout(self.settings.store_root),
            settings=self.settings,
            tokens=self.tokens,
            wake=self.wake,
            turns=Turns(self.waiting),
            offerings=self.offerings,
            feasible=self._feasible,
            kill_worker=lambda workload_id, rank: kill_worker(self.store, self.fabric, workload_id, rank),
            apply_platform=self.definition.apply,
            endpoints=lambda: Endpoints(self.api_url, gateway_url(self.settings)),
            audit=self.auditor,
            probes={
                "store": self._probe_store,
                "disk": lambda: Probe(*disk.look(self.settings.state_dir)),
                "fabric": self._probe_fabric,
                "gateway": self._probe_gateway,
                "clock": lambda: Probe(*told(self.clock.behind_ms())),
                "history": self._probe_history,
            },
            grade=(self.sandbox.grade.value, " ".join(notes)),
        )

    def start(self) -> None:
        self.timekeeper.start()
        self.leadership.start()
        self.observer.start()
        self.auditor.start()
        for loop in self.loops.values():
            loop.start()

    def stop(self) -> None:
        """End every cluster and node, then the loops, then the claim."""
        self.draining = True
        nothing_lasts = False
        if self.leadership.held():
            try:
                nothing_lasts = drain(self.as_leader, self.clock, self.nodes, self.wake)
            except PolyrayError as error:
                log.warning("not_drained", error=str(error))
        for loop in self.loops.values():
            loop.stop()
        self.observer.stop()
        self.auditor.stop()
        self.leadership.give_up()
        self.timekeeper.stop(nothing_lasts=nothing_lasts)
        self.fabric.close()
        self.store.close()

    def offerings(self) -> tuple[Offering, ...]:
        return offerings_of(self.definition.current())

    def wake(self, kind: str, key: str) -> None:
        if (loop := self.loops.get(kind)) is not None:
            loop.wake(key)

    def install_issuer(self, app: FastAPI) -> None:
        """Serve the built-in issuer, unless there is an outside one."""
        if not self.settings.oidc_issuer:
            router = build_issuer_router(
                store=self.store, keys=self.issuer_keys, clock=self.wall, issuer_url=self.api_url + ISSUER_PATH
            )
            app.include_router(router, prefix=ISSUER_PATH)

    def _identity_provider(self, wall: Clock) -> IdentityProvider:
        if self.settings.oidc_issuer:
            clients = frozenset({self.settings.oidc_client_id})
            return OidcProvider(AccessTokenRules(self.settings.oidc_issuer, clients), wall)
        return BuiltInProvider(self.issuer_keys, issuer_rules(self.api_url + ISSUER_PATH), wall)

    def _may_schedule(self) -> bool:
        return self.leadership.held() and not self.draining

    def _cluster_changed(self, cluster_id: str) -> None:
        self.wake("cluster", cluster_id)
        with self.store.read() as session:
            cluster = session.get(Cluster, cluster_id)
        if cluster is not None:
            self.wake("workload", cluster.workload_id)

    def _feasible(self, session: Session, tenant: str, spec: WorkloadSpec) -> Explanation | None:
        return self.refusals.of(session, tenant, spec, self.offerings())

    def _service_answers(self, address: Address) -> bool:
        """Return whether Ray Serve says that the application is healthy. The bytes it sends are not looked at."""
        try:
            with self._health.stream("GET", f"http://{address.ip}:{address.serve_port}/-/healthz") as answer:
                return answer.status_code == 200
        except httpx.HTTPError:
            return False

    def _probe_store(self) -> Probe:
        with self.store.read() as session:
            session.execute(text("SELECT 1"))
        return Probe(True, self.store.told())

    def _probe_fabric(self) -> Probe:
        view = self.observer.view()
        alive = sum(node.alive for node in view.nodes.values())
        return Probe(True, f"{alive} nodes, {len(view.gangs)} clusters, {len(view.slices)} leases")

    def _probe_history(self) -> Probe:
        return Probe(*self.auditor.said())

    def _probe_gateway(self) -> Probe:
        return Probe(True, f"{len(self.gateway.actual())} clusters routed")


def build(settings: Settings, api_url: str) -> tuple[FastAPI, Platform]:
    """Return the application, which starts and stops the platform with itself."""
    platform = Platform(settings, api_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        platform.start()
        yield
        await run_in_threadpool(platform.stop)

    app = create_app(platform.services())
    app.router.lifespan_context = lifespan
    platform.install_issuer(app)
    return app, platform


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="polyray-server", description="The control plane's process.")
    parser.add_argument("--state-dir", type=Path, default=None)
    given = parser.parse_args(argv)
    try:
        settings = load_settings(state_dir=given.state_dir)
        logging.configure(settings.log_level, component="server")
        faultpoints.arm()
        answer_soon()
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener = listen(settings)
        api_url = f"http://{settings.host}:{listener.getsockname()[1]}"
        app, _ = build(settings, api_url)
        endpoints: dict[str, object] = {"api_url": api_url, "gateway_url": gateway_url(settings)}
        write_private(settings.state_dir / "run" / "endpoints.json", endpoints)
    except PolyrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return OUTCOMES[error.code].exit_code
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=2, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
