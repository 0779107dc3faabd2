"""T07: what is taken away is dead on open streams, in old workers too; an address may change hands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import httpx
import pytest

from polyray.core.errors import Unavailable
from polyray.serving.gateway import Routes
from support.echo import EchoServer
from support.front import A, B, Front
from support.gateway import service_backend, session_backend
from support.tokens import sign
from support.wait import until

#: What is promised (T_revoke).
SECONDS = 5.0


class OpenStream:
    """A `ray://` data stream through the gateway that counts what it gets."""

    def __init__(self, front: Front, token: str) -> None:
        self.received = 0
        self.error: grpc.RpcError | None = None
        self._channel = grpc.insecure_channel(f"127.0.0.1:{front.running.port}")
        method = self._channel.stream_stream("/ray.rpc.RayletDataStreamer/Datapath")
        self._call = method(_silence(), metadata=[("authorization", f"Bearer {token}")])
        threading.Thread(target=self._read, daemon=True).start()
        until(lambda: self.received > 2 or self.error, what="the stream's first messages")
        assert self.error is None, self.error

    def _read(self) -> None:
        try:
            for _ in self._call:
                self.received += 1
        except grpc.RpcError as error:
            self.error = error

    @property
    def cut(self) -> bool:
        return self.error is not None

    def flows(self) -> bool:
        before = self.received
        until(lambda: self.received > before + 2 or self.cut, what="more messages")
        return not self.cut

    def close(self) -> None:
        self._call.cancel()
        self._channel.close()


class OpenHttpStream:
    """A log tail or a streaming inference: chunks that never end."""

    def __init__(self, front: Front, path: str, token: str) -> None:
        self.received = 0
        self.cut = False
        self._client = httpx.Client(timeout=10, trust_env=False)
        self._context = self._client.stream(
            "GET", front.running.url + path, headers={"Authorization": f"Bearer {token}"}
        )
        self._response = self._context.__enter__()
        assert self._response.status_code == 200
        threading.Thread(target=self._read, daemon=True).start()
        until(lambda: self.received > 2, what="the stream's first chunks")

    def _read(self) -> None:
        try:
            for chunk in self._response.iter_raw():
                self.received += len(chunk)
        except httpx.HTTPError:
            pass
        self.cut = True

    def flows(self) -> bool:
        before = self.received
        until(lambda: self.received > before + 2 or self.cut, what="more chunks")
        return not self.cut

    def close(self) -> None:
        self._client.close()


def _silence() -> Iterator[bytes]:
    threading.Event().wait()
    yield b""


def _reload(front: Front) -> None:
    """Reload the gateway as for a new rule or key: open streams stay with the old worker."""
    master = front.running.gateway._master
    before = master.workers()[0].pid
    assert master.reload() == ""
    assert master.workers()[0].pid != before


Streams = dict[str, OpenStream | OpenHttpStream]


@contextmanager
def _streams(front: Front) -> Iterator[Streams]:
    """Open what ada may have open, and one stream of another tenant."""
    ada, bob = (
        sign(front.keys, front.claims()),
        front.tokens.issue("bob", tenant="speech", role="member").token,
    )
    streams: Streams = {
        "ray": OpenStream(front, ada),
        "dashboard": OpenHttpStream(front, "/stream", ada),
        "service": OpenHttpStream(front, "/serve/digits/stream", ada),
        "foreign": OpenHttpStream(front, "/stream", bob),
    }
    try:
        yield streams
    finally:
        for stream in streams.values():
            stream.close()
        front.running.gateway.apply(front.routes())


def _cut(streams: Streams, *names: str) -> None:
    until(lambda: all(streams[name].cut for name in names), seconds=SECONDS, what=f"the end of {names}")
    for name in streams.keys() - set(names):
        assert streams[name].flows(), f"{name} was cut although nothing was taken from it"


@pytest.fixture(params=[False, True], ids=["in the running worker", "in an old worker after a reload"])
def maybe_reload(request: pytest.FixtureRequest, front: Front) -> Callable[[], None]:
    return lambda: _reload(front) if request.param else None


def test_a_removed_cluster_loses_its_own_streams_and_no_others(front: Front, maybe_reload: Callable[[], None]) -> None:
    with _streams(front) as streams:
        maybe_reload()
        routes = front.routes()
        gone = replace(routes, backends=tuple(b for b in routes.backends if b.cluster_id != A), defaults=())
        front.running.gateway.apply(gone)
        _cut(streams, "ray", "dashboard")
        assert A not in front.running.gateway.actual()


def test_a_suspended_tenant_loses_all_its_streams(front: Front, maybe_reload: Callable[[], None]) -> None:
    with _streams(front) as streams:
        maybe_reload()
        front.running.gateway.apply(replace(front.routes(), suspended_tenants=("vision",)))
        _cut(streams, "ray", "dashboard", "service")
        answer = front.get("/", sign(front.keys, front.claims()))
        assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
        assert front.get("/serve/digits/", front.api_keys["all"]).json()["code"] == "tenant_suspended"


def test_a_revoked_session_loses_its_streams_and_another_tenant_none(
    front: Front, maybe_reload: Callable[[], None]
) -> None:
    with _streams(front) as streams:
        maybe_reload()
        sid = front.tokens.issue("ada", tenant="vision", role="admin").principal.sid
        routes = front.routes()
        front.running.gateway.apply(
            replace(routes, revoked_sids=(*routes.revoked_sids, sid), sid_tenants=((sid, "vision"),))
        )
        _cut(streams, "ray", "dashboard")


def test_an_open_connection_cannot_start_anything_new_after_revocation(
    front: Front, maybe_reload: Callable[[], None]
) -> None:
    """Keep-alive: the connection stays with its worker, the request is judged anew."""
    issued = front.tokens.issue("ada", tenant="vision", role="admin")
    headers = {"Authorization": f"Bearer {issued.token}"}
    with httpx.Client(timeout=10, trust_env=False, base_url=front.running.url, headers=headers) as client:
        assert client.get("/").status_code == 200
        maybe_reload()
        routes = front.routes()
        front.running.gateway.apply(replace(routes, revoked_sids=(*routes.revoked_sids, issued.principal.sid)))
        answer = client.get("/")
        assert (answer.status_code, answer.json()["code"]) == (401, "token_revoked")
    front.running.gateway.apply(routes)


def test_an_address_that_changes_hands_is_reached_by_its_new_tenant_only(front: Front) -> None:
    """The old tenant's kept connection, token and key lead nowhere once the port is another's."""
    old = EchoServer("old")
    routes = front.routes()
    mine = session_backend("clu-eeeeeeeeeeee", "vision", dashboard_port=old.port)
    service = service_backend("clu-ffffffffffff", "vision", "moving", serve_port=old.port)
    front.running.gateway.apply(replace(routes, backends=(*routes.backends, mine, service)))
    token = sign(front.keys, front.claims(cluster=mine.cluster_id))
    with httpx.Client(timeout=10, trust_env=False, base_url=front.running.url) as client:
        assert client.get("/", headers={"Authorization": f"Bearer {token}"}).json()["server"] == "old"
        assert client.get("/serve/moving/", headers={"X-Api-Key": front.api_keys["all"]}).json()["server"] == "old"
        port = old.port
        old.close()
        theirs = session_backend("clu-gggggggggggg", "speech", dashboard_port=port)
        front.running.gateway.apply(replace(routes, backends=(*routes.backends, theirs)))
        new = EchoServer("new", port=port)
        assert client.get("/", headers={"Authorization": f"Bearer {token}"}).status_code == 404
        assert client.get("/serve/moving/", headers={"X-Api-Key": front.api_keys["all"]}).status_code == 404
        stranger = sign(front.keys, front.claims(cluster=theirs.cluster_id))
        assert client.get("/", headers={"Authorization": f"Bearer {stranger}"}).status_code == 404
        assert new.requests == []
        bob = sign(front.keys, front.claims(sub="bob", tenant="speech", cluster=theirs.cluster_id))
        seen = client.get("/", headers={"Authorization": f"Bearer {bob}"}).json()
        assert seen["server"] == "new"
        assert ["authorization", f"Bearer secret-of-{theirs.cluster_id}"] in seen["headers"]
    new.close()
    front.running.gateway.apply(routes)


def test_a_dead_cluster_is_an_error_and_never_another_cluster(front: Front) -> None:
    """HAProxy must not redispatch: the next server of the same class is another tenant's."""
    dead = session_backend("clu-hhhhhhhhhhhh", "vision", dashboard_port=1)
    routes = front.routes()
    front.running.gateway.apply(replace(routes, backends=(*routes.backends, dead)))
    answer = front.get("/", sign(front.keys, front.claims(cluster=dead.cluster_id)))
    assert answer.status_code == 503
    assert answer.json()["code"] == "cluster_unreachable"
    front.running.gateway.apply(routes)


