"""The fabric over its socket: the same answers and the same errors, and no call that hangs."""

from __future__ import annotations

import asyncio
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from polyray.core.errors import Conflict, Invalid, NotFound, Unavailable
from polyray.fabric.client import FabricClient
from polyray.fabric.server import FabricApp, bind
from polyray.tenants.slices import DriverSpec, Fabric, FabricNode, Gang, GangState, LeaseSpec
from support.fabric import FakeFabric
from support.wait import until


class FabricThatHangs(FakeFabric):
    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def nodes(self) -> tuple[FabricNode, ...]:
        self.released.wait(30)
        return super().nodes()


@contextmanager
def served(fabric: Fabric | None, path: Path, *, limit_seconds: float = 5.0) -> Iterator[FabricClient]:
    app = FabricApp(lambda: fabric, call_limit_seconds=limit_seconds).starlette()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listener = bind(path)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    client = FabricClient(path)
    try:
        until(lambda: server.started)
        yield client
    finally:
        client.close()
        server.should_exit = True
        thread.join(10)


def gang() -> Gang:
    lease = LeaseSpec(lease_id="lea-1", epoch=1, node_id="nod-1", cpu_milli=1000, gpu_milli=0, memory_bytes=2**20)
    return Gang(cluster_id="clu-1", leases=(lease,))


def test_answers_cross_the_socket_unchanged(tmp_path: Path) -> None:
    fabric = FakeFabric()
    fabric.add_node("nod-1")
    with served(fabric, tmp_path / "f.sock") as client:
        assert client.nodes() == fabric.nodes()
        assert client.grant(gang()).state is GangState.HELD
        assert client.gangs() == fabric.gangs()
        assert client.slices() == fabric.slices()
        assert client.release("clu-1").state is GangState.ABSENT


def test_errors_arrive_as_what_they_were(tmp_path: Path) -> None:
    fabric = FakeFabric()
    fabric.add_node("nod-1")
    driver = DriverSpec(driver_id="d", argv=("true",), cwd="/", log_path="/dev/null")
    with served(fabric, tmp_path / "f.sock") as client:
        with pytest.raises(NotFound, match="no such lease: lea-9"):
            client.kill_slice("lea-9")
        client.grant(gang())
        with pytest.raises(Conflict, match="start it when it is ready"):
            client.start_driver("lea-1", driver)
        with pytest.raises(Invalid, match="grace_seconds"):
            client.stop_driver("lea-1", "d", -1.0)
        fabric.available = False
        with pytest.raises(Unavailable):
            client.nodes()


def test_a_core_that_hangs_is_unavailable_within_the_limit_and_so_are_all_later_calls(tmp_path: Path) -> None:
    fabric = FabricThatHangs()
    try:
        with served(fabric, tmp_path / "f.sock", limit_seconds=0.1) as client:
            began = time.monotonic()
            for _ in range(20):
                with pytest.raises(Unavailable, match=r"did not answer|does not answer"):
                    client.nodes()
            assert time.monotonic() - began < 10
    finally:
        fabric.released.set()


def test_before_the_core_is_there_calls_say_so(tmp_path: Path) -> None:
    with served(None, tmp_path / "f.sock") as client, pytest.raises(Unavailable, match="not connected to the core yet"):
        client.nodes()


def test_a_fabric_that_does_not_run_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        FabricClient(tmp_path / "f.sock").nodes()


def test_the_socket_is_for_this_user_alone_and_replaces_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "run" / "f.sock"
    bind(path).close()
    listener = bind(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listener.close()


def test_a_socket_path_that_is_too_long_is_refused_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"more than 107 bytes.*shorter state directory"):
        bind(tmp_path / ("d" * 60) / ("e" * 60) / "fabric.sock")
