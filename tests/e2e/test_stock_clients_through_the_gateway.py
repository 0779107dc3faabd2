"""Unmodified Ray clients reach a real cluster through the real gateway, and are told why when they may not."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from polyray.core.clock import SystemClock
from polyray.fabric.lease import Lease
from polyray.identity.keys import SigningKeys
from polyray.identity.tokens import PlatformTokens
from polyray.serving.gateway import Backend, Routes
from polyray.tenants.sandboxes.process import ProcessSandbox
from polyray.tenants.slices import Address, Role, SliceSpec, SliceState
from support.haproxy import RunningGateway
from support.real_core import FIRST_SLICE_PORT
from support.tokens import make_keys, make_store, make_tokens, sign
from support.wait import until

pytestmark = pytest.mark.ray

CLUSTER = "clu-e2e000000001"
#: A refusal must not take the 30 s that Ray's client waits; most of this is `import ray` on a busy machine.
REFUSED_SECONDS = 25.0

WORK = """
import ray
ray.init()

@ray.remote(num_cpus=0)
class Counter:
    def __init__(self): self.n = 0
    def add(self): self.n += 1; return self.n

counter = Counter.options(name="counter").remote()
ray.get(counter.add.remote(), timeout=60)
print("counted", ray.get(ray.get_actor("counter").add.remote(), timeout=60), flush=True)
"""

HOLD = """
import ray, time
ray.init()

@ray.remote(num_cpus=0)
def one():
    return 1

print("has", ray.get(one.remote(), timeout=60), flush=True)
while True:
    ray.get(one.remote(), timeout=60)
    time.sleep(0.2)
