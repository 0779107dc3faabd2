"""F26: one tenant queues ten thousand jobs, another one job, on the API and the reconcilers as they run for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import func, select

from conftest import Tier
from polyray.core.ids import new_id
from polyray.core.lifecycle import WorkloadState
from polyray.store.tables import Workload
from support.live_plane import LivePlane, live_plane
from support.wait import until

#: The full tier takes some minutes.
pytestmark = pytest.mark.timeout(1200)

#: Each takes a whole node.
JOB = {"kind": "job", "name": "digits", "run": "python train.py", "resources": {"cpu": 8}}
NODES = 4
#: A row with its spec, explanation, event and key is two kilobytes; this is for what is held of all of them at once.
BYTES_A_JOB = 40 * 2**10
BYTES_AT_LEAST = 200 * 2**20


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[LivePlane]:
    with live_plane(tmp_path, NODES) as plane:
        yield plane


@pytest.fixture
def client_of(plane: LivePlane) -> Iterator[Callable[[str], httpx.Client]]:
    clients: list[httpx.Client] = []

    def make(user: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {plane.token(user)}"}
        clients.append(httpx.Client(base_url=plane.url, headers=headers, timeout=60, trust_env=False))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def submit(client: httpx.Client) -> str:
    answer = client.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": new_id("request")})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def pages(client: httpx.Client, path: str, between: Callable[[], object]) -> list[dict[str, Any]]:
    """Return all items of a list, with something happening between its pages."""
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get(path, params={"limit": 200, **({"cursor": cursor} if cursor else {})}).json()
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items
        between()


def states(plane: LivePlane) -> dict[str, int]:
    with plane.store.read() as session:
        return dict(session.execute(select(Workload.state, func.count()).group_by(Workload.state)).all())


def end_one(plane: LivePlane, *, but: str) -> None:
    """Let one running job end well, but not this one, so that the queue moves."""
    for lease_id in plane.fabric.held:
        driver = plane.fabric.driver_of(lease_id)
        runs_on = driver is not None and driver.driver_id.startswith(but)
        if driver is not None and not runs_on and driver.driver_id in plane.fabric.running_drivers:
            plane.fabric.end_driver(lease_id)
            return


def test_ten_thousand_jobs_of_one_tenant_starve_nobody_and_can_be_paged_and_stopped(
    plane: LivePlane, client_of: Callable[[str], httpx.Client], tier: Tier
) -> None:
    count = tier.pick(quick=600, full=10_000)
    ada, bob = client_of("ada"), client_of("bob")
    process = psutil.Process()
    until(lambda: len(plane.fabric.nodes()) == NODES, what="the nodes join")
    before = process.memory_info().rss

    first = [submit(ada) for _ in range(20)]
    rest = plane.queue(count - 20, resources={"cpu": 8})
    until(lambda: states(plane).get("running") == NODES, seconds=60, what="the platform is full")

    other = submit(bob)
    assert bob.get(f"/v1/jobs/{other}").json()["state"] in {"queued", "starting"}
    end_one(plane, but=other)
    until(
        lambda: bob.get(f"/v1/jobs/{other}").json()["state"] == "running",
        seconds=60,
        every=0.1,
        what="the other tenant's job runs while thousands wait",
    )
    assert states(plane)["queued"] > count - 3 * NODES

    def told() -> bool:
        with plane.store.read() as session:
            waits = select(func.count()).select_from(Workload).where(Workload.state == WorkloadState.QUEUED.value)
            untold = waits.where(Workload.explanation.is_(None))
            return session.scalar(untold) == 0

    until(told, seconds=120, every=0.5, what="every job that waits is told why")
    why = ada.get(f"/v1/jobs/{rest[-1]}/why").json()
    assert why["code"] in {"waiting_for_capacity", "behind_others", "quota_exceeded"}
    assert why["position"] == states(plane)["queued"]

    submitted_meanwhile: list[str] = []

    def the_queue_moves() -> None:
        end_one(plane, but=other)
        submitted_meanwhile.append(submit(ada))

    listed = [item["id"] for item in pages(ada, "/v1/jobs", the_queue_moves)]
    assert len(listed) == len(set(listed)) == count
    assert set(listed) == {*first, *rest}
    assert submitted_meanwhile

    everything = [*listed, *submitted_meanwhile]

    def stop(workload_id: str) -> int:
        return ada.post(f"/v1/jobs/{workload_id}/stop").status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(stop, everything)) == {200}
    until(
        lambda: (
            not any(states(plane).get(state) for state in ("queued", "starting", "stopping"))
            and states(plane).get("running") == 1
        ),
        seconds=120,
        every=0.5,
        what="all of the tenant's jobs have ended",
    )
    assert bob.get(f"/v1/jobs/{other}").json()["state"] == "running", "another tenant's job is none of theirs"
    grown = process.memory_info().rss - before
    assert grown < BYTES_AT_LEAST + count * BYTES_A_JOB, f"{grown >> 20} MiB for {count} jobs"
