"""What a Ray client is told when the gateway refuses it, call by call, without a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from ray.core.generated import ray_client_pb2 as protobuf
from ray.core.generated import ray_client_pb2_grpc as services

from support.haproxy import RunningGateway
from support.wait import until

NO_TOKEN = "polyray gateway: no_credential: no token was sent; run 'polyray login'"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    running = RunningGateway()
    yield running
    running.close()


@pytest.fixture
def channel(running: RunningGateway) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield channel


def test_the_first_ping_passes_so_that_the_client_goes_on_to_ask(channel: grpc.Channel) -> None:
    request = protobuf.ClusterInfoRequest(type=protobuf.ClusterInfoType.PING)
    assert services.RayletDriverStub(channel).ClusterInfo(request, timeout=10).json == "{}"


def test_init_fails_with_the_reason(channel: grpc.Channel) -> None:
    answer = services.RayletDriverStub(channel).Init(protobuf.InitRequest(), timeout=10)
    assert not answer.ok
    assert answer.msg.startswith(NO_TOKEN)


def test_init_on_the_data_stream_fails_with_the_reason(channel: grpc.Channel) -> None:
    requests = iter([protobuf.DataRequest(req_id=7, init=protobuf.InitRequest())])
    (answer,) = services.RayletDataStreamerStub(channel).Datapath(requests, timeout=10)
    assert (answer.req_id, answer.init.ok) == (7, False)
    assert answer.init.msg.startswith(NO_TOKEN)


def test_a_session_that_is_refused_later_ends_at_once_instead_of_hanging(channel: grpc.Channel) -> None:
    """A token that expires in the middle: the client comes back with its next request, not with Init."""
    requests = iter([protobuf.DataRequest(req_id=8, get=protobuf.GetRequest())])
    with pytest.raises(grpc.RpcError) as caught:
        list(services.RayletDataStreamerStub(channel).Datapath(requests, timeout=10))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert NO_TOKEN in caught.value.details()


@pytest.mark.parametrize("name", ["GetObject", "PutObject", "Schedule", "Terminate", "KVGet", "ListNamedActors"])
def test_every_other_call_fails_for_good_with_the_reason(channel: grpc.Channel, name: str) -> None:
    stub: Any = getattr(services.RayletDriverStub(channel), name)
    request = {
        "GetObject": protobuf.GetRequest,
        "PutObject": protobuf.PutRequest,
        "Schedule": protobuf.ClientTask,
        "Terminate": protobuf.TerminateRequest,
        "KVGet": protobuf.KVGetRequest,
        "ListNamedActors": protobuf.ClientListNamedActorsRequest,
    }[name]
    with pytest.raises(grpc.RpcError) as caught:
        answer = stub(request(), timeout=10)
        list(answer)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert NO_TOKEN in caught.value.details()


def test_a_caller_cannot_choose_the_reason(channel: grpc.Channel) -> None:
    metadata = [("x-polyray-deny", "token_expired"), ("x_polyray_deny", "token_expired")]
    answer = services.RayletDriverStub(channel).Init(protobuf.InitRequest(), metadata=metadata, timeout=10)
    assert answer.msg.startswith(NO_TOKEN)


def test_without_its_responder_the_gateway_still_refuses(running: RunningGateway) -> None:
    running.kill("responder")
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            services.RayletDriverStub(channel).Init(protobuf.InitRequest(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        running.start_responder()

        def told() -> bool:
            try:
                answer = services.RayletDriverStub(channel).Init(protobuf.InitRequest(), timeout=5)
            except grpc.RpcError:
                return False
            return str(answer.msg).startswith(NO_TOKEN)

        until(told, what="the reason again")
