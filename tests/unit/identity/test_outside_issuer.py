"""T02, T13: an outside issuer that is good, down, slow, huge, or lies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from polyray.core.clock import VirtualClock
from polyray.core.errors import Unauthenticated, Unavailable
from polyray.identity.access_tokens import AccessTokenRules
from polyray.identity.oidc import OidcProvider

ISSUER = "https://keycloak.test/realms/polyray"
RULES = AccessTokenRules(ISSUER, frozenset({"polyray-cli"}))
FIRST = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECOND = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """An issuer whose answers can be spoilt; it counts what it is asked."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.keys: dict[str, Any] = {"first": FIRST}
        self.extra: list[dict[str, Any]] = []
        self.fetches = 0
        self.spoil: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
        self.provider = OidcProvider(RULES, self.clock, httpx.Client(transport=httpx.MockTransport(self._answer)))

    def token(self, kid: str = "first", algorithm: str = "RS256", key: Any = None, **changes: Any) -> str:
        now = self.clock.now_ms() // 1000
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "sub": "4f0c",
            "aud": ["polyray", "account"],
            "azp": "polyray-cli",
            "typ": "Bearer",
            "iat": now,
            "exp": now + 300,
            "preferred_username": "ada",
            "groups": ["/tenants/vision/admin"],
        }
        claims = {name: value for name, value in (claims | changes).items() if value is not None}
        return jwt.encode(claims, key or self.keys[kid], algorithm=algorithm, headers={"kid": kid})

    def reason(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as caught:
            self.provider.verify(token)
        return caught.value.reason

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/openid-configuration"):
            spoilt = self.spoil(request)
            return spoilt or httpx.Response(200, json={"issuer": ISSUER, "jwks_uri": f"{ISSUER}/certs"})
        self.fetches += 1
        listed = [self._jwk(kid, key) for kid, key in self.keys.items()]
        return self.spoil(request) or httpx.Response(200, json={"keys": listed + self.extra})

    @staticmethod
    def _jwk(kid: str, key: Any) -> dict[str, Any]:
        if isinstance(key, rsa.RSAPrivateKey):
            return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}
        return {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


def test_an_access_token_of_keycloaks_shape_says_who_it_is(issuer: Issuer) -> None:
    identity = issuer.provider.verify(issuer.token())
    assert (identity.subject, identity.username, dict(identity.roles)) == ("4f0c", "ada", {"vision": "admin"})
    for _ in range(20):
        issuer.provider.verify(issuer.token())
    assert issuer.fetches == 1


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("bad_issuer", {"iss": "https://keycloak.test/realms/other"}),
        ("bad_issuer", {"iss": None}),
        ("bad_type", {"typ": "ID"}),
        ("bad_type", {"typ": "Refresh"}),
        ("bad_type", {"typ": None}),
        ("bad_audience", {"aud": "account"}),
        ("bad_audience", {"aud": None}),
        ("bad_audience", {"aud": ["polyray2"]}),
        ("bad_client", {"azp": "evil-client"}),
        ("bad_client", {"azp": None}),
        ("token_expired", {"exp": 1}),
        ("bad_claims", {"exp": None}),
        ("bad_claims", {"exp": "9999999999"}),
        ("bad_claims", {"iat": None}),
        ("bad_claims", {"sub": None}),
        ("bad_claims", {"groups": "all"}),
        ("token_not_yet_valid", {"nbf": 10**11}),
    ],
)
def test_a_token_that_breaks_a_rule_is_refused_by_its_name(
    issuer: Issuer, reason: str, changes: dict[str, Any]
) -> None:
    assert issuer.reason(issuer.token(**changes)) == reason


def test_the_algorithm_must_fit_the_type_of_the_key(issuer: Issuer) -> None:
    issuer.keys["curve"] = CURVE
    issuer.provider.verify(issuer.token("curve", "ES256"))
    issuer.provider.verify(issuer.token("first", "PS256"))
    assert issuer.reason(issuer.token("curve", "RS256", key=FIRST)) == "unknown_kid"
    assert issuer.reason(issuer.token("first", "RS512")) == "bad_alg"
    secret = "x" * 64
    issuer.extra = [{"kty": "oct", "k": "eHh4eHh4", "kid": "shared", "use": "sig"}]
    issuer.clock.advance(600)
    assert issuer.reason(issuer.token("shared", "HS256", key=secret)) == "bad_alg"


