"""What a slice of a tenant's cluster runs: the command line of its Ray and its cleared environment. Pure.

The 100 ports of a slice, from its first: GCS +0, dashboard +1, Ray Client +2, object manager +3, node
manager +4, agent +5, agent gRPC +6, runtime env agent +7, metrics +8, Serve +9; Ray Client's servers, one
a session, +10..+29; workers +30..+99.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from polyray.core.errors import Invalid
from polyray.tenants.slices import PORTS_PER_SLICE, Address, Role, SliceSpec

CLIENT_SERVER_PORTS = (10, 30)
WORKER_PORTS = (30, PORTS_PER_SLICE)

#: Of one Ray process's output; a second such file of older lines is kept. Ray's own limit is none for workers.
RAY_LOG_BYTES = 32 * 2**20

#: Bytes in the path of a unix socket, without its final zero.
MAX_SOCKET_PATH_BYTES = 107
#: What Ray adds to its temporary directory: `/session_<date>_<time>_<micros>_<pid>/sockets/<name>`.
_RAY_SOCKET_SUFFIX_BYTES = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/dash_NodeHeadOrAlike")


@dataclass(frozen=True)
class SliceDirs:
    """A slice's private files, all within one directory of mode 0700 that goes when the slice goes."""

    root: Path

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def ray(self) -> Path:
        """Ray's temporary directory; one letter, since socket paths are short."""
        return self.root / "r"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def site(self) -> Path:
        """Put on PYTHONPATH: holds `sitecustomize.py`."""
        return self.root / "site"


def check_socket_path(ray_temp_dir: Path, *, field: str = "state_dir") -> None:
    """Refuse a Ray temporary directory in which Ray could not make its sockets.

    Raises:
        Invalid: naming the length and the limit.
    """
    length = len(os.fsencode(ray_temp_dir)) + _RAY_SOCKET_SUFFIX_BYTES
    if length > MAX_SOCKET_PATH_BYTES:
        raise Invalid(
            f"sockets under {ray_temp_dir} would have paths of {length} bytes; the limit is {MAX_SOCKET_PATH_BYTES}",
            field=field,
            hint="use a shorter directory",
        )


def ray_start_command(spec: SliceSpec, dirs: SliceDirs, python: str) -> tuple[str, ...]:
    """Return the exact command line of a slice's Ray."""
    if spec.address.ip == "127.0.0.1":
        raise Invalid(
            "Ray would replace 127.0.0.1 by the machine's outside address",
            field="address.ip",
            hint="use another loopback address, such as 127.77.0.1",
        )
    check_socket_path(dirs.ray)
    command = [python, "-m", "polyray.tenants.ray_start", "start", "--block", "--disable-usage-stats"]
    command += [
        f"--node-ip-address={spec.address.ip}",
        f"--temp-dir={dirs.ray}",
        *_port_flags(spec.address),
        f"--num-cpus={_whole_cpus(spec.num_cpus_milli)}",
        f"--num-gpus={spec.num_gpus}",
        f"--memory={spec.memory_bytes}",
        f"--object-store-memory={spec.object_store_bytes}",
    ]
    if spec.labels:
        command.append("--labels=" + ",".join(f"{key}={value}" for key, value in sorted(spec.labels.items())))
    if spec.role is Role.WORKER:
        return (*command, f"--address={spec.gcs_address}")
    command += [
        "--head",
        f"--port={spec.address.first_port}",
    ]
    if spec.ray_client:
        command.append(f"--ray-client-server-port={spec.address.client_port}")
    if spec.dashboard:
        command += [
            "--include-dashboard=true",
            f"--dashboard-host={spec.address.ip}",
            f"--dashboard-port={spec.address.dashboard_port}",
        ]
    else:
        # The monitor feeds `ray status` and Ray's own autoscaler, which no job has.
        command += ["--include-dashboard=false", "--no-monitor"]
    return tuple(command)


def slice_environment(spec: SliceSpec, dirs: SliceDirs, python: str) -> dict[str, str]:
    """Return all of a slice's environment: nothing of the core's own may leak into it."""
    mine = {
        "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(dirs.home),
        "TMPDIR": str(dirs.tmp),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": ":".join(filter(None, [str(dirs.site), spec.env.get("PYTHONPATH", "")])),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.gpu_indices)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(dirs.token),
        "RAY_USAGE_STATS_ENABLED": "0",
        # With it Ray Client's proxy forks while gRPC's threads live, and the child may die at once.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "RAY_ROTATION_MAX_BYTES": str(RAY_LOG_BYTES),
        "RAY_ROTATION_BACKUP_COUNT": "1",
    }
    return {**spec.env, **mine}


def driver_environment(spec: SliceSpec, dirs: SliceDirs, python: str, extra: dict[str, str]) -> dict[str, str]:
    """Return the environment of a driver beside this head: its own cluster is the only one it finds."""
    mine = slice_environment(spec, dirs, python)
    path = ":".join(filter(None, [mine["PYTHONPATH"], extra.get("PYTHONPATH", "")]))
    return {**extra, **mine, "PYTHONPATH": path, "RAY_ADDRESS": spec.gcs_address}


def site_customization(address: Address) -> str:
    """Return a `sitecustomize.py` that gives Ray Client's servers this cluster's own ports.

    Their range is fixed in Ray, and gRPC shares ports (SO_REUSEPORT): two heads in one network namespace
    would take the same port, and one tenant's client would land in the other's cluster.
    """
    low, high = (address.first_port + offset for offset in CLIENT_SERVER_PORTS)
    return (
        "import sys\n"
        "if 'ray.util.client.server' in sys.orig_argv:\n"
        "    from ray.util.client.server import proxier\n"
        f"    proxier.MIN_SPECIFIC_SERVER_PORT, proxier.MAX_SPECIFIC_SERVER_PORT = {low}, {high}\n"
    )


def _port_flags(address: Address) -> list[str]:
    first = address.first_port
    return [
        f"--object-manager-port={first + 3}",
        f"--node-manager-port={first + 4}",
        f"--dashboard-agent-listen-port={address.agent_port}",
        f"--dashboard-agent-grpc-port={first + 6}",
        f"--runtime-env-agent-port={first + 7}",
        f"--metrics-export-port={first + 8}",
        f"--min-worker-port={first + WORKER_PORTS[0]}",
        f"--max-worker-port={first + WORKER_PORTS[1] - 1}",
    ]


def _whole_cpus(milli: int) -> int:
    """Ray takes whole CPUs: part of one counts as one, so that something can run; 0 stays 0."""
    return 0 if milli == 0 else max(1, milli // 1000)
