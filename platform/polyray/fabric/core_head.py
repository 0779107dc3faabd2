"""The core's head: where it is, and the command that starts it (again) there.

Its place is chosen once and kept in `<state>/run/core.json`, so that after a crash its nodes and lease actors
find it again: the GCS keeps its state in RocksDB, and all of the core waits 15 minutes for it.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from polyray.core.errors import Unavailable
from polyray.core.private import private_directory, secret_file
from polyray.core.settings import Settings
from polyray.tenants.cluster import check_socket_path

#: Ports of the core's own raylets: below those of slices, in blocks like theirs.
CORE_PORTS = range(20000, 23000)
PORTS_PER_NODE = 50
_WORKER_PORTS = (10, 50)
#: How long nodes and drivers wait for the head to come back, in seconds.
RECONNECT_SECONDS = 900
#: A place that is taken for longer is somebody else's.
PLACE_WAIT_SECONDS = 5.0
#: The core stores no objects to speak of; this is Ray's least, and a little more.
CORE_OBJECT_STORE_BYTES = 80 * 10**6


@dataclass(frozen=True)
class NodePlace:
    """Where one of the core's raylets listens: an own loopback address and a block of ports."""

    ip: str
    first_port: int

    @property
    def gcs_port(self) -> int:
        return self.first_port

    @property
    def gcs_address(self) -> str:
        return f"{self.ip}:{self.first_port}"

    @classmethod
    def of_block(cls, index: int) -> NodePlace:
        # Not 127.0.0.1: Ray would replace it by the machine's outside address.
        return cls(f"127.66.{index // 250}.{index % 250 + 2}", CORE_PORTS.start + index * PORTS_PER_NODE)


def core_head_command(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose or recall the head's place, make its files, and return its command line and environment."""
    private_directory(settings.state_dir)
    private_directory(settings.ray_dir)
    secret_file(core_token_path(settings))
    place = _recall_or_choose(settings.state_dir / "run" / "core.json")
    return head_command(settings, place, sys.executable), core_environment(settings, sys.executable)


def fabric_command(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line and environment of the fabric: the core's own, for it is the core's driver.

    Ray reads its token's path when it is imported, so it must be there before the process is.
    """
    secret_file(core_token_path(settings))
    ours = {name: value for name, value in os.environ.items() if name.startswith("POLYRAY_")}
    ours.pop("POLYRAY_DATABASE_URL", None)  # it may hold a password, and the store is none of the fabric's business
    state_dir = {"POLYRAY_STATE_DIR": str(settings.state_dir.absolute())}
    environment = {**core_environment(settings, sys.executable), **ours, **state_dir}
    return (sys.executable, "-m", "polyray.fabric.server"), environment


def core_place(settings: Settings) -> NodePlace:
    """Return where the head is.

    Raises:
        Unavailable: if it was never started.
    """
    try:
        return NodePlace(**json.loads((settings.state_dir / "run" / "core.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise Unavailable("the core was never started", hint="start the platform with 'polyray up'") from error


def core_token_path(settings: Settings) -> Path:
    # Absolute: it is told to processes that run elsewhere.
    return settings.state_dir.absolute() / "keys" / "core-token"


def head_command(settings: Settings, place: NodePlace, python: str) -> tuple[str, ...]:
    temp_dir = settings.ray_dir / "core"
    check_socket_path(temp_dir)
    return (
        *node_command(place, temp_dir, python),
        "--head",
        f"--port={place.gcs_port}",
        # It carries no leases: one dying process under `ray start` takes the node's others along.
        "--num-cpus=0",
        "--num-gpus=0",
        "--include-dashboard=false",
        "--no-monitor",
    )


def node_command(place: NodePlace, temp_dir: Path, python: str) -> tuple[str, ...]:
    """Return what the command lines of all the core's raylets have in common."""
    first = place.first_port
    return (
        python,
        "-m",
        "polyray.tenants.ray_start",
        "start",
        "--block",
        "--disable-usage-stats",
        f"--node-ip-address={place.ip}",
        f"--temp-dir={temp_dir}",
        f"--object-store-memory={CORE_OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        f"--object-manager-port={first + 3}",
        f"--node-manager-port={first + 4}",
        f"--dashboard-agent-listen-port={first + 5}",
        f"--dashboard-agent-grpc-port={first + 6}",
        f"--runtime-env-agent-port={first + 7}",
        f"--metrics-export-port={first + 8}",
        f"--min-worker-port={first + _WORKER_PORTS[0]}",
        f"--max-worker-port={first + _WORKER_PORTS[1] - 1}",
    )


def core_environment(settings: Settings, python: str) -> dict[str, str]:
    """Return the whole environment of the core's processes: its head, its nodes, its driver."""
    return {
        "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(settings.state_dir.absolute()),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(core_token_path(settings)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        # A tenant that fills the machine's memory must not make the core end lease actors, which hold next to none.
        "RAY_memory_monitor_refresh_ms": "0",
        # A lease actor that ends would kill its slice's keeper with -9; left alone, that one cleans up.
        "RAY_kill_child_processes_on_worker_exit": "false",
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(settings.state_dir.absolute() / "core-gcs"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_SECONDS),
    }


def free_place(taken: frozenset[int] = frozenset()) -> tuple[int, NodePlace]:
    """Return a block whose ports nobody listens on, with its index.

    Raises:
        Unavailable: if there is none.
    """
    blocks = [i for i in range(len(CORE_PORTS) // PORTS_PER_NODE) if i not in taken]
    random.shuffle(blocks)
    for index in blocks:
        place = NodePlace.of_block(index)
        if all(_free(port) for port in range(place.first_port, place.first_port + PORTS_PER_NODE)):
            return index, place
    raise Unavailable(
        f"no free block of {PORTS_PER_NODE} ports in {CORE_PORTS.start}-{CORE_PORTS.stop - 1}",
        hint="stop what listens there",
    )


def _recall_or_choose(path: Path) -> NodePlace:
    """Return where the head was, unless somebody else is there for good: what waits for it there is lost then."""
    private_directory(path.parent)
    place = _recalled(path)
    if place is None or not _becomes_free(place):
        _, place = free_place()
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(place)))
        os.replace(fresh, path)
    return place


def _recalled(path: Path) -> NodePlace | None:
    try:
        return NodePlace(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _becomes_free(place: NodePlace) -> bool:
    """Return whether the head can listen there; a predecessor's last processes have a few seconds to go.

    Ports of workers do not count: those of drivers that wait for the head are among them.
    """
    ports = range(place.first_port, place.first_port + _WORKER_PORTS[0])
    deadline = time.monotonic() + PLACE_WAIT_SECONDS
    while not all(map(_free, ports)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
