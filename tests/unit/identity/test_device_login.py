"""A person logs in on a device by approving on the built-in issuer's page, over HTTP from end to end."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from polyray.core.clock import VirtualClock
from polyray.core.errors import Unauthenticated
from polyray.core.platform_file import PlatformFile
from polyray.identity.access_tokens import BuiltInProvider
from polyray.identity.accounts import apply_accounts
from polyray.identity.devissuer import build_issuer_router, issuer_rules
from polyray.identity.keys import SigningKeys
from polyray.identity.tokens import PlatformTokens
from polyray.store.engine import Store
from support.tokens import make_store

URL = "http://testserver/issuer"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
PLATFORM: dict[str, Any] = {
    "tenants": {"vision": {"members": {"ada": "admin", "bob": "viewer"}}, "speech": {"members": {"bob": "member"}}},
    "users": {
        "ada": {"password": "ada-password", "display_name": "Ada L."},
        "bob": {"password": "bob-password"},
        "olga": {"password": "olga-password"},
    },
    "operators": ["olga"],
}


@dataclass
class World:
    clock: VirtualClock
    store: Store
    http: TestClient
    provider: BuiltInProvider
    tokens: PlatformTokens

    def apply(self, platform: dict[str, Any]) -> None:
        apply_accounts(self.store, PlatformFile.model_validate(platform), self.clock.now_ms())

    def begin(self, **fields: str) -> dict[str, Any]:
        answer = self.http.post(f"{self.oidc}/auth/device", data={"client_id": "polyray-cli", **fields})
        assert answer.status_code == 200
        body: dict[str, Any] = answer.json()
        return body

    @property
    def oidc(self) -> str:
        return "/issuer/protocol/openid-connect"

    def decide(self, user_code: str, user: str, password: str = "", decision: str = "approve", **headers: str) -> Any:
        form = {
            "user_code": user_code,
            "username": user,
            "password": password or f"{user}-password",
            "decision": decision,
        }
        return self.http.post("/issuer/device", data=form, headers=headers)

    def poll(self, device_code: str, client_id: str = "polyray-cli") -> Any:
        form = {"grant_type": DEVICE, "client_id": client_id, "device_code": device_code}
        return self.http.post(f"{self.oidc}/token", data=form)

    def refresh(self, refresh_token: str) -> Any:
        form = {"grant_type": "refresh_token", "client_id": "polyray-cli", "refresh_token": refresh_token}
        return self.http.post(f"{self.oidc}/token", data=form)

    def log_in(self, user: str) -> dict[str, Any]:
        begun = self.begin(scope="openid profile")
        assert self.decide(begun["user_code"], user).status_code == 200
        answer = self.poll(begun["device_code"])
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with accounts and keys, made once: hashing passwords and finding primes is slow on purpose."""
    directory = tmp_path_factory.mktemp("prepared")
    clock = VirtualClock()
    store = make_store(directory, "vision", "speech")
    apply_accounts(store, PlatformFile.model_validate(PLATFORM), clock.now_ms())
    store.close()
    for purpose in ("issuer", "platform"):
        SigningKeys(directory / "keys", purpose, clock).signing()
    return directory


@pytest.fixture
def world(prepared: Path, tmp_path: Path) -> Iterator[World]:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    clock = VirtualClock()
    store = Store(f"sqlite:///{tmp_path / 'polyray.db'}")
    keys = SigningKeys(tmp_path / "keys", "issuer", clock)
    app = FastAPI()
    app.include_router(build_issuer_router(store=store, keys=keys, clock=clock, issuer_url=URL), prefix="/issuer")
    provider = BuiltInProvider(keys, issuer_rules(URL), clock)
    tokens = PlatformTokens(store, SigningKeys(tmp_path / "keys", "platform", clock), provider, clock)
    yield World(clock, store, TestClient(app), provider, tokens)
    store.close()


def _error(answer: Any) -> str:
    assert answer.status_code in (400, 401), answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["error"])


def test_the_discovery_document_names_endpoints_that_answer(world: World) -> None:
    document = world.http.get("/issuer/.well-known/openid-configuration").json()
    assert document["issuer"] == URL
    assert document["device_authorization_endpoint"].startswith(URL)
    keys = world.http.get(document["jwks_uri"]).json()["keys"]
    assert [(key["kty"], key["alg"], key["use"]) for key in keys] == [("RSA", "RS256", "sig")]
    assert all("d" not in key for key in keys)


