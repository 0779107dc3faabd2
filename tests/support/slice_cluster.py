"""A real cluster of slices on this machine, started with the platform's own command lines, without the core."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from polyray.tenants.cluster import (
    SliceDirs,
    driver_environment,
    ray_start_command,
    site_customization,
    slice_environment,
)
from polyray.tenants.slices import PORTS_PER_SLICE, Address, Role, SliceSpec
from support.wait import until

START_SECONDS = 120


@dataclass
class SliceCluster:
    """One head and its workers. `env` is what the platform would add for a workload."""

    root: Path
    env: dict[str, str]
    head_cpus: int
    workers: int
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = _free_block(1 + self.workers)
        # Ray replaces 127.0.0.1; other loopback addresses it keeps.
        addresses = [
            Address(ip=f"127.77.200.{rank + 1}", first_port=first + rank * PORTS_PER_SLICE)
            for rank in range(1 + self.workers)
        ]
        self.specs = [self._spec(rank, address, addresses[0].gcs) for rank, address in enumerate(addresses)]

    @property
    def head(self) -> Address:
        return self.specs[0].address

    def start(self) -> None:
        for spec in self.specs:
            self._start(spec)

    def stop(self) -> None:
        """End every process that this cluster started, by pid."""
        own = [child for p in self._processes if psutil.pid_exists(p.pid) for child in _tree(p.pid)]
        for process in own:
            _kill(process)
        for popen in self._processes:
            popen.wait(timeout=30)
        psutil.wait_procs(own, timeout=30)

    def run_driver(self, *argv: str, run_dir: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a driver as the lease actor would: beside the head, in a group of its own, its output in the log."""
        log = run_dir / "logs" / "driver.log"
        log.parent.mkdir(exist_ok=True)
        environment = driver_environment(self.specs[0], self._dirs(0), sys.executable, env or {})
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *argv, str(run_dir)],
                cwd=run_dir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def processes(self) -> list[psutil.Process]:
        return [child for p in self._processes if psutil.pid_exists(p.pid) for child in _tree(p.pid)]

    def _start(self, spec: SliceSpec) -> None:
        dirs = self._dirs(spec.rank)
        for directory in (dirs.root, dirs.ray, dirs.home, dirs.tmp, dirs.site):
            directory.mkdir(mode=0o700)
        dirs.token.write_text(self.token)
        dirs.token.chmod(0o400)
        (dirs.site / "sitecustomize.py").write_text(site_customization(spec.address))
        with (dirs.root / "log").open("wb") as log:
            process = subprocess.Popen(
                ray_start_command(spec, dirs, sys.executable),
                env=slice_environment(spec, dirs, sys.executable),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

        def ready() -> bool:
            assert process.poll() is None, (dirs.root / "log").read_text()[-4000:]
            return _healthy(spec.address, self.token)

        until(ready, seconds=START_SECONDS, every=0.05, what=f"slice {spec.rank}")

    def _dirs(self, rank: int) -> SliceDirs:
        return SliceDirs(self.root / str(rank))

    def _spec(self, rank: int, address: Address, gcs_address: str) -> SliceSpec:
        return SliceSpec(
            lease_id=f"lea-{rank:012d}",
            cluster_id="clu-000000000000",
            tenant="vision",
            tenant_uid=os.getuid(),
            epoch=1,
            generation=1,
            role=Role.WORKER if rank else Role.HEAD,
            rank=rank,
            address=address,
            gcs_address=gcs_address,
            cluster_secret=self.token,
            num_cpus_milli=1000 if rank else 1000 * self.head_cpus,
            num_gpus=0,
            memory_bytes=2**30,
            object_store_bytes=80 * 2**20,
            dashboard=False,
            ray_client=False,
            env=self.env,
            run_dir=self.env["POLYRAY_RUN_DIR"],
        )


@contextmanager
def slice_cluster(env: dict[str, str], *, head_cpus: int, workers: int) -> Iterator[SliceCluster]:
    root = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))  # short: Ray's sockets lie below
    cluster = SliceCluster(root, env, head_cpus, workers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


def _healthy(address: Address, token: str) -> bool:
    request = urllib.request.Request(
        f"http://{address.ip}:{address.agent_port}/api/local_raylet_healthz",
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _free_block(slices: int) -> int:
    """Return the first of enough neighbouring ports that nobody listens on."""
    for first in range(20_000, 22_900, PORTS_PER_SLICE):
        if all(_free(port) for port in range(first, first + slices * PORTS_PER_SLICE)):
            return first
    raise AssertionError("no free block of ports")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass
