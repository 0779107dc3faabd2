"""Logging in with a device code (RFC 8628) at any OIDC issuer, and the platform tokens that follow from it.

discovery -> device authorization -> the user approves in a browser -> access and refresh token
POST /v1/token (RFC 8693): access token -> platform token
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import Code, Invalid, PolyrayError, Unauthenticated, Unavailable
from polyray.sdk.credentials import Credentials, Login, claims_of, expires_ms
from polyray.sdk.transport import Transport, checked_url, open_http

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name, not a token
SCOPE = "openid profile offline_access"
#: A token is renewed when less than this is left of it.
SPARE_MS = 60_000


@dataclass(frozen=True)
class Issuer:
    """The endpoints of an OIDC issuer that logging in needs."""

    url: str
    device_authorization_endpoint: str
    token_endpoint: str


@dataclass(frozen=True)
class DeviceCode:
    """A login under way: the user opens the address and approves the code."""

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    interval_seconds: float
    expires_in_seconds: float


def find_issuer(http: httpx.Client, issuer: str = "") -> str:
    """Return the issuer's URL: the given one, or what the platform names as its own (RFC 9728)."""
    if issuer:
        return checked_url(issuer, field="oidc_issuer")
    answer = _send(http, "GET", "/.well-known/oauth-protected-resource")
    servers = answer.get("authorization_servers")
    if isinstance(servers, list) and servers and isinstance(servers[0], str):
        return checked_url(servers[0], field="authorization_servers")
    return checked_url(f"{str(http.base_url).rstrip('/')}/issuer", field="oidc_issuer")


def discover(http: httpx.Client, issuer: str) -> Issuer:
    """Return the endpoints of an issuer.

    Raises:
        Unavailable: if it does not answer.
        Invalid: if it is no OIDC issuer, names another issuer, or has no device-code login.
    """
    found = _send(http, "GET", f"{issuer}/.well-known/openid-configuration")
    if found.get("issuer") != issuer:
        raise Invalid(
            "its discovery document names another issuer, or none", field="oidc_issuer", hint=f"check {issuer}"
        )
    endpoints = [found.get(name) for name in ("device_authorization_endpoint", "token_endpoint")]
    if not all(isinstance(endpoint, str) for endpoint in endpoints):
        raise Invalid(
            "it has no device-code login", field="oidc_issuer", hint="allow the device authorization grant there"
        )
    device, token = (checked_url(str(endpoint), field="oidc_issuer") for endpoint in endpoints)
    return Issuer(issuer, device, token)