def test_an_approved_device_gets_tokens_that_the_platform_takes(world: World) -> None:
    begun = world.begin(scope="openid profile")
    assert re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", begun["user_code"])
    assert (begun["expires_in"], begun["interval"]) == (600, 2)
    assert begun["user_code"] in begun["verification_uri_complete"]
    page = world.http.get(begun["verification_uri_complete"])
    assert begun["user_code"] in page.text
    assert _error(world.poll(begun["device_code"])) == "authorization_pending"
    done = world.decide(begun["user_code"].lower().replace("-", " "), "ada")
    assert "Polyray command line is logged in now" in done.text
    answer = world.poll(begun["device_code"]).json()
    assert (answer["token_type"], answer["expires_in"], answer["refresh_expires_in"]) == ("Bearer", 900, 43_200)
    identity = world.provider.verify(answer["access_token"])
    assert (identity.subject, identity.name, dict(identity.roles)) == ("ada", "Ada L.", {"vision": "admin"})
    issued = world.tokens.exchange(answer["access_token"])
    principal = world.tokens.verify(issued.token)
    assert (principal.subject, principal.tenant, principal.role) == ("ada", "vision", "admin")


def test_claims_are_those_that_keycloak_gives(world: World) -> None:
    answer = world.log_in("bob")
    claims = jwt.decode(answer["access_token"], options={"verify_signature": False})
    assert claims["groups"] == ["/tenants/vision/viewer", "/tenants/speech/member"]
    expected = {"iss": URL, "aud": "polyray", "azp": "polyray-cli", "typ": "Bearer", "preferred_username": "bob"}
    assert expected.items() <= claims.items()
    assert claims["exp"] - claims["iat"] == 900
    id_claims = jwt.decode(answer["id_token"], options={"verify_signature": False})
    assert (id_claims["typ"], id_claims["aud"]) == ("ID", "polyray-cli")


