"""A real core on this machine for tests: head, fabric and local nodes, as `polyray up` runs them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from polyray.autoscaler.provider import InstanceState, NodeNotFound
from polyray.autoscaler.providers.local import LocalProvider
from polyray.broker.snapshot import Offering
from polyray.core.errors import PolyrayError
from polyray.core.ids import new_id
from polyray.core.resources import Resources
from polyray.core.settings import Settings, load_settings
from polyray.core.spec import CapacityType
from polyray.fabric.client import FabricClient
from polyray.fabric.core_head import core_environment, core_head_command
from polyray.tenants.slices import Address, Gang, GangState, LeaseSpec, Role, SliceSpec, SliceState, SliceStatus
from support.processes import kill_all
from support.wait import until

START_SECONDS = 90.0
#: Blocks of ports for the slices of these tests; the platform's own tests take others.
FIRST_SLICE_PORT = 24000 + 100 * (os.getpid() % 60)


def offering(name: str = "rack", **changes: object) -> Offering:
    given: dict[str, object] = {
        "name": name,
        "pool": name,
        "provider": "local",
        "instance_type": name,
        "zone": "local-a",
        "capacity_type": CapacityType.RESERVED,
        "usd_micros_per_hour": 400_000,
        "resources": Resources(cpu=4000, memory=4 * 2**30),
        "boot_seconds": 0,
        "max_nodes": 2,
        "simulated": True,
    }
    return Offering(**{**given, **changes})  # type: ignore[arg-type]


@dataclass
class RealCore:
    settings: Settings
    provider: LocalProvider
    fabric: FabricClient
    log_dir: Path
    head: subprocess.Popen[bytes] | None = None
    server: subprocess.Popen[bytes] | None = None
    _blocks: list[int] = field(default_factory=lambda: list(range(20)))

    def start_head(self) -> None:
        argv, env = core_head_command(self.settings)
        self.head = self._spawn("head", argv, env)

    def start_server(self) -> None:
        env = core_environment(self.settings, sys.executable) | {"POLYRAY_STATE_DIR": str(self.settings.state_dir)}
        self.server = self._spawn("fabric", (sys.executable, "-m", "polyray.fabric.server"), env)

    def wait_answering(self) -> None:
        until(self._answers, seconds=START_SECONDS, every=0.2, what=f"the fabric (see {self.log_dir})")

    def launch_node(self, what: Offering | None = None) -> str:
        node_id = new_id("node")
        self.provider.launch(node_id, what or offering())
        return node_id

    def wait_joined(self, *node_ids: str) -> None:
        def joined() -> bool:
            alive = {node.node_id for node in self.fabric.nodes() if node.alive}
            return set(node_ids) <= alive

        until(joined, seconds=START_SECONDS, every=0.2, what="all nodes to join")

    def gang(self, *node_ids: str, cpu_milli: int = 500) -> Gang:
        return Gang(
            cluster_id=new_id("cluster"),
            leases=tuple(
                LeaseSpec(
                    lease_id=new_id("lease"),
                    epoch=1,
                    node_id=node_id,
                    cpu_milli=cpu_milli,
                    gpu_milli=0,
                    memory_bytes=2**28,
                )
                for node_id in node_ids
            ),
        )

    def hold(self, gang: Gang) -> None:
        until(lambda: self.fabric.grant(gang).state is GangState.HELD, seconds=60, every=0.1, what="the gang")

    def release(self, cluster_id: str) -> None:
        until(lambda: self.fabric.release(cluster_id).state is GangState.ABSENT, seconds=30, what="the release")

    def head_spec(self, gang: Gang, run_dir: Path, *, generation: int = 1, **changes: object) -> SliceSpec:
        block = self._blocks.pop(0)
        address = Address(ip=f"127.77.9.{block + 1}", first_port=FIRST_SLICE_PORT + 100 * block)
        given: dict[str, object] = {
            "lease_id": gang.leases[0].lease_id,
            "cluster_id": gang.cluster_id,
            "tenant": "vision",
            "tenant_uid": 20001,
            "epoch": 1,
            "generation": generation,
            "role": Role.HEAD,
            "rank": 0,
            "address": address,
            "gcs_address": address.gcs,
            "cluster_secret": secrets.token_hex(32),
            "num_cpus_milli": 1000,
            "num_gpus": 0,
            "memory_bytes": 2**29,
            "object_store_bytes": 80 * 2**20,
            "dashboard": False,
            "ray_client": False,
            "run_dir": str(run_dir),
        }
        return SliceSpec.model_validate({**given, **changes})

    def status(self, lease_id: str) -> SliceStatus | None:
        return next((status for status in self.fabric.slices() if status.lease_id == lease_id), None)

    def wait_state(self, lease_id: str, state: SliceState, generation: int = 1) -> SliceStatus:
        def reached() -> bool:
            status = self.status(lease_id)
            return status is not None and (status.state, status.generation) == (state, generation)

        until(reached, seconds=START_SECONDS, every=0.1, what=f"slice of {lease_id} to be {state}")
        status = self.status(lease_id)
        assert status is not None
        return status

    def processes(self) -> list[psutil.Process]:
        """Return every process of this platform's slices and raylets, however it was started."""
        mark = str(self.settings.ray_dir)
        return [p for p in psutil.process_iter(["cmdline"]) if any(mark in text for text in p.info["cmdline"] or [])]

    def node_pid(self, node_id: str) -> int:
        """Return the process that stands for a node's machine."""
        record = json.loads((self.settings.state_dir / "nodes" / node_id / "process.json").read_text())
        return int(record["pid"])

    def slice_directories(self) -> list[str]:
        """Return what slices have in the file system now."""
        return sorted(
            entry.name
            for entry in self.settings.ray_dir.iterdir()
            if entry.name not in {"core", "starts"} and not entry.name.startswith("n")
        )

    def stop(self) -> None:
        for node_id in [instance.intent_id for instance in self.provider.list()]:
            until(lambda node_id=node_id: self._terminated(node_id), seconds=30, what="a node to end")  # type: ignore[misc]
        for process in (self.server, self.head):
            if process is not None:
                kill_tree(process.pid)
                process.wait()
        self.fabric.close()
        shutil.rmtree(self.settings.ray_dir, ignore_errors=True)

    def _terminated(self, node_id: str) -> bool:
        try:
            return self.provider.terminate(node_id).state is InstanceState.TERMINATED
        except NodeNotFound:
            return True

    def _answers(self) -> bool:
        try:
            self.fabric.nodes()
        except PolyrayError:
            return False
        return True

    def _spawn(self, name: str, argv: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self.log_dir / f"{name}.log", "ab") as log:
            return subprocess.Popen(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def kill_tree(pid: int) -> None:
    """Kill a process and all it started with -9."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    kill_all(tree)


@contextmanager
def real_core(state_dir: Path, offerings: tuple[Offering, ...] | None = None) -> Iterator[RealCore]:
    settings = load_settings(state_dir=state_dir)
    log_dir = state_dir / "logs"
    log_dir.mkdir(parents=True)
    offered = offerings or (offering(),)
    core = RealCore(
        settings,
        LocalProvider(settings, lambda: offered),
        FabricClient(settings.state_dir / "run" / "fabric.sock"),
        log_dir,
    )
    try:
        core.start_head()
        core.start_server()
        core.wait_answering()
        yield core
    finally:
        core.stop()
