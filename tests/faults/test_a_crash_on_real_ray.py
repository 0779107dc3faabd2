"""The control plane, or the core's driver, dies like kill -9 on real Ray: the job runs once, and nothing is left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from sqlalchemy import func, select

from polyray.core import faultpoints
from polyray.core.clock import SystemClock
from polyray.core.errors import PolyrayError
from polyray.core.lifecycle import ClusterState, LeaseState
from polyray.fabric.client import FabricClient
from polyray.identity.keys import SigningKeys
from polyray.identity.provider import Identity
from polyray.identity.tokens import PlatformTokens
from polyray.sdk.client import PolyrayClient
from polyray.store.engine import Store
from polyray.store.tables import Cluster, Lease, PortBlock, Workload
from polyray.supervise.local import Local
from polyray.supervise.plan import HEALTHY_SECONDS
from support.machine import Machine
from support.wait import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1500)]

PLATFORM = {
    "tenants": {
        "vision": {"quota": {"cpu": 4, "memory": "8GiB"}, "budget_usd_per_month": 20, "members": {"ada": "admin"}}
    },
    "pools": {
        "rack": {
            "provider": "local",
            "capacity_type": "reserved",
            "count": 1,
            "resources": {"cpu": 2, "memory": "4GiB"},
            "usd_per_hour": "0.40",
        },
        "cloud": {
            "provider": "local",
            "capacity_type": "on_demand",
            "resources": {"cpu": 1, "memory": "2GiB"},
            "usd_per_hour": "1.20",
            "boot_seconds": 0,
            "max_nodes": 1,
        },
    },
    "idle_seconds": 2,
}
#: Where it dies, and in which process. Neighbours differ in the process, so that each lives for a while in between.
POINTS = [
    ("server", "fabric.start_driver.after"),
    ("fabric", "core.make_actor.after"),
    ("server", "cloud.launch.after"),
    ("fabric", "core.make_group.after"),
    ("server", "store.commit.after"),
    ("server", "fabric.grant.after"),
    ("fabric", "actor.start_slice.after"),
    ("server", "fabric.start_slice.after"),
    ("server", "store.commit.before"),
    ("fabric", "actor.start_driver.after"),
    ("server", "fabric.release.after"),
    ("server", "file.run.after"),
    ("fabric", "core.remove_group.before"),
    ("server", "gateway.command.after"),
    ("server", "gateway.apply.before"),
    ("server", "api.answer.before"),
]
#: So many of them are tried in the quick tier.
QUICK = 3
#: A component that fails more often in a row is left down for longer than a test likes to wait.
MOST_FAILURES = 3


class FaultyMachine(Machine):
    """Its processes fail as a file asks them to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked = directory / "fault"
        self._env |= {faultpoints.SETTING: f"file={self.asked}"}


class Nobody:
    """No issuer: the tests' tokens are issued for a subject that is known."""

    def verify(self, token: str) -> Identity:
        raise AssertionError(token)


class Platform:
    def __init__(self, directory: Path) -> None:
        self.machine = FaultyMachine(directory)
        self.settings = self.machine.settings
        self._file = directory / "platform.yaml"
        self._file.write_text(yaml.safe_dump(PLATFORM))
        self.fabric = FabricClient(self.settings.state_dir / "run" / "fabric.sock")

    def start(self) -> None:
        started = self.machine.polyray("up", "-f", str(self._file), "--api-port", "0", "--gateway-port", "0")
        assert started.returncode == 0, started.stderr
        self.store = Store(self.settings.store_url)
        clock = SystemClock()
        keys = SigningKeys(self.settings.state_dir / "keys", "platform", clock)
        token = PlatformTokens(self.store, keys, Nobody(), clock).issue("ada", tenant="vision", role="admin").token
        self.client = PolyrayClient(self.machine.api_url, token)

    def rest(self, component: str) -> None:
        """Wait until the supervisor forgives a component its failures, if there were many."""
        told = Local(self.settings).components.get(component) or {}
        if int(told.get("failures", 0)) < MOST_FAILURES:
            return
        process = psutil.Process(self.machine.process(component).pid)
        until(lambda: time.time() - process.create_time() > HEALTHY_SECONDS + 1, seconds=60, what="it is well again")

    def submit(self, key: str, spec: Mapping[str, object]) -> str:
        """Submit a job until it is acknowledged."""
        told: list[str] = []

        def acknowledged() -> bool:
            try:
                told.append(self.client.submit("jobs", spec, idempotency_key=key)["id"])
            except PolyrayError as error:
                assert error.retryable, error
            return bool(told)

        until(acknowledged, seconds=90, every=0.5, what="the job is acknowledged")
        return told[0]

    def ended(self, job: str) -> bool:
        with self.store.read() as session:
            return session.get_one(Workload, job).ended_ms is not None

    def is_empty(self) -> bool:
        with self.store.read() as session:
            leases = session.scalar(
                select(func.count()).select_from(Lease).where(Lease.state != LeaseState.RELEASED.value)
            )
            clusters = session.scalar(
                select(func.count()).select_from(Cluster).where(Cluster.state != ClusterState.GONE.value)
            )
            blocks = session.scalar(
                select(func.count()).select_from(PortBlock).where(PortBlock.usable_again_ms.is_(None))
            )
        try:
            return (leases, clusters, blocks, self.fabric.gangs(), self.fabric.slices()) == (0, 0, 0, (), ())
        except PolyrayError:
            return False


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    one = Platform(tmp_path_factory.mktemp("machine"))
    try:
        one.start()
        yield one
    finally:
        ended = one.machine.polyray("down", "--timeout", "60")
        assert ended.returncode == 0, ended.stderr


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--faults") == "full"
    metafunc.parametrize(("component", "point"), POINTS if full else POINTS[:QUICK])


def test_a_job_during_which_a_process_dies_runs_once_and_leaves_nothing(
    platform: Platform, tmp_path: Path, component: str, point: str
) -> None:
    until(platform.machine.ready, seconds=90, what="the platform is ready")
    platform.rest(component)
    before = platform.machine.process(component)
    spec = {
        "kind": "job",
        "name": "once",
        "run": f"echo ran >> {tmp_path}/runs",
        "resources": {"cpu": 1, "memory": "1GiB"},
        "capacity": ["on_demand" if point.startswith("cloud") else "reserved"],
    }
    platform.machine.asked.write_text(f"{point}=exit")
    job = platform.submit(point, spec)
    if point.startswith("gateway.command"):
        with suppress(PolyrayError):  # whose answer may die with the server; the gateway is told of the key anyway
            platform.client.create_key("web")
    until(lambda: not platform.machine.asked.exists(), seconds=90, what=f"{component} dies at {point}")
    until(lambda: platform.machine.process(component) != before, seconds=60, what=f"{component} is started again")
    until(lambda: platform.ended(job), seconds=120, what="the job ends")
    until(platform.is_empty, seconds=60, what="nothing is left of it")
    assert platform.submit(point, spec) == job, "one key is one job"
    with platform.store.read() as session:
        row = session.get_one(Workload, job)
        assert (row.state, row.exit_code, row.attempt, row.retries) == ("succeeded", 0, 1, 0), row.state_reason
    assert (tmp_path / "runs").read_text().split() == ["ran"]
