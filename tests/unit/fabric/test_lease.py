"""What a lease does with its slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyray.core.errors import Conflict
from polyray.fabric.lease import Lease
from polyray.tenants.slices import Address, DriverSpec, Role, SliceSpec, SliceState
from support.sandbox import FakeSandbox
from support.wait import until


def spec(generation: int = 1, *, epoch: int = 1) -> SliceSpec:
    return SliceSpec(
        lease_id="lea-1",
        cluster_id="clu-1",
        tenant="vision",
        tenant_uid=20001,
        epoch=epoch,
        generation=generation,
        role=Role.HEAD,
        rank=0,
        address=Address(ip="127.77.0.1", first_port=24000),
        gcs_address="127.77.0.1:24000",
        cluster_secret="s",
        num_cpus_milli=1000,
        num_gpus=0,
        memory_bytes=1,
        object_store_bytes=1,
        dashboard=False,
        ray_client=False,
        run_dir="/run",
    )


DRIVER = DriverSpec(driver_id="d1", argv=("true",), cwd="/", log_path="/dev/null")


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


Make = Callable[..., Lease]


@pytest.fixture
def make(sandbox: FakeSandbox, tmp_path: Path) -> Iterator[Make]:
    made: list[Lease] = []

    def lease(*, concurrent_starts: int = 2, answers: bool = True) -> Lease:
        made.append(
            Lease(
                "lea-1",
                "clu-1",
                "nod-1",
                1,
                sandbox,
                starts_dir=tmp_path / "starts",
                concurrent_starts=concurrent_starts,
                answers=lambda _: answers,
            )
        )
        return made[-1]

    yield lease
    for one in made:
        one.end()
        assert one.ended.wait(10)


def wait_state(lease: Lease, state: SliceState, generation: int = 1) -> None:
    until(
        lambda: (lease.status().state, lease.status().generation) == (state, generation),
        seconds=10,
        what=f"{state}, not {lease.status()}",
    )


def test_a_new_lease_is_empty(make: Make) -> None:
    status = make().status()
    assert (status.state, status.generation, status.detail) == (SliceState.EMPTY, 0, "")


def test_a_started_slice_becomes_ready(make: Make) -> None:
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    assert lease.status().memory_bytes == 1000


def test_a_runtime_whose_agent_does_not_answer_is_not_ready(make: Make, sandbox: FakeSandbox) -> None:
    lease = make(answers=False)
    lease.start_slice(spec())
    until(lambda: sandbox.started)
    assert lease.status().state is SliceState.STARTING


def test_the_same_generation_is_started_once(make: Make, sandbox: FakeSandbox) -> None:
    lease = make()
    for _ in range(3):
        lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    lease.start_slice(spec())
    assert len(sandbox.started) == 1


def test_a_failed_start_is_tried_once_more(make: Make, sandbox: FakeSandbox) -> None:
    sandbox.failures = ["exit code 1: the agent was late"]
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    assert len(sandbox.started) == 2


def test_a_start_that_fails_twice_is_told_with_its_reason(make: Make, sandbox: FakeSandbox) -> None:
    sandbox.failures = ["first", "second"]
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.EXITED)
    assert lease.status().detail == "second"
    assert len(sandbox.started) == 2


def test_a_port_in_use_is_told_at_once_since_another_block_is_needed(make: Make, sandbox: FakeSandbox) -> None:
    sandbox.failures = ["port_in_use: 24003"]
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.EXITED)
    assert "port_in_use: 24003" in lease.status().detail
    assert sandbox.started == []


def test_a_slice_that_ends_by_itself_is_told(make: Make, sandbox: FakeSandbox) -> None:
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    sandbox.started[0].exit("exit code 1: the GCS died")
    wait_state(lease, SliceState.EXITED)
    assert lease.status().detail == "exit code 1: the GCS died"
    assert lease.status().memory_bytes == 0


def test_a_newer_generation_replaces_an_older_one_that_is_ended_first(make: Make, sandbox: FakeSandbox) -> None:
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    lease.start_slice(spec(2))
    wait_state(lease, SliceState.READY, generation=2)
    first, second = sandbox.started
    assert first.gone
    assert not second.gone


def test_a_newer_generation_replaces_one_that_is_still_starting(make: Make, sandbox: FakeSandbox) -> None:
    sandbox.hang = True
    lease = make()
    lease.start_slice(spec())
    until(lambda: sandbox.started)
    sandbox.hang = False
    lease.start_slice(spec(2))
    wait_state(lease, SliceState.READY, generation=2)
    assert sandbox.started[0].gone


def test_a_slice_killed_while_it_starts_is_not_tried_again(make: Make, sandbox: FakeSandbox) -> None:
    sandbox.hang = True
    lease = make()
    lease.start_slice(spec())
    until(lambda: sandbox.started)
    lease.kill_slice()
    wait_state(lease, SliceState.EXITED)
    assert lease.status().detail == "killed"
    assert len(sandbox.started) == 1


def test_another_epoch_is_refused(make: Make, sandbox: FakeSandbox) -> None:
    with pytest.raises(Conflict, match="epoch 1, not 2"):
        make().start_slice(spec(epoch=2))
    assert sandbox.started == []


def test_a_lease_that_ends_leaves_nothing_running_and_starts_nothing(make: Make, sandbox: FakeSandbox) -> None:
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    lease.end()
    assert lease.ended.wait(10)
    assert sandbox.started[0].gone
    with pytest.raises(Conflict, match="ending"):
        lease.start_slice(spec(2))


def test_a_driver_starts_once_and_alone_in_a_ready_slice(make: Make, sandbox: FakeSandbox) -> None:
    lease = make()
    with pytest.raises(Conflict, match="is empty"):
        lease.start_driver(DRIVER)
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    lease.start_driver(DRIVER)
    lease.start_driver(DRIVER)
    with pytest.raises(Conflict, match="runs driver d1"):
        lease.start_driver(DRIVER.model_copy(update={"driver_id": "d2"}))
    driver = lease.status().driver
    assert driver is not None
    assert driver.running


def test_a_new_generation_knows_no_driver(make: Make) -> None:
    lease = make()
    lease.start_slice(spec())
    wait_state(lease, SliceState.READY)
    lease.start_driver(DRIVER)
    lease.start_slice(spec(2))
    wait_state(lease, SliceState.READY, generation=2)
    assert lease.status().driver is None


def test_no_more_slices_start_at_once_than_the_machine_bears(make: Make, sandbox: FakeSandbox) -> None:
    first, second = make(concurrent_starts=1, answers=False), make(concurrent_starts=1)
    first.start_slice(spec())
    until(lambda: len(sandbox.started) == 1)
    second.start_slice(spec())
    assert second.status().state is SliceState.STARTING
    assert len(sandbox.started) == 1
    first.kill_slice()
    wait_state(second, SliceState.READY)
