"""How the core is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from polyray.core.clock import SystemClock
from polyray.core.errors import Unavailable
from polyray.tenants import observer as observing
from polyray.tenants.observer import Observer
from polyray.tenants.slices import Gang, LeaseSpec
from support.fabric import FakeFabric
from support.wait import until


@pytest.fixture
def fabric() -> FakeFabric:
    fabric = FakeFabric()
    fabric.add_node("n1")
    return fabric


@pytest.fixture
def changed() -> list[str]:
    return []


@pytest.fixture
def observer(fabric: FakeFabric, changed: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    monkeypatch.setattr(observing, "IDLE_INTERVAL_SECONDS", 600.0)
    observer = Observer(fabric, SystemClock(), changed.append)
    observer.start()
    until(lambda: "n1" in _nodes(observer))
    yield observer
    observer.stop()


def gang() -> Gang:
    lease = LeaseSpec(lease_id="l1", epoch=1, node_id="n1", cpu_milli=1000, gpu_milli=0, memory_bytes=2**30)
    return Gang(cluster_id="c1", leases=(lease,))


def _nodes(observer: Observer) -> Iterable[str]:
    try:
        return observer.view().nodes
    except Unavailable:
        return ()


def test_an_empty_core_is_hardly_looked_at_until_something_is_asked_of_it(
    observer: Observer, fabric: FakeFabric, changed: list[str]
) -> None:
    fabric.grant(gang())
    assert changed == []
    observer.hurry()
    until(lambda: changed == ["c1"], what="the gang is seen")
