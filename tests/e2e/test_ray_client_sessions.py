"""Two tenants' heads on one host: a client always lands in its own cluster."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyray.fabric.lease import Lease
from polyray.tenants.sandboxes.process import ProcessSandbox
from polyray.tenants.slices import Address, Role, SliceSpec, SliceState
from support.real_core import FIRST_SLICE_PORT
from support.wait import until

pytestmark = pytest.mark.ray

CLIENTS_PER_HEAD = 2
#: Connects when told to, as all others do, and prints whose cluster it is in.
CLIENT = """
import ray, sys
print("ready", flush=True)
sys.stdin.readline()
ray.init(sys.argv[1])

@ray.remote(num_cpus=0)
def whose():
    import os
    return os.environ["POLYRAY_TENANT"]

print("in", ray.get(whose.remote(), timeout=60), flush=True)
"""


def head(tenant: str, block: int, root: Path) -> SliceSpec:
    address = Address(ip=f"127.77.8.{block + 1}", first_port=FIRST_SLICE_PORT + 100 * (block + 30))
    return SliceSpec(
        lease_id=f"lea-{tenant}",
        cluster_id=f"clu-{tenant}",
        tenant=tenant,
        tenant_uid=20001 + block,
        epoch=1,
        generation=1,
        role=Role.HEAD,
        rank=0,
        address=address,
        gcs_address=address.gcs,
        cluster_secret=secrets.token_hex(32),
        num_cpus_milli=1000,
        num_gpus=0,
        memory_bytes=2**29,
        object_store_bytes=80 * 2**20,
        dashboard=False,
        ray_client=True,
        env={"POLYRAY_TENANT": tenant},
        run_dir=str(root / tenant),
    )


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[list[SliceSpec]]:
    ray_dir = Path(f"/tmp/pr-{secrets.token_hex(3)}")
    ray_dir.mkdir(mode=0o700)
    specs = [head("red", 0, tmp_path), head("blue", 1, tmp_path)]
    leases = [
        Lease(
            spec.lease_id,
            spec.cluster_id,
            "nod-1",
            1,
            ProcessSandbox(ray_dir),
            starts_dir=ray_dir / "starts",
            concurrent_starts=2,
        )
        for spec in specs
    ]
    for lease, spec in zip(leases, specs, strict=True):
        lease.start_slice(spec)
    for lease in leases:
        until(lambda lease=lease: lease.status().state is SliceState.READY, seconds=90, what="a head")  # type: ignore[misc]
    yield specs
    for lease in leases:
        lease.end()
        assert lease.ended.wait(30)
    left = [path.name for path in ray_dir.iterdir()]
    shutil.rmtree(ray_dir)
    assert left == ["starts"]


def test_clients_that_connect_at_the_same_moment_each_land_in_their_own_cluster(
    heads: list[SliceSpec], tmp_path: Path
) -> None:
    clients = []
    for spec in heads * CLIENTS_PER_HEAD:
        token = tmp_path / f"{spec.tenant}.token"
        token.write_text(spec.cluster_secret)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
        }
        address = f"ray://{spec.address.ip}:{spec.address.client_port}"
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, address],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        clients.append((spec.tenant, process))
    for _, process in clients:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for _, process in clients:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for tenant, process in clients:
        output, _ = process.communicate(timeout=120)
        assert f"in {tenant}" in output, output[-2000:]
