"""What every gateway promises, held against the one in memory and a real HAProxy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from polyray.core.errors import Unavailable
from polyray.serving.gateway import Gateway, Key, Routes
from support.gateway import FakeGateway, service_backend, session_backend
from support.haproxy import RunningGateway

A = session_backend("clu-aaaaaaaaaaaa", "vision", client_port=10001)
B = session_backend("clu-bbbbbbbbbbbb", "speech")
S = service_backend("clu-cccccccccccc", "vision", "digits")
ROUTES = Routes(
    backends=(A, B, S),
    keys=(Key("AB" * 32, "key-000000000001", "vision", "digits", 2_000_000_000_000),),
    suspended_tenants=("audio",),
    revoked_sids=("sid-000000000001",),
    defaults=(("vision", A.cluster_id), ("speech", B.cluster_id)),
)
ALL = frozenset({A.cluster_id, B.cluster_id, S.cluster_id})


class Subject(Protocol):
    gateway: Gateway

    def stop(self) -> None: ...
    def start_again(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.fake = FakeGateway()
        self.gateway: Gateway = self.fake

    def stop(self) -> None:
        self.fake.down = True

    def start_again(self) -> None:
        self.fake.down = False


class OnHAProxy:
    def __init__(self, running: RunningGateway) -> None:
        self.running = running
        self.gateway: Gateway = running.gateway

    def stop(self) -> None:
        self.running.kill("haproxy")
        self.running.kill("responder")

    def start_again(self) -> None:
        self.running.start()


@pytest.fixture(params=["memory", "haproxy"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "memory":
        yield InMemory()
        return
    running = RunningGateway()
    yield OnHAProxy(running)
    running.close()


def test_a_new_gateway_routes_to_nothing(subject: Subject) -> None:
    assert subject.gateway.actual() == frozenset()


def test_what_is_applied_is_what_it_has(subject: Subject) -> None:
    subject.gateway.apply(ROUTES)
    assert subject.gateway.actual() == ALL


def test_applying_twice_is_applying_once(subject: Subject) -> None:
    subject.gateway.apply(ROUTES)
    subject.gateway.apply(ROUTES)
    assert subject.gateway.actual() == ALL


def test_what_is_left_out_is_gone(subject: Subject) -> None:
    subject.gateway.apply(ROUTES)
    subject.gateway.apply(replace(ROUTES, backends=(B,)))
    assert subject.gateway.actual() == {B.cluster_id}
    subject.gateway.apply(Routes())
    assert subject.gateway.actual() == frozenset()


def test_a_cluster_that_moved_is_there_once(subject: Subject) -> None:
    subject.gateway.apply(ROUTES)
    subject.gateway.apply(replace(ROUTES, backends=(replace(A, ip="127.0.0.9"), B, S)))
    assert subject.gateway.actual() == ALL


def test_a_stopped_gateway_says_so_and_comes_back_with_what_was_applied_meanwhile(subject: Subject) -> None:
    subject.gateway.apply(ROUTES)
    subject.stop()
    with pytest.raises(Unavailable):
        subject.gateway.apply(replace(ROUTES, backends=(B,)))
    with pytest.raises(Unavailable):
        subject.gateway.actual()
    subject.start_again()
    assert subject.gateway.actual() == {B.cluster_id}
