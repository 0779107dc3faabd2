"""The built-in OIDC issuer, for a platform without an outside one.

It speaks what Keycloak speaks below a realm (`/.well-known/openid-configuration`,
`/protocol/openid-connect/...`, `/device`), with the same claims, so that moving to Keycloak changes an
address and nothing else. Accounts are `User` rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import jwt
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from polyray.core.clock import Clock
from polyray.core.errors import Unauthenticated
from polyray.identity import device_page
from polyray.identity.access_tokens import AUDIENCE, AccessTokenRules, BuiltInProvider
from polyray.identity.attempts import FailedAttempts
from polyray.identity.devclients import CLI, DEVICE_CODE, REFRESH_TOKEN, Client
from polyray.identity.device_flow import (
    DEVICE_CODE_SECONDS,
    POLL_SECONDS,
    Grant,
    OAuthError,
    begin_device_login,
    open_login,
    redeem_device_code,
    redeem_refresh_token,
    right_password,
)
from polyray.identity.keys import SigningKeys
from polyray.store.engine import Store
from polyray.store.tables import User

ACCESS_SECONDS = 900
SCOPES = ("openid", "profile", "email", "offline_access")
_MAX_FORM_BYTES = 32 * 1024
_NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}


def build_issuer_router(
    *,
    store: Store,
    keys: SigningKeys,
    clock: Clock,
    issuer_url: str,
    clients: Sequence[Client] = (CLI,),
    poll_seconds: float = POLL_SECONDS,
) -> APIRouter:
    """Return the issuer's routes, to be included under the path of `issuer_url`.

    `keys` are those of purpose `issuer`; `issuer_url` is what people's devices reach, such as
    `http://127.0.0.1:8470/issuer`, and is the `iss` of every token.
    """
    by_id = {client.client_id: client for client in clients}
    issuer = _Issuer(store, keys, clock, issuer_url.rstrip("/"), by_id, poll_seconds)
    router = APIRouter(include_in_schema=False)
    oidc = "/protocol/openid-connect"
    router.add_api_route("/.well-known/openid-configuration", issuer.discovery, methods=["GET"])
    router.add_api_route(f"{oidc}/certs", issuer.certs, methods=["GET"])
    router.add_api_route(f"{oidc}/auth/device", issuer.device_authorization, methods=["POST"])
    router.add_api_route(f"{oidc}/token", issuer.token, methods=["POST"])
    router.add_api_route(f"{oidc}/userinfo", issuer.userinfo, methods=["GET", "POST"])
    router.add_api_route("/device", issuer.device_form, methods=["GET"])
    router.add_api_route("/device", issuer.device_decision, methods=["POST"])
    return router


def issuer_rules(issuer_url: str, clients: Sequence[Client] = (CLI,)) -> AccessTokenRules:
    """Return the rules that this issuer's access tokens are verified by."""
    return AccessTokenRules(issuer_url.rstrip("/"), frozenset(client.client_id for client in clients))


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a urlencoded form; one that is given twice counts as not given (RFC 6749, 3.2)."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            return {}
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50, encoding="utf-8", errors="strict")
    except ValueError:
        return {}
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


Form = Annotated[Mapping[str, str], Depends(read_form)]


