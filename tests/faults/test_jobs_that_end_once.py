"""How a job ended stays as it ended and nothing of it is left, whatever its cleanup meets, whenever it is stopped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from conftest import Tier
from polyray.autoscaler.provider import Instance
from polyray.core.errors import Unavailable
from polyray.store.tables import Event
from support.crashes import Crashes
from support.invariants import check, check_quiet
from support.world import World

#: More than the rack has.
BURSTS: dict[str, Any] = {"workers": 2, "resources": {"cpu": 1, "memory": "1GiB"}}


class CloudThatDoesNotEnd:
    """A cloud whose `terminate` answers with a failure so many times for each machine."""

    def __init__(self, world: World, times: int) -> None:
        self._end, self._times = world.cloud.terminate, times
        self.failed: Counter[str] = Counter()
        world.cloud.terminate = self.terminate  # type: ignore[method-assign]

    def terminate(self, intent_id: str) -> Instance:
        if self.failed[intent_id] < self._times:
            self.failed[intent_id] += 1
            raise Unavailable("InternalError: an internal error has occurred", hint="try again")
        return self._end(intent_id)


def cloud_node(world: World) -> Any:
    (node,) = [node for node in world.nodes() if node.pool == "cloud"]
    return node


@pytest.mark.parametrize(("exit_code", "ended"), [(0, "succeeded"), (3, "failed"), (None, "stopped")])
def test_a_machine_that_five_times_does_not_end_changes_no_job_and_says_so_itself(
    tmp_path: Path, exit_code: int | None, ended: str
) -> None:
    world = World(tmp_path)
    world.settle(2)
    job = world.submit(**BURSTS)
    world.settle(15)
    assert world.workload(job).state == "running"
    broken = CloudThatDoesNotEnd(world, times=5)
    if exit_code is None:
        world.stop(job)
    else:
        world.end_program(job, exit_code=exit_code)
    for _ in range(60):
        world.settle(0.5)
        if broken.failed.total():
            break
    assert cloud_node(world).state == "terminating"
    assert "does not end it: InternalError" in cloud_node(world).state_reason
    assert world.workload(job).state == ended
    world.settle(60)
    assert broken.failed[cloud_node(world).node_id] == 5
    assert cloud_node(world).state == "terminated"
    assert "does not end it" not in cloud_node(world).state_reason
    row = world.workload(job)
    assert (row.state, row.exit_code if ended != "stopped" else None) == (ended, exit_code)
    assert [finish for _, finish in world.story(job)].count(ended) == 1
    with world.store.read() as session:
        told = session.scalars(select(Event.reason).where(Event.entity_id == cloud_node(world).node_id)).all()
    assert sum("InternalError" in reason for reason in told) == 1, "operators are told once, not each second"
    check_quiet(world)  # the machine is billed to the end it really had


class StopsAt(Crashes):
    """Somebody stops the job right after its life's effect of that number: a commit, or a call to core or cloud."""

    def __init__(self, world: World, job: str, number: int) -> None:
        super().__init__(world)
        self._world, self._job, self._number = world, job, number

    def _reached(self) -> None:
        self.count += 1
        if self.count == self._number:
            self._world.stop(self._job)


def test_a_job_stopped_after_any_effect_between_its_launch_and_its_start_leaves_no_machine_and_is_billed(
    tmp_path: Path, tier: Tier
) -> None:
    stride, stopped_while = tier.pick(quick=6, full=1), set()
    number = 1 - stride
    while True:
        number += stride
        world = World(tmp_path / str(number))
        world.settle(2, step_seconds=1)
        job = world.submit(**BURSTS)
        StopsAt(world, job, number)
        for _ in range(30):
            world.settle(1, step_seconds=0.5)
            check(world)
            if world.workload(job).state in {"running", "stopped"}:
                break
        row = world.workload(job)
        if row.stop_requested_ms is None:
            break  # it ran before that many effects: there are no more moments
        nodes = world.nodes()
        stopped_while |= {node.state for node in nodes if node.pool == "cloud"} or {"before its launch"}
        world.settle(60, step_seconds=2)
        assert world.workload(job).state == "stopped", f"stopped after effect {number}"
        check(world)
        check_quiet(world)
        for node in world.nodes():
            if node.pool == "cloud":
                assert node.state == "terminated"
                assert (node.billed_from_ms is None) == (node.billed_to_ms is None), "what it cost is booked to its end"
        world.store.close()
    assert number > 15, "there are many moments"
    assert {"launched", "ready"} <= stopped_while


def test_a_job_stopped_while_it_waits_for_a_gpu_that_is_not_there_is_gone_at_once_and_its_quota_is_free(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.settle(2)
    first = world.submit(resources={"cpu": 2, "memory": "2GiB"}, capacity=["reserved"])
    world.settle(4)
    waiting = world.submit(resources={"cpu": 2, "memory": "2GiB"}, capacity=["reserved"])
    world.settle(4)
    assert world.workload(waiting).state == "queued"
    world.stop(waiting)
    world.settle(5)
    assert world.workload(waiting).state == "stopped"
    after = world.submit(resources={"cpu": 2, "memory": "2GiB"}, capacity=["reserved"])
    world.end_program(first)
    world.settle(8)
    assert world.workload(after).state == "running"
    assert [row for row in world.live_leases() if row.workload_id == waiting] == []


def test_ten_tenths_of_a_gpu_run_on_one_device_and_the_eleventh_waits_until_one_ends(tmp_path: Path) -> None:
    rack = {"provider": "local", "capacity_type": "reserved", "count": 1, "usd_per_hour": 1}
    rack |= {"resources": {"cpu": 4, "memory": "16GiB", "gpu": "h100:1"}}
    vision = {"quota": {"cpu": 20, "memory": "64GiB", "h100": 2}}
    world = World(tmp_path, {"tenants": {"vision": vision}, "pools": {"rack": rack}, "idle_seconds": 10})
    world.cloud.on_join = lambda node_id, offering: world.fabric.add_node(node_id, 4000, 1000, 16 * 2**30)
    world.settle(2)
    small: dict[str, Any] = {"resources": {"cpu": 0.1, "memory": "256MiB", "gpu": 0.1}, "capacity": ["reserved"]}
    jobs = []
    for _ in range(11):
        jobs.append(world.submit(**small))
        world.clock.advance(0.01)  # of one age they would be served by their ids
    world.settle(40, step_seconds=1)
    states = [world.workload(job).state for job in jobs]
    assert states == ["running"] * 10 + ["queued"]
    taken = [lease.devices for lease in world.live_leases()]
    assert taken == [{"0": 100}] * 10, "thousandths of one device: ten tenths are exactly one"
    why = world.workload(jobs[10]).explanation
    assert why is not None
    assert why["code"] != "infeasible"
    world.end_program(jobs[3])
    world.settle(10)
    assert world.workload(jobs[10]).state == "running"
    check(world)