def begin(http: httpx.Client, issuer: Issuer, client_id: str) -> DeviceCode:
    """Ask the issuer for a device code."""
    answer = _send(http, "POST", issuer.device_authorization_endpoint, {"client_id": client_id, "scope": SCOPE})
    try:
        uri = str(answer["verification_uri"])
        return DeviceCode(
            str(answer["device_code"]),
            str(answer["user_code"]),
            uri,
            str(answer.get("verification_uri_complete") or uri),
            max(float(answer.get("interval", 5)), 0.2),
            float(answer.get("expires_in", 600)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(answer, "the issuer gave no device code") from error


def wait_for_approval(
    http: httpx.Client,
    issuer: Issuer,
    client_id: str,
    device: DeviceCode,
    *,
    api_url: str,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Login:
    """Poll until the user has approved.

    Raises:
        Unauthenticated: if the user denies it, or the code expires first.
    """
    clock = clock or SystemClock()
    interval, deadline = device.interval_seconds, clock.monotonic() + device.expires_in_seconds
    form = {"grant_type": DEVICE_GRANT, "device_code": device.device_code, "client_id": client_id}
    while clock.monotonic() < deadline:
        sleep(interval)
        answer = _send(http, "POST", issuer.token_endpoint, form)
        if "access_token" in answer:
            return _login(answer, api_url, issuer.url, client_id, clock)
        match answer.get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                interval += 5
            case "access_denied":
                raise Unauthenticated("access_denied", "the login was denied")
            case "expired_token":
                break
            case _:
                raise _refusal(answer, "the issuer refused the login")
    raise Unauthenticated("expired_token", "the code expired before it was approved")


def refresh(http: httpx.Client, issuer: Issuer, login: Login, clock: Clock | None = None) -> Login:
    """Return a login with a new access token (and refresh token, where the issuer rotates it).

    Raises:
        Unauthenticated: if the login is over.
    """
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}
    answer = _send(http, "POST", issuer.token_endpoint, form)
    if "access_token" not in answer:
        raise Unauthenticated(str(answer.get("error", "refused")), "your login is over")
    fresh = _login(answer, login.api_url, login.issuer, login.client_id, clock or SystemClock())
    return replace(fresh, refresh_token=fresh.refresh_token or login.refresh_token, tenant=login.tenant)


def exchange(
    transport: Transport, access_token: str, *, tenant: str = "", cluster: str = "", ttl_seconds: int | None = None
) -> str:
    """Return a platform token for one tenant (the only one if none is named), for one cluster if named."""
    body: dict[str, Any] = {
        "grant_type": EXCHANGE_GRANT,
        "subject_token": access_token,
        "subject_token_type": ACCESS_TOKEN_TYPE,
    }
    body |= {name: value for name, value in (("tenant", tenant), ("cluster", cluster)) if value}
    if ttl_seconds is not None:
        body["ttl_seconds"] = ttl_seconds
    answer = transport.call("POST", "/v1/token", json=body).json()
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str):
        raise Unavailable("the platform gave no token", hint="check that client and platform have the same version")
    return token


class LoginTokens:
    """A `TokenSource` over the stored login: renews the access token and exchanges it when needed."""

    def __init__(self, credentials: Credentials, *, tenant: str = "", clock: Clock | None = None) -> None:
        self._credentials, self._tenant, self._clock = credentials, tenant, clock or SystemClock()

    def current(self) -> str:
        login = self._login()
        tenant = self._tenant or login.tenant
        token = self._credentials.token(tenant)
        if token is not None and expires_ms(token) > self._clock.now_ms() + SPARE_MS:
            return token
        return self.exchanged(tenant=tenant)

    def renew(self) -> str | None:
        tenant = self._tenant or self._login().tenant
        self._credentials.drop_token(tenant)
        try:
            return self.exchanged(tenant=tenant)
        except PolyrayError:
            return None

    def exchanged(self, *, tenant: str = "", cluster: str = "", ttl_seconds: int | None = None) -> str:
        """Return a new platform token; one for a whole tenant is kept."""
        with self._credentials.locked():
            login = self._fresh_login()
        with open_http(login.api_url) as http:
            token = exchange(
                Transport(http, None),
                login.access_token,
                tenant=tenant or self._tenant or login.tenant,
                cluster=cluster,
                ttl_seconds=ttl_seconds,
            )
        if not cluster and ttl_seconds is None:
            self._credentials.save_token(str(claims_of(token).get("tenant") or ""), token)
        return token

    def _fresh_login(self) -> Login:
        login = self._login()
        if login.access_expires_ms > self._clock.now_ms() + SPARE_MS:
            return login
        if not login.refresh_token:
            raise Unauthenticated("login_over", "your login is over")
        with open_http(login.api_url) as http:
            fresh = refresh(http, discover(http, login.issuer), login, self._clock)
        self._credentials.save(fresh)
        return fresh

    def _login(self) -> Login:
        login = self._credentials.login()
        if login is None:
            raise Unauthenticated("not_logged_in", f"not logged in at {self._credentials.api_url}")
        return login


def _login(answer: dict[str, Any], api_url: str, issuer: str, client_id: str, clock: Clock) -> Login:
    return Login(
        api_url,
        issuer,
        client_id,
        str(answer["access_token"]),
        clock.now_ms() + int(float(answer.get("expires_in", 300)) * 1000),
        str(answer.get("refresh_token") or ""),
    )


def _refusal(answer: dict[str, Any], what: str) -> PolyrayError:
    reason = str(answer.get("error") or "no_reason")
    detail = str(answer.get("error_description") or reason)
    return PolyrayError(Code.UNAUTHENTICATED, f"{what}: {detail}", "check the client id and the issuer")


def _send(http: httpx.Client, method: str, url: str, form: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the JSON answer of an OAuth endpoint; its refusals are answers too. {} for a plain 404."""
    try:
        answer = http.request(method, url, data=form, headers={"accept": "application/json"})
    except httpx.TransportError as error:
        raise Unavailable(
            f"{url} does not answer", hint="start the platform with 'polyray up', or check the address"
        ) from error
    try:
        decoded = answer.json()
    except ValueError:
        decoded = None
    if answer.status_code >= 500:
        raise Unavailable(f"{url} answered with status {answer.status_code}", hint="try again in a moment")
    return decoded if isinstance(decoded, dict) else {}
