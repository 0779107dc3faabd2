"""What a slice runs, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.tenants.cluster import (
    CLIENT_SERVER_PORTS,
    WORKER_PORTS,
    SliceDirs,
    driver_environment,
    ray_start_command,
    site_customization,
    slice_environment,
)
from polyray.tenants.slices import Address, Role, SliceSpec

DIRS = SliceDirs(Path("/tmp/pr-0a1b2c/0123456789"))
SECRET = "f00d" * 16
PYTHON = "/opt/polyray/bin/python"


def spec(**changes: object) -> SliceSpec:
    given: dict[str, object] = {
        "lease_id": "lea-000000000001",
        "cluster_id": "clu-000000000001",
        "tenant": "vision",
        "tenant_uid": 20001,
        "epoch": 1,
        "generation": 1,
        "role": Role.HEAD,
        "rank": 0,
        "address": Address(ip="127.77.0.1", first_port=24100),
        "gcs_address": "127.77.0.1:24100",
        "cluster_secret": SECRET,
        "num_cpus_milli": 2000,
        "num_gpus": 0,
        "memory_bytes": 2**30,
        "object_store_bytes": 2**28,
        "dashboard": False,
        "ray_client": False,
        "run_dir": "/srv/run",
    }
    return SliceSpec.model_validate({**given, **changes})


def test_a_jobs_head_is_started_to_the_letter() -> None:
    assert ray_start_command(spec(), DIRS, PYTHON) == (
        PYTHON,
        "-m",
        "polyray.tenants.ray_start",
        "start",
        "--block",
        "--disable-usage-stats",
        "--node-ip-address=127.77.0.1",
        "--temp-dir=/tmp/pr-0a1b2c/0123456789/r",
        "--object-manager-port=24103",
        "--node-manager-port=24104",
        "--dashboard-agent-listen-port=24105",
        "--dashboard-agent-grpc-port=24106",
        "--runtime-env-agent-port=24107",
        "--metrics-export-port=24108",
        "--min-worker-port=24130",
        "--max-worker-port=24199",
        "--num-cpus=2",
        "--num-gpus=0",
        "--memory=1073741824",
        "--object-store-memory=268435456",
        "--head",
        "--port=24100",
        "--include-dashboard=false",
        "--no-monitor",
    )


def test_a_sessions_head_has_the_dashboard_and_ray_client() -> None:
    command = ray_start_command(spec(dashboard=True, ray_client=True), DIRS, PYTHON)
    assert {
        "--include-dashboard=true",
        "--dashboard-host=127.77.0.1",
        "--dashboard-port=24101",
        "--ray-client-server-port=24102",
    } <= set(command)
    assert "--no-monitor" not in command


def test_a_worker_joins_its_head_and_gets_no_flag_of_a_head() -> None:
    command = ray_start_command(
        spec(role=Role.WORKER, rank=1, address=Address(ip="127.77.0.2", first_port=24200), dashboard=True),
        DIRS,
        PYTHON,
    )
    assert "--address=127.77.0.1:24100" in command
    assert not [
        flag for flag in command if flag.startswith(("--head", "--port=", "--include-dashboard", "--dashboard-p"))
    ]


def test_no_port_of_a_slice_is_used_twice_and_none_lies_outside_its_block() -> None:
    command = ray_start_command(spec(dashboard=True, ray_client=True), DIRS, PYTHON)
    ports = [int(flag.partition("=")[2]) for flag in command if "port=" in flag and "worker-port" not in flag]
    ports.append(spec().address.serve_port)
    ranges = [range(24100 + low, 24100 + high) for low, high in (CLIENT_SERVER_PORTS, WORKER_PORTS)]
    used = ports + [port for each in ranges for port in each]
    assert len(used) == len(set(used))
    assert all(24100 <= port < 24200 for port in used)


@pytest.mark.parametrize(("milli", "shown"), [(0, 0), (100, 1), (1000, 1), (2500, 2)])
def test_a_slice_tells_its_ray_whole_cpus(milli: int, shown: int) -> None:
    assert f"--num-cpus={shown}" in ray_start_command(spec(num_cpus_milli=milli), DIRS, PYTHON)


def test_labels_are_told_in_a_stable_order() -> None:
    assert "--labels=a=1,b=2" in ray_start_command(spec(labels={"b": "2", "a": "1"}), DIRS, PYTHON)


def test_the_address_that_ray_would_replace_is_refused() -> None:
    with pytest.raises(Invalid, match=r"address\.ip.*outside address"):
        ray_start_command(spec(address=Address(ip="127.0.0.1", first_port=24100)), DIRS, PYTHON)


def test_a_directory_too_long_for_sockets_is_refused_with_both_lengths() -> None:
    with pytest.raises(Invalid, match=r"\d+ bytes; the limit is 107.*shorter directory"):
        ray_start_command(spec(), SliceDirs(Path("/home/a-rather-long-name-of-a-user/state/polyray")), PYTHON)


def test_the_secret_is_in_no_command_line_and_no_environment() -> None:
    everything = (
        *ray_start_command(spec(), DIRS, PYTHON),
        *slice_environment(spec(), DIRS, PYTHON).values(),
        site_customization(spec().address),
    )
    assert not [text for text in everything if SECRET in text]


def test_the_environment_is_cleared_whatever_the_core_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/the/core's/own")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = slice_environment(spec(env={"COLOUR": "red"}), DIRS, PYTHON)
    assert environment == {
        "COLOUR": "red",
        "PATH": "/opt/polyray/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp/pr-0a1b2c/0123456789/home",
        "TMPDIR": "/tmp/pr-0a1b2c/0123456789/tmp",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/tmp/pr-0a1b2c/0123456789/site",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/tmp/pr-0a1b2c/0123456789/token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "RAY_ROTATION_MAX_BYTES": "33554432",
        "RAY_ROTATION_BACKUP_COUNT": "1",
    }


def test_a_workload_cannot_move_its_ray_to_another_token() -> None:
    environment = slice_environment(spec(env={"RAY_AUTH_TOKEN_PATH": "/etc/passwd"}), DIRS, PYTHON)
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(DIRS.token)


def test_only_leased_gpus_are_visible() -> None:
    assert slice_environment(spec(num_gpus=2, gpu_indices=(1, 3)), DIRS, PYTHON)["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_a_driver_finds_its_own_cluster_and_the_workloads_code() -> None:
    environment = driver_environment(spec(env={"PYTHONPATH": "/run/code"}), DIRS, PYTHON, {"RAY_ADDRESS": "1.2.3.4:1"})
    assert environment["RAY_ADDRESS"] == "127.77.0.1:24100"
    assert environment["PYTHONPATH"] == f"{DIRS.site}:/run/code"


def test_ray_client_servers_get_the_clusters_own_ports_in_that_process_alone() -> None:
    text = site_customization(Address(ip="127.77.0.1", first_port=24100))
    assert "MIN_SPECIFIC_SERVER_PORT, proxier.MAX_SPECIFIC_SERVER_PORT = 24110, 24130" in text
    # In any other process it imports nothing.
    namespace: dict[str, object] = {}
    exec(text, namespace)
    assert "proxier" not in namespace
