"""One real gateway with two tenants behind it, and their tokens: the world that attacks are played in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from polyray.core.clock import SystemClock
from polyray.identity.api_keys import make_key
from polyray.identity.keys import SigningKeys
from polyray.identity.tokens import PlatformTokens
from polyray.serving.gateway import Backend, Key, Routes
from polyray.store.engine import Store
from polyray.store.tables import ApiKey, Tenant
from support.echo import EchoGrpc, EchoServer
from support.gateway import service_backend, session_backend
from support.haproxy import RunningGateway
from support.tokens import make_keys, make_store, make_tokens

A, B, S, T = "clu-aaaaaaaaaaaa", "clu-bbbbbbbbbbbb", "clu-cccccccccccc", "clu-dddddddddddd"


@dataclass
class Front:
    """The gateway as an attacker sees it, and what the defender knows."""

    running: RunningGateway
    store: Store
    tokens: PlatformTokens
    keys: SigningKeys
    clock: SystemClock
    vision: EchoServer
    speech: EchoServer
    vision_grpc: EchoGrpc
    backends: tuple[Backend, ...]
    api_keys: dict[str, str] = field(default_factory=dict)
    gateway_keys: tuple[Key, ...] = ()
    revoked: tuple[str, ...] = ()

    def routes(self) -> Routes:
        return Routes(
            backends=self.backends,
            keys=self.gateway_keys,
            signing_keys=self.keys.public_pems(),
            suspended_tenants=("audio",),
            revoked_sids=self.revoked,
            defaults=(("vision", A), ("speech", B)),
        )

    def get(self, path: str = "/", token: str = "", **headers: str) -> httpx.Response:
        return self.send("GET", path, token, **headers)

    def send(self, method: str, path: str, token: str = "", **headers: str) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            given["Authorization"] = f"Bearer {token}"
        with httpx.Client(timeout=10, trust_env=False) as client:
            return client.request(method, self.running.url + path, headers=given)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a good token of ada, changed; None takes a claim away."""
        issued = self.tokens.issue("ada", tenant="vision", role="admin")
        now = self.clock.now_ms() // 1000
        claims: dict[str, Any] = {
            "iss": "polyray",
            "aud": "polyray",
            "sub": "ada",
            "tenant": "vision",
            "role": "admin",
            "sid": issued.principal.sid,
            "iat": now,
            "nbf": now,
            "exp": now + 3600,
        }
        return {name: value for name, value in (claims | changes).items() if value is not None}


@contextmanager
def open_front(directory: Path) -> Iterator[Front]:
    """Start the gateway and two tenants' clusters; end them with the context."""
    clock = SystemClock()
    store = make_store(directory, "vision", "speech", "audio")
    keys = make_keys(directory, clock)
    tokens = make_tokens(store, keys, clock)
    running = RunningGateway()
    vision, speech, vision_grpc = EchoServer("vision"), EchoServer("speech"), EchoGrpc("vision")
    front = Front(
        running=running,
        store=store,
        tokens=tokens,
        keys=keys,
        clock=clock,
        vision=vision,
        speech=speech,
        vision_grpc=vision_grpc,
        backends=(
            session_backend(A, "vision", dashboard_port=vision.port, client_port=vision_grpc.port),
            session_backend(B, "speech", dashboard_port=speech.port),
            service_backend(S, "vision", "digits", serve_port=vision.port),
            service_backend(T, "speech", "digits", serve_port=speech.port),
        ),
    )
    _make_keys(front)
    front.revoked = (tokens.issue("ada", tenant="vision", role="admin").principal.sid,)
    tokens.revoke(front.revoked[0])
    with store.write() as session:
        session.get_one(Tenant, "audio").suspended = True
    running.gateway.apply(front.routes())
    yield front
    for server in (vision, speech, vision_grpc):
        server.close()
    running.close()


def _make_keys(front: Front) -> None:
    """Make keys: for all services, for one, for another one, of another tenant, and an expired one."""
    now_ms = front.clock.now_ms()
    with front.store.write() as session:
        for name, tenant, service, made_ms in (
            ("all", "vision", None, now_ms),
            ("digits", "vision", "digits", now_ms),
            ("other", "vision", "faces", now_ms),
            ("speech", "speech", None, now_ms),
            ("expired", "vision", None, now_ms - 2 * 86_400_000),
        ):
            new = make_key(
                session,
                tenant=tenant,
                name=name,
                created_by="ada",
                now_ms=made_ms,
                service=service,
                ttl_days=1,
            )
            front.api_keys[name] = new.key
    with front.store.read() as session:
        rows = session.query(ApiKey).all()
    front.gateway_keys = tuple(
        Key(row.key_hash, row.key_id, row.tenant, row.service or "", row.expires_ms) for row in rows
    )