def test_a_lost_map_and_a_lost_server_heal_at_the_next_look(front: Front) -> None:
    master = front.running.gateway._master
    pid = master.workers()[0].pid
    token = sign(front.keys, front.claims())
    for command in (
        "clear map maps/clusters.map",
        "clear map maps/revoked.map",
        "add map maps/kids.map evil keys/x.pem",
    ):
        master.send(f"@!{pid} {command}")
    for kind, server in master.observe(master.workers()[0]).servers:
        master.send(f"@!{pid} set server {kind}/{server} state maint")
    assert front.get("/", token).status_code == 404
    front.running.gateway.apply(front.routes())
    assert front.get("/", token).status_code == 200
    assert front.get("/", sign(front.keys, front.claims(sid=front.revoked[0]))).json()["code"] == "token_revoked"
    assert "evil" not in master.observe(master.workers()[0]).maps["kids"]


def test_a_killed_gateway_comes_back_with_what_was_applied_last(front: Front) -> None:
    token = sign(front.keys, front.claims())
    front.running.kill("haproxy")
    front.running.kill("responder")
    with pytest.raises(Unavailable):
        front.running.gateway.apply(front.routes())
    front.running.start()
    assert front.get("/", token).status_code == 200
    assert front.running.gateway.actual() == {backend.cluster_id for backend in front.backends}


def test_ten_reloads_in_a_row_drop_no_request(front: Front) -> None:
    token = sign(front.keys, front.claims())
    stop = threading.Event()
    statuses: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            statuses.append(front.get("/", token).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(10):
        _reload(front)
    stop.set()
    asking.join()
    assert set(statuses) == {200}


def test_secrets_lie_in_files_that_only_their_owner_reads(front: Front) -> None:
    directory = front.running.state_dir / "run" / "haproxy"
    assert directory.stat().st_mode & 0o777 == 0o700
    for path in directory.rglob("*"):
        if not path.is_dir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_an_empty_gateway_refuses_everybody(front: Front) -> None:
    token = sign(front.keys, front.claims())
    front.running.gateway.apply(Routes())
    assert front.get("/", token).json()["code"] == "unknown_kid"
    assert front.get("/serve/digits/", front.api_keys["all"]).json()["code"] == "unknown_api_key"
    assert B not in front.running.gateway.actual()
    front.running.gateway.apply(front.routes())
    assert front.get("/", token).status_code == 200
