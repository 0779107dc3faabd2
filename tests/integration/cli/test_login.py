"""Logging in at the real built-in issuer, and the tokens that follow from it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from polyray.core.clock import SystemClock, VirtualClock
from polyray.core.errors import Unauthenticated
from polyray.sdk.credentials import Credentials, claims_of
from polyray.sdk.login import DeviceCode, Issuer, LoginTokens, wait_for_approval
from polyray.sdk.transport import open_http
from support.http_server import Answer, scripted_server
from support.live_api import LiveApi, access_token

from .conftest import Run


def test_login_shows_the_code_and_ends_with_a_platform_token(run: Run, api: LiveApi, home: Path) -> None:
    browser = api.approve("ada")
    result = run("login", "-o", "json")
    browser.join()
    assert result.code == 0, result.err
    assert json.loads(result.out)["tenant"] == "vision"
    assert json.loads(result.out)["role"] == "admin"
    assert f"{api.url}/issuer/device?user_code=" in result.err
    assert "eyJ" not in result.out + result.err
    for path in (home / "config").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert run("whoami", "-o", "json").code == 0
    assert run("logout").code == 0
    again = run("whoami")
    assert again.code == 3
    assert "polyray login" in again.err


def test_a_denied_login_ends_as_one(run: Run, api: LiveApi) -> None:
    browser = api.approve("ada", decision="deny")
    result = run("login")
    browser.join()
    assert (result.code, result.out) == (3, "")
    assert "denied" in result.err


def test_a_code_that_nobody_approves_expires_and_is_polled_no_faster_than_asked() -> None:
    clock = VirtualClock()
    pending, slower = Answer(400, {"error": "authorization_pending"}), Answer(400, {"error": "slow_down"})
    device = DeviceCode("code", "AAAA-AAAA", "", "", interval_seconds=5, expires_in_seconds=60)
    with scripted_server(pending, slower, pending) as server, open_http(server.url) as http:
        issuer = Issuer(server.url, f"{server.url}/device", f"{server.url}/token")
        with pytest.raises(Unauthenticated, match="expired"):
            wait_for_approval(http, issuer, "cli", device, api_url=server.url, clock=clock, sleep=clock.advance)
        assert len(server.asked) == 7  # at 5 and 10 s; then, told to slow down, every 10 s


def test_a_tenant_that_is_not_ones_own_cannot_be_chosen(ada: Run) -> None:
    result = ada("--tenant", "speech", "whoami")
    assert result.code == 3, result.err
    assert "no role in that tenant" in result.err


def test_a_stored_platform_token_is_used_until_it_is_near_its_end(ada: Run, api: LiveApi, home: Path) -> None:
    ada("whoami")
    credentials = Credentials(home / "config" / "polyray", api.url)
    tokens = LoginTokens(credentials, tenant="vision")
    first = tokens.current()
    assert tokens.current() == first
    exp = claims_of(first)["exp"]

    class Later(SystemClock):
        def now_ms(self) -> int:
            return int(exp * 1000) - 30_000

    with pytest.raises(Unauthenticated):  # it tries to renew, and this login has no refresh token
        LoginTokens(credentials, tenant="vision", clock=Later()).current()


def test_an_access_token_that_ended_is_renewed_with_the_refresh_token(run: Run, api: LiveApi, home: Path) -> None:
    browser = api.approve("ada")
    run("login")
    browser.join()
    credentials = Credentials(home / "config" / "polyray", api.url)
    login = credentials.login()
    assert login is not None
    credentials.save(replace(login, access_expires_ms=0))
    credentials.drop_token("vision")
    assert run("whoami").code == 0
    renewed = credentials.login()
    assert renewed is not None
    assert renewed.refresh_token != login.refresh_token
    assert renewed.access_expires_ms > time.time() * 1000


def test_a_token_is_printed_alone_on_standard_output(ada: Run) -> None:
    result = ada("token", "--ttl", "600")
    assert result.code == 0
    claims = claims_of(result.out.strip())
    assert claims["tenant"] == "vision"
    assert claims["exp"] - claims["iat"] == 600


def test_a_machine_uses_a_token_from_a_file(
    run: Run, api: LiveApi, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = api.platform.services.tokens.exchange(access_token(api, "bob")[0]).token
    (home / "token").write_text(token + "\n")
    monkeypatch.setenv("POLYRAY_TOKEN_PATH", str(home / "token"))
    assert json.loads(run("whoami", "-o", "json").out)["subject"] == "bob"