def test_userinfo_tells_the_account_of_an_access_token_and_of_no_other(world: World) -> None:
    answer = world.log_in("ada")
    url = f"{world.oidc}/userinfo"
    seen = world.http.get(url, headers={"Authorization": f"Bearer {answer['access_token']}"})
    assert seen.json() == {
        "sub": "ada",
        "preferred_username": "ada",
        "name": "Ada L.",
        "groups": ["/tenants/vision/admin"],
    }
    for wrong in (answer["id_token"], answer["refresh_token"], "x", ""):
        assert world.http.get(url, headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
    assert world.http.get(url).status_code == 401


@pytest.mark.parametrize("kind", ["id_token", "refresh_token"])
def test_only_an_access_token_can_be_exchanged(world: World, kind: str) -> None:
    with pytest.raises(Unauthenticated):
        world.tokens.exchange(world.log_in("ada")[kind])


def test_polling_too_fast_is_told_to_slow_down(world: World) -> None:
    code = world.begin()["device_code"]
    assert _error(world.poll(code)) == "authorization_pending"
    world.clock.advance(1)
    assert _error(world.poll(code)) == "slow_down"
    world.clock.advance(5)
    assert _error(world.poll(code)) == "authorization_pending"


def test_a_denied_login_is_denied(world: World) -> None:
    begun = world.begin()
    assert "was refused" in world.decide(begun["user_code"], "ada", decision="deny").text
    assert _error(world.poll(begun["device_code"])) == "access_denied"


def test_codes_die_after_ten_minutes(world: World) -> None:
    begun = world.begin()
    world.clock.advance(600)
    assert world.decide(begun["user_code"], "ada").status_code == 400
    assert _error(world.poll(begun["device_code"])) == "expired_token"


def test_a_device_code_is_good_for_one_login_of_its_own_client(world: World) -> None:
    begun = world.begin()
    world.decide(begun["user_code"], "ada")
    assert _error(world.poll(begun["device_code"], "other-client")) == "invalid_client"
    assert world.poll(begun["device_code"]).status_code == 200
    assert _error(world.poll(begun["device_code"])) == "invalid_grant"
    assert world.decide(begun["user_code"], "ada").status_code == 400


def test_a_wrong_password_approves_nothing_and_reads_like_a_wrong_name(world: World) -> None:
    begun = world.begin()
    wrong, absent = world.decide(begun["user_code"], "ada", "nope-nope"), world.decide(begun["user_code"], "nobody")
    assert wrong.status_code == absent.status_code == 400
    assert wrong.text.replace("ada", "X") == absent.text.replace("nobody", "X")
    assert _error(world.poll(begun["device_code"])) == "authorization_pending"


def test_passwords_and_codes_cannot_be_tried_out(world: World) -> None:
    begun = world.begin()
    for _ in range(10):
        assert world.decide(begun["user_code"], "ada", "nope-nope").status_code == 400
    assert world.decide(begun["user_code"], "ada").status_code == 429
    world.clock.advance(301)
    assert world.decide(begun["user_code"], "ada").status_code == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.test"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_another_site_cannot_post_the_form(world: World, headers: dict[str, str]) -> None:
    begun = world.begin()
    assert world.decide(begun["user_code"], "ada", **headers).status_code == 403
    assert _error(world.poll(begun["device_code"])) == "authorization_pending"


def test_the_page_escapes_what_it_is_given_and_loads_nothing(world: World) -> None:
    evil = '"><script>'
    page = world.http.get("/issuer/device", params={"user_code": evil})
    assert "<script" not in page.text
    assert html.escape(evil) in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    again = world.decide(evil, evil, "nope-nope")
    assert "<script" not in again.text


def test_a_refresh_token_is_good_once_and_its_reuse_ends_the_login(world: World) -> None:
    first = world.log_in("ada")["refresh_token"]
    second = world.refresh(first).json()["refresh_token"]
    third = world.refresh(second).json()["refresh_token"]
    assert _error(world.refresh(first)) == "invalid_grant"
    assert _error(world.refresh(third)) == "invalid_grant"


def test_a_login_ends_after_twelve_hours_however_often_it_is_refreshed(world: World) -> None:
    token = world.log_in("ada")["refresh_token"]
    for _ in range(11):
        world.clock.advance(3600)
        token = world.refresh(token).json()["refresh_token"]
    world.clock.advance(3600)
    assert _error(world.refresh(token)) == "invalid_grant"


def test_who_loses_the_account_loses_refresh_and_platform_tokens(world: World) -> None:
    answer = world.log_in("ada")
    issued = world.tokens.exchange(answer["access_token"])
    users = {name: spec for name, spec in PLATFORM["users"].items() if name != "ada"}
    tenants = {"vision": {"members": {"bob": "viewer"}}, "speech": {"members": {"bob": "member"}}}
    world.apply(PLATFORM | {"users": users, "tenants": tenants})
    assert _error(world.refresh(answer["refresh_token"])) == "invalid_grant"
    with pytest.raises(Unauthenticated, match="ended"):
        world.tokens.verify(issued.token)
    begun = world.begin()
    assert world.decide(begun["user_code"], "ada").status_code == 400


def test_who_changes_groups_logs_in_again_and_others_stay(world: World) -> None:
    ada, bob = (world.tokens.exchange(world.log_in("ada")["access_token"]), world.log_in("bob"))
    world.apply(PLATFORM)
    assert world.tokens.verify(ada.token).role == "admin"
    changed = {"vision": {"members": {"ada": "viewer", "bob": "viewer"}}, "speech": {"members": {"bob": "member"}}}
    world.apply(PLATFORM | {"tenants": changed})
    with pytest.raises(Unauthenticated):
        world.tokens.verify(ada.token)
    assert world.refresh(bob["refresh_token"]).status_code == 200
    assert world.tokens.exchange(world.log_in("ada")["access_token"]).principal.role == "viewer"


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"grant_type": DEVICE},
        {"grant_type": "password", "client_id": "polyray-cli", "username": "ada", "password": "ada-password"},
        {"grant_type": DEVICE, "client_id": "polyray-cli"},
        {"grant_type": "refresh_token", "client_id": "polyray-cli", "refresh_token": ""},
        {"grant_type": DEVICE, "client_id": "polyray-cli", "device_code": "x" * 40_000},
    ],
)
def test_a_token_request_that_lacks_something_is_refused_in_oauths_words(world: World, form: dict[str, str]) -> None:
    answer = world.http.post(f"{world.oidc}/token", data=form)
    assert answer.status_code in (400, 401)
    assert set(answer.json()) == {"error", "error_description"}