class _Issuer:
    def __init__(
        self,
        store: Store,
        keys: SigningKeys,
        clock: Clock,
        issuer_url: str,
        clients: Mapping[str, Client],
        poll_seconds: float,
    ) -> None:
        self._store, self._keys, self._clock = store, keys, clock
        self._url, self._clients, self._poll_seconds = issuer_url, clients, poll_seconds
        self._attempts = FailedAttempts(clock)
        self._provider = BuiltInProvider(keys, issuer_rules(issuer_url, tuple(clients.values())), clock)

    def discovery(self) -> dict[str, Any]:
        oidc = f"{self._url}/protocol/openid-connect"
        return {
            "issuer": self._url,
            "jwks_uri": f"{oidc}/certs",
            "token_endpoint": f"{oidc}/token",
            "device_authorization_endpoint": f"{oidc}/auth/device",
            "userinfo_endpoint": f"{oidc}/userinfo",
            "grant_types_supported": [DEVICE_CODE, REFRESH_TOKEN],
            "response_types_supported": ["none"],
            "subject_types_supported": ["public"],
            "scopes_supported": list(SCOPES),
            "token_endpoint_auth_methods_supported": ["none"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "claims_supported": ["iss", "sub", "aud", "exp", "iat", "azp", "preferred_username", "name", "groups"],
        }

    def certs(self) -> dict[str, Any]:
        return self._keys.jwks()

    def device_authorization(self, form: Form) -> Response:
        try:
            client = self._client(form, DEVICE_CODE)
        except OAuthError as error:
            return _refused(error)
        with self._store.write() as session:
            login = begin_device_login(session, client.client_id, _scope(form), self._clock.now_ms())
        page = f"{self._url}/device"
        return JSONResponse(
            {
                "device_code": login.device_code,
                "user_code": login.user_code,
                "verification_uri": page,
                "verification_uri_complete": f"{page}?user_code={login.user_code}",
                "expires_in": DEVICE_CODE_SECONDS,
                "interval": self._poll_seconds,
            },
            headers=_NO_STORE,
        )

    def token(self, form: Form) -> Response:
        now_ms = self._clock.now_ms()
        try:
            grant_type = form.get("grant_type", "")
            client = self._client(form, grant_type)
            if grant_type == DEVICE_CODE:
                code = form.get("device_code", "")
                grant = redeem_device_code(self._store, client.client_id, code, now_ms, self._poll_seconds)
            else:
                grant = redeem_refresh_token(self._store, client.client_id, form.get("refresh_token", ""), now_ms)
        except OAuthError as error:
            return _refused(error)
        return JSONResponse(self._tokens(client, grant, now_ms), headers=_NO_STORE)

    def userinfo(self, request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise Unauthenticated("no_credential", "send an access token as a bearer token")
            identity = self._provider.verify(token.strip())
            with self._store.read() as session:
                user = session.get(User, identity.subject)
            if user is None or user.disabled:
                raise Unauthenticated("account_disabled", "the account is disabled")
        except Unauthenticated as error:
            challenge = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
            return JSONResponse(
                {"error": "invalid_token", "error_description": error.message}, 401, _NO_STORE | challenge
            )
        return JSONResponse({"sub": user.name, **_profile(user)}, headers=_NO_STORE)

    def device_form(self, user_code: str = "") -> Response:
        return HTMLResponse(
            device_page.form_page(action=f"{self._url}/device", user_code=user_code[:16]), headers=device_page.HEADERS
        )

    def device_decision(self, request: Request, form: Form) -> Response:
        user_code, username = form.get("user_code", "")[:16], form.get("username", "")[:40]
        if not _same_site(request):
            return self._again(user_code, username, "open this page yourself, not through another site", 403)
        address = request.client.host if request.client else ""
        # Counted by address too: nobody can lock another person out from elsewhere.
        attempt = f"{address} {username}"
        if self._attempts.blocked(attempt):
            return self._again(user_code, username, "too many attempts; try again in five minutes", 429)
        approved = form.get("decision") == "approve"
        if not right_password(self._store, username, form.get("password", "")):
            return self._failed(attempt, user_code, username, "wrong user name or password")
        with self._store.write() as session:
            login = open_login(session, user_code, self._clock.now_ms())
            if login is not None:
                login.denied, login.user = not approved, username if approved else None
        if login is None:
            return self._failed(attempt, user_code, username, "this code is not known, was used, or has expired")
        client = self._clients.get(login.client_id)
        page = device_page.done_page(approved=approved, client_name=client.name if client else login.client_id)
        return HTMLResponse(page, headers=device_page.HEADERS)

    def _failed(self, attempt: str, user_code: str, username: str, why: str) -> Response:
        self._attempts.failed(attempt)
        return self._again(user_code, username, why, 400)

    def _again(self, user_code: str, username: str, error: str, status: int) -> Response:
        page = device_page.form_page(action=f"{self._url}/device", user_code=user_code, username=username, error=error)
        return HTMLResponse(page, status, headers=device_page.HEADERS)

    def _client(self, form: Mapping[str, str], grant_type: str) -> Client:
        client = self._clients.get(form.get("client_id", ""))
        if client is None:
            raise OAuthError("invalid_client", "no such client", 401)
        if grant_type not in (DEVICE_CODE, REFRESH_TOKEN):
            raise OAuthError("unsupported_grant_type", "device_code and refresh_token are supported")
        if grant_type not in client.grants:
            raise OAuthError("unauthorized_client", "this client may not log in so")
        return client

    def _tokens(self, client: Client, grant: Grant, now_ms: int) -> dict[str, Any]:
        now = now_ms // 1000
        common = {
            "iss": self._url,
            "sub": grant.user.name,
            "azp": client.client_id,
            "sid": grant.sid,
            "iat": now,
            "nbf": now,
            "exp": now + ACCESS_SECONDS,
        }
        answer = {
            "access_token": self._signed(
                common | {"aud": AUDIENCE, "typ": "Bearer", "scope": grant.scope} | _profile(grant.user)
            ),
            "expires_in": ACCESS_SECONDS,
            "refresh_token": grant.refresh_token,
            "refresh_expires_in": (grant.refresh_expires_ms - now_ms) // 1000,
            "token_type": "Bearer",
            "not-before-policy": 0,
            "session_state": grant.sid,
            "scope": grant.scope,
        }
        if "openid" in grant.scope.split():
            answer["id_token"] = self._signed(common | {"aud": client.client_id, "typ": "ID"} | _profile(grant.user))
        return answer

    def _signed(self, claims: dict[str, Any]) -> str:
        key = self._keys.signing()
        return jwt.encode(
            claims | {"jti": secrets.token_hex(16)}, key.private, algorithm="RS256", headers={"kid": key.kid}
        )


def _profile(user: User) -> dict[str, Any]:
    return {"preferred_username": user.name, "name": user.display_name, "groups": list(user.groups)}


def _scope(form: Mapping[str, str]) -> str:
    asked = form.get("scope", "openid profile").split()
    return " ".join(scope for scope in SCOPES if scope in asked)


def _same_site(request: Request) -> bool:
    """Say whether a post came from our own page (or from no browser): what browsers say cannot be forged by a site."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _refused(error: OAuthError) -> Response:
    return JSONResponse({"error": error.error, "error_description": error.description}, error.status, headers=_NO_STORE)
