"""The real API with the real built-in issuer on a real port: what the command line speaks to."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import structlog
import uvicorn
from sqlalchemy import select

from polyray.api.app import create_app
from polyray.api.deps import Endpoints
from polyray.identity.access_tokens import BuiltInProvider
from polyray.identity.devissuer import build_issuer_router, issuer_rules
from polyray.identity.keys import SigningKeys
from polyray.identity.tokens import PlatformTokens
from polyray.sdk.login import DEVICE_GRANT
from polyray.store.tables import DeviceCode
from support.api import GATEWAY_URL, Platform, make_platform, prepare_state
from support.wait import until


class LiveApi:
    def __init__(self, platform: Platform, url: str) -> None:
        self.platform, self.url = platform, url

    def approve(self, user: str, *, decision: str = "approve") -> threading.Thread:
        """Decide, as a user in a browser would, the next login that is begun; return the thread that does."""
        thread = threading.Thread(target=self._decide, args=(user, decision))
        thread.start()
        return thread

    def _decide(self, user: str, decision: str) -> None:
        until(lambda: bool(self._open_codes()), what="a login is begun")
        form = {"user_code": self._open_codes()[0], "username": user, "password": f"{user}-password"}
        httpx.post(f"{self.url}/issuer/device", data={**form, "decision": decision}).raise_for_status()

    def _open_codes(self) -> list[str]:
        with self.platform.store.read() as session:
            open_ones = select(DeviceCode.user_code).where(DeviceCode.user.is_(None), ~DeviceCode.denied)
            return list(session.scalars(open_ones))


@contextmanager
def live_api(directory: Path) -> Iterator[LiveApi]:
    """Serve the platform of `support.api` on a free port of loopback."""
    prepare_state(directory)
    base = make_platform(directory)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    issuer_url = f"{url}/issuer"
    store, clock = base.services.store, base.services.clock
    issuer_keys = SigningKeys(directory / "keys", "issuer", clock)
    provider = BuiltInProvider(issuer_keys, issuer_rules(issuer_url), clock)
    tokens = PlatformTokens(store, SigningKeys(directory / "keys", "platform", clock), provider, clock)
    services = replace(base.services, tokens=tokens, endpoints=lambda: Endpoints(url, GATEWAY_URL))
    app = create_app(services)
    router = build_issuer_router(store=store, keys=issuer_keys, clock=clock, issuer_url=issuer_url, poll_seconds=0.2)
    app.include_router(router, prefix="/issuer")
    logging_before = structlog.get_config()  # the command line under test has the terminal for itself
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started, what="the API serves")
        yield LiveApi(replace(base, services=services, app=app), url)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        structlog.configure(**logging_before)


def access_token(api: LiveApi, user: str) -> tuple[str, int]:
    """Return an access token of the issuer, had by the device flow without its waits, and when it ends."""
    oidc = f"{api.url}/issuer/protocol/openid-connect"
    begun = httpx.post(f"{oidc}/auth/device", data={"client_id": "polyray-cli", "scope": "openid"}).json()
    form = {"user_code": begun["user_code"], "username": user, "password": f"{user}-password", "decision": "approve"}
    httpx.post(f"{api.url}/issuer/device", data=form).raise_for_status()
    grant = {"grant_type": DEVICE_GRANT, "device_code": begun["device_code"], "client_id": "polyray-cli"}
    given = httpx.post(f"{oidc}/token", data=grant).raise_for_status().json()
    return given["access_token"], api.platform.services.clock.now_ms() + given["expires_in"] * 1000
