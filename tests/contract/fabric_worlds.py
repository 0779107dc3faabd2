"""The same small world on the core in memory and on the real one."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from polyray.core.ids import new_id
from polyray.tenants.slices import Address, DriverSpec, Fabric, Gang, LeaseSpec, Role, SliceSpec
from support.fabric import FakeFabric
from support.real_core import RealCore, kill_tree, real_core


class World(Protocol):
    fabric: Fabric
    run_dir: Path

    def node(self) -> str:
        """Return a node that is alive."""

    def lose_node(self) -> str:
        """Return a node that takes leases now and will die when `lose` is called."""

    def lose(self, node_id: str) -> None: ...

    def end_driver(self, lease_id: str, exit_code: int) -> None:
        """Let a driver that was started by `driver` end."""

    def head_spec(self, gang: Gang, *, generation: int = 1) -> SliceSpec: ...


def gang(*node_ids: str, cpu_milli: int = 500) -> Gang:
    return Gang(
        cluster_id=new_id("cluster"),
        leases=tuple(
            LeaseSpec(
                lease_id=new_id("lease"), epoch=1, node_id=node, cpu_milli=cpu_milli, gpu_milli=0, memory_bytes=2**28
            )
            for node in node_ids
        ),
    )


def driver(world: World, driver_id: str = "job-1.1") -> DriverSpec:
    """Return a driver that waits for the file `end` in the run directory and exits with the code in it."""
    program = (
        "import pathlib, time\n"
        "end = pathlib.Path('end')\n"
        "while not (end.exists() and end.read_text()): time.sleep(0.02)\n"
        "raise SystemExit(int(end.read_text()))\n"
    )
    return DriverSpec(
        driver_id=driver_id,
        argv=(sys.executable, "-S", "-c", program),
        cwd=str(world.run_dir),
        log_path=str(world.run_dir / "logs" / "driver.log"),
    )


class FakeWorld:
    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.fake = FakeFabric()
        self.fabric: Fabric = self.fake
        self.fake.add_node("nod-1")

    def node(self) -> str:
        return "nod-1"

    def lose_node(self) -> str:
        self.fake.add_node("nod-2")
        return "nod-2"

    def lose(self, node_id: str) -> None:
        self.fake.lose_node(node_id)

    def end_driver(self, lease_id: str, exit_code: int) -> None:
        self.fake.end_driver(lease_id, exit_code)

    def head_spec(self, gang: Gang, *, generation: int = 1) -> SliceSpec:
        address = Address(ip="127.77.0.1", first_port=24000)
        return SliceSpec(
            lease_id=gang.leases[0].lease_id,
            cluster_id=gang.cluster_id,
            tenant="vision",
            tenant_uid=20001,
            epoch=gang.leases[0].epoch,
            generation=generation,
            role=Role.HEAD,
            rank=0,
            address=address,
            gcs_address=address.gcs,
            cluster_secret=secrets.token_hex(16),
            num_cpus_milli=1000,
            num_gpus=0,
            memory_bytes=2**29,
            object_store_bytes=2**27,
            dashboard=False,
            ray_client=False,
            run_dir=str(self.run_dir),
        )


class RealWorld:
    def __init__(self, core: RealCore, run_dir: Path) -> None:
        self.core, self.run_dir = core, run_dir
        self.fabric: Fabric = core.fabric
        self._node = core.launch_node()
        core.wait_joined(self._node)

    def node(self) -> str:
        return self._node

    def lose_node(self) -> str:
        node_id = self.core.launch_node()
        self.core.wait_joined(node_id)
        return node_id

    def lose(self, node_id: str) -> None:
        kill_tree(self.core.node_pid(node_id))

    def end_driver(self, lease_id: str, exit_code: int) -> None:
        (self.run_dir / "end").write_text(str(exit_code))

    def head_spec(self, gang: Gang, *, generation: int = 1) -> SliceSpec:
        return self.core.head_spec(gang, self.run_dir, generation=generation)


@contextmanager
def fake_world(directory: Path) -> Iterator[World]:
    yield FakeWorld(directory)


@contextmanager
def real_world(directory: Path) -> Iterator[World]:
    with real_core(directory / "s") as core:
        yield RealWorld(core, directory)
