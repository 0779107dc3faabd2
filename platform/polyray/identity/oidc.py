"""Access tokens of any OIDC issuer: discovery, its keys, and how long to live without it.

The issuer is trusted to say who somebody is, and for nothing else: answers are bounded in size and time,
redirects are not followed, and its keys are kept while it is away. A key that it withdraws dies at the
next refresh; a `kid` that nobody knows makes one refresh in 30 seconds at most, so that a flood of
made-up ids costs the issuer nothing.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from polyray.core.clock import Clock
from polyray.core.errors import PolyrayError, Unavailable
from polyray.identity.access_tokens import AccessTokenRules, read_access_token
from polyray.identity.provider import Identity

log = structlog.get_logger(__name__)

#: Fixed, and tied to the type of key: the token only picks among them.
ALGORITHMS = ("RS256", "PS256", "ES256")
_ALGORITHMS_OF = {"RSA": ("RS256", "PS256"), "EC": ("ES256",)}

REFRESH_SECONDS = 600.0
UNKNOWN_KID_SECONDS = 30.0
#: Last good keys are trusted so long without hearing from the issuer.
MAX_AGE_SECONDS = 24 * 3600.0
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 256 * 1024
_MAX_KEYS = 100


@dataclass(frozen=True)
class _Keys:
    by_kid: dict[str, jwt.PyJWK] = field(default_factory=dict)
    #: Monotonic seconds; None when none were ever had.
    fetched: float | None = None
    tried: float | None = None


class OidcProvider:
    """Verifies access tokens of one outside issuer. Safe for use by many threads."""

    def __init__(self, rules: AccessTokenRules, clock: Clock, http: httpx.Client | None = None) -> None:
        self._rules = rules
        self._clock = clock
        self._http = http or httpx.Client(timeout=_TIMEOUT_SECONDS, follow_redirects=False, trust_env=False)
        self._keys = _Keys()
        self._refreshing = threading.Lock()

    def verify(self, token: str) -> Identity:
        return read_access_token(token, self._key_for, ALGORITHMS, self._rules, self._clock.now_ms() // 1000)

    def _key_for(self, kid: str, algorithm: str) -> Any:
        keys = self._fresh(kid)
        if keys.fetched is None:
            raise Unavailable("the issuer does not give its keys now", hint="try again; tell the operator if it lasts")
        key = keys.by_kid.get(kid)
        return key.key if key is not None and algorithm in _ALGORITHMS_OF.get(key.key_type or "", ()) else None

    def _fresh(self, kid: str) -> _Keys:
        """Return the keys, refreshed first where that is due: one refresh at a time, others use what there is."""
        if not _due(self._keys, kid, self._clock.monotonic()):
            return self._usable()
        # Whoever has no keys at all waits for the refresh that is under way.
        with_lock = self._refreshing.acquire(blocking=self._keys.fetched is None)
        if with_lock:
            try:
                if _due(self._keys, kid, self._clock.monotonic()):
                    self._refresh()
            finally:
                self._refreshing.release()
        return self._usable()

    def _usable(self) -> _Keys:
        keys = self._keys
        too_old = keys.fetched is not None and self._clock.monotonic() - keys.fetched > MAX_AGE_SECONDS
        return _Keys(tried=keys.tried) if too_old else keys

    def _refresh(self) -> None:
        tried = self._clock.monotonic()
        try:
            found = _parse_jwks(self._get_json(self._jwks_uri()))
            self._keys = _Keys(found, self._clock.monotonic(), tried)
        except (httpx.HTTPError, PolyrayError, ValueError, RecursionError) as error:
            self._keys = _Keys(self._keys.by_kid, self._keys.fetched, tried)
            log.warning("issuer_keys_not_refreshed", issuer=self._rules.issuer, error=str(error)[:200])

    def _jwks_uri(self) -> str:
        document = self._get_json(f"{self._rules.issuer}/.well-known/openid-configuration")
        if document.get("issuer") != self._rules.issuer:
            raise ValueError("the discovery document is of another issuer")
        uri = document.get("jwks_uri")
        if not isinstance(uri, str) or not _safe(uri, self._rules.issuer):
            raise ValueError("the address of the issuer's keys is no https address")
        return uri

    def _get_json(self, url: str) -> dict[str, Any]:
        deadline = self._clock.monotonic() + _TIMEOUT_SECONDS
        body = b""
        with self._http.stream("GET", url, headers={"Accept": "application/json"}) as response:
            if response.status_code != 200:
                raise ValueError(f"the issuer answered {response.status_code}")
            for chunk in response.iter_bytes(16 * 1024):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError("the issuer's answer is too large")
                if self._clock.monotonic() > deadline:
                    raise ValueError("the issuer's answer takes too long")
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError("the issuer's answer is no JSON object")
        return document


def _due(keys: _Keys, kid: str, now: float) -> bool:
    since_try = float("inf") if keys.tried is None else now - keys.tried
    if since_try < UNKNOWN_KID_SECONDS:
        return False
    if keys.fetched is None or kid not in keys.by_kid:
        return True
    return now - keys.fetched >= REFRESH_SECONDS


def _parse_jwks(document: dict[str, Any]) -> dict[str, jwt.PyJWK]:
    """Return the usable public keys; those that cannot be read, or that are secrets, are passed over."""
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
        raise ValueError("the issuer's keys are no list, or too many")
    keys: dict[str, jwt.PyJWK] = {}
    for jwk in listed:
        if not isinstance(jwk, dict) or not isinstance(jwk.get("kid"), str) or jwk.get("use", "sig") != "sig":
            continue
        public = {name: value for name, value in jwk.items() if name in ("kty", "n", "e", "crv", "x", "y", "kid")}
        if public.get("kty") not in _ALGORITHMS_OF or public.get("crv", "P-256") != "P-256":
            continue
        try:
            keys[jwk["kid"]] = jwt.PyJWK(public)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
    if not keys:
        raise ValueError("the issuer lists no key that can be used")
    return keys


def _safe(uri: str, issuer: str) -> bool:
    """Say whether keys may be had from there: by https, or by http from the very host of an http issuer."""
    parts, own = urlsplit(uri), urlsplit(issuer)
    return parts.scheme == "https" or (parts.scheme == own.scheme == "http" and parts.netloc == own.netloc)