"""


@dataclass
class World:
    running: RunningGateway
    keys: SigningKeys
    tokens: PlatformTokens
    backend: Backend
    home: Path

    def routes(self) -> Routes:
        return Routes(backends=(self.backend,), signing_keys=self.keys.public_pems(), defaults=(("vision", CLUSTER),))

    def token(self, role: str = "member", tenant: str = "vision") -> str:
        return self.tokens.issue("ada", tenant=tenant, role=role).token

    def environment(self, token: str) -> dict[str, str]:
        """Return what `polyray env` prints."""
        path = self.home / f"{secrets.token_hex(4)}.token"
        path.write_text(token)
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "RAY_ADDRESS": f"ray://127.0.0.1:{self.running.port}",
            "RAY_API_SERVER_ADDRESS": self.running.url,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(path),
        }

    def start(self, *argv: str, token: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv,
            env=self.environment(token),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *argv: str, token: str, seconds: float = 150) -> tuple[int, str, float]:
        """Return (exit code, output, seconds it took)."""
        began = time.monotonic()
        process = self.start(*argv, token=token)
        try:
            output, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
        return process.returncode, output, time.monotonic() - began


def _head(root: Path) -> SliceSpec:
    address = Address(ip="127.77.10.1", first_port=FIRST_SLICE_PORT + 4000)
    return SliceSpec(
        lease_id="lea-e2e000000001",
        cluster_id=CLUSTER,
        tenant="vision",
        tenant_uid=20001,
        epoch=1,
        generation=1,
        role=Role.HEAD,
        rank=0,
        address=address,
        gcs_address=address.gcs,
        cluster_secret=secrets.token_hex(32),
        num_cpus_milli=2000,
        num_gpus=0,
        memory_bytes=2**30,
        object_store_bytes=80 * 2**20,
        dashboard=True,
        ray_client=True,
        env={"POLYRAY_TENANT": "vision"},
        run_dir=str(root / "run"),
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("home")
    ray_dir = Path(f"/tmp/pr-{secrets.token_hex(3)}")
    ray_dir.mkdir(mode=0o700)
    spec = _head(home)
    lease = Lease(
        spec.lease_id, CLUSTER, "nod-1", 1, ProcessSandbox(ray_dir), starts_dir=ray_dir / "s", concurrent_starts=1
    )
    clock = SystemClock()
    store = make_store(home, "vision", "speech")
    keys = make_keys(home, clock)
    running = RunningGateway()
    try:
        lease.start_slice(spec)
        until(lambda: lease.status().state is SliceState.READY, seconds=120, every=0.2, what="a head")
        backend = Backend(
            cluster_id=CLUSTER,
            tenant="vision",
            workload_id="ses-e2e000000001",
            name="default",
            kind="session",
            ip=spec.address.ip,
            client_port=spec.address.client_port,
            dashboard_port=spec.address.dashboard_port,
            serve_port=0,
            cluster_secret=spec.cluster_secret,
        )
        world = World(running, keys, make_tokens(store, keys, clock), backend, home)
        running.gateway.apply(world.routes())
        yield world
    finally:
        running.close()
        lease.end()
        assert lease.ended.wait(60)
        shutil.rmtree(ray_dir)


def test_a_stock_client_runs_tasks_and_a_named_actor(world: World) -> None:
    code, output, _ = world.run(sys.executable, "-c", WORK, token=world.token())
    assert code == 0, output[-3000:]
    assert "counted 2" in output


def test_ray_job_submit_and_its_log_tail_work_with_the_same_environment(world: World) -> None:
    entrypoint = [sys.executable, "-c", "print('trained', 6 * 7)"]
    code, output, _ = world.run("ray", "job", "submit", "--", *entrypoint, token=world.token())
    assert code == 0, output[-3000:]
    assert "trained 42" in output
    assert "succeeded" in output
    job_id = next(word.strip("'") for word in output.split() if word.strip("'").startswith("raysubmit_"))
    code, output, _ = world.run("ray", "job", "logs", "-f", job_id, token=world.token())
    assert code == 0, output[-3000:]
    assert "trained 42" in output


def test_the_dashboard_answers_to_a_bearer_token_and_keeps_the_clusters_secret(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.token('viewer')}"}
    with httpx.Client(base_url=world.running.url, headers=headers, trust_env=False, timeout=30) as client:
        page, version = client.get("/"), client.get("/api/version")
        assert page.status_code == version.status_code == 200
        assert "<title>Ray Dashboard</title>" in page.text
        assert "ray_version" in version.json()
        login = client.post("/api/authenticate", headers={"Authorization": f"Bearer {world.backend.cluster_secret}"})
        assert login.status_code == 403
        assert "set-cookie" not in login.headers


def _expired(world: World) -> str:
    now = int(time.time())
    claims = {"iss": "polyray", "aud": "polyray", "sub": "ada", "tenant": "vision", "role": "member"}
    times = {"iat": now - 3600, "nbf": now - 3600, "exp": now - 1}
    return sign(world.keys, claims | times | {"sid": "sid-000000000001"})


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("nobody", "malformed"),
        ("forger", "unknown_kid"),
        ("expired", "token_expired"),
        ("viewer", "role_forbids"),
        ("foreign", "no_session"),
    ],
)
def test_who_may_not_is_refused_in_seconds_with_the_reason(world: World, who: str, reason: str) -> None:
    tokens: dict[str, Callable[[], str]] = {
        # Ray in token mode sends nothing without a token, so somebody who has none sends any word.
        "nobody": lambda: "none",
        "forger": lambda: sign(SigningKeys(world.home / "forged", "platform"), {"iss": "polyray", "tenant": "vision"}),
        "expired": lambda: _expired(world),
        "viewer": lambda: world.token("viewer"),
        "foreign": lambda: world.token(tenant="speech"),
    }
    code, output, seconds = world.run(sys.executable, "-c", WORK, token=tokens[who]())
    assert code != 0
    assert f"polyray gateway: {reason}" in output, output[-3000:]
    assert seconds < REFUSED_SECONDS


def test_no_token_at_all_is_refused_by_the_jobs_api_and_by_ray_client(world: World) -> None:
    environment = world.environment("x") | {"RAY_AUTH_MODE": "disabled"}
    del environment["RAY_AUTH_TOKEN_PATH"]
    done = subprocess.run(
        [sys.executable, "-c", WORK], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "polyray gateway: no_credential" in done.stdout + done.stderr
    done = subprocess.run(
        ["ray", "job", "list"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "no_credential" in done.stdout + done.stderr


def test_removing_the_cluster_cuts_an_open_session(world: World) -> None:
    session = world.start(sys.executable, "-c", HOLD, token=world.token())
    try:
        assert session.stdout is not None
        lines = iter(session.stdout.readline, "")
        assert any("has 1" in line for line in lines)
        world.running.gateway.apply(replace(world.routes(), backends=(), defaults=()))
        cut = time.monotonic()
        output = "".join(lines)
        assert session.wait(timeout=60) != 0
        assert time.monotonic() - cut < 60
        assert "polyray gateway: no_session" in output or "disconnected" in output.lower(), output[-3000:]
    finally:
        session.kill()
        world.running.gateway.apply(world.routes())


def test_a_session_outlives_a_reload_of_the_gateway(world: World) -> None:
    session = world.start(sys.executable, "-c", HOLD.replace("while True", "for _ in range(20)"), token=world.token())
    assert session.stdout is not None
    lines = iter(session.stdout.readline, "")
    assert any("has 1" in line for line in lines)
    world.keys.rotate()
    world.running.gateway.apply(world.routes())
    rest = "".join(lines)
    assert session.wait(timeout=120) == 0, rest[-3000:]