def test_a_new_key_is_found_by_its_first_token_and_a_withdrawn_one_dies_at_the_refresh(issuer: Issuer) -> None:
    old = issuer.token(exp=10**11)
    issuer.provider.verify(old)
    issuer.keys = {"second": SECOND}
    issuer.clock.advance(31)
    issuer.provider.verify(issuer.token("second"))
    assert issuer.reason(old) == "unknown_kid"


def test_a_flood_of_unknown_kids_costs_one_fetch_in_thirty_seconds(issuer: Issuer) -> None:
    issuer.provider.verify(issuer.token())
    issuer.clock.advance(31)
    for number in range(1000):
        assert issuer.reason(issuer.token(f"made-up-{number}", key=SECOND)) == "unknown_kid"
    assert issuer.fetches == 2


def test_many_at_once_make_one_fetch(issuer: Issuer) -> None:
    token = issuer.token()
    verified: list[str] = []
    threads = [
        threading.Thread(target=lambda: verified.append(issuer.provider.verify(token).subject)) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verified) == 16
    assert issuer.fetches == 1


def _huge(_request: httpx.Request) -> httpx.Response:
    def chunks() -> Iterator[bytes]:
        while True:
            yield b" " * 65536

    return httpx.Response(200, content=chunks())


def _down(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


SPOILT: dict[str, Callable[[httpx.Request], httpx.Response | None]] = {
    "down": _down,
    "error": lambda _: httpx.Response(500),
    "html": lambda _: httpx.Response(200, html="<html>"),
    "huge": _huge,
    "a list": lambda _: httpx.Response(200, json=[]),
    "no keys": lambda r: httpx.Response(200, json={"keys": []}) if r.url.path.endswith("certs") else None,
    "deep": lambda _: httpx.Response(200, content="[" * 100_000),
    "redirect": lambda _: httpx.Response(302, headers={"Location": "http://169.254.169.254/"}),
    "another issuer": lambda r: None if r.url.path.endswith("certs") else httpx.Response(200, json={"issuer": "x"}),
    "keys over http": lambda r: (
        None
        if r.url.path.endswith("certs")
        else httpx.Response(200, json={"issuer": ISSUER, "jwks_uri": "http://keycloak.test/certs"})
    ),
    "broken keys": lambda r: (
        httpx.Response(200, json={"keys": [{"kty": "RSA", "kid": "first", "n": "!", "e": 1}, 7]})
        if r.url.path.endswith("certs")
        else None
    ),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_last_good_keys_are_used_while_the_issuer_is_away_for_a_day(
    issuer: Issuer, spoil: Callable[[httpx.Request], httpx.Response | None]
) -> None:
    issuer.provider.verify(issuer.token())
    issuer.spoil = spoil
    issuer.clock.advance(3600)
    issuer.provider.verify(issuer.token())
    issuer.clock.advance(24 * 3600)
    with pytest.raises(Unavailable):
        issuer.provider.verify(issuer.token())
    issuer.spoil = lambda request: None
    issuer.clock.advance(31)
    issuer.provider.verify(issuer.token())


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_without_any_keys_it_is_the_issuer_that_is_blamed(
    issuer: Issuer, spoil: Callable[[httpx.Request], httpx.Response | None]
) -> None:
    issuer.spoil = spoil
    with pytest.raises(Unavailable, match="issuer"):
        issuer.provider.verify(issuer.token())


def test_a_claim_that_is_there_twice_is_refused(issuer: Issuer) -> None:
    """Readers differ on which of two counts, so neither does."""
    payload = json.dumps(jwt.decode(issuer.token(), options={"verify_signature": False}))
    twice = payload[:-1] + ', "sub": "root"}'
    token = jwt.PyJWS().encode(twice.encode(), FIRST, algorithm="RS256", headers={"kid": "first"})
    assert issuer.reason(token) == "malformed"
