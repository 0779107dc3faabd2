"""Who one is, and the exchange of a login for a platform token."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyray.api.deps import Caller, Given, guarded_router, may, public
from polyray.api.problems import from_validation
from polyray.api.views import TokenView, WhoView
from polyray.core.errors import Invalid
from polyray.core.ids import is_id, parse_slug, shown
from polyray.identity.policy import Action, allowed

router = guarded_router("", "identity")

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
SUBJECT_TYPE = "urn:ietf:params:oauth:token-type:access_token"


class Exchange(BaseModel):
    """RFC 8693's request, as a form or as JSON."""

    model_config = ConfigDict(extra="forbid")

    grant_type: str = EXCHANGE
    subject_token: str = Field(min_length=1, max_length=16_384, repr=False)
    subject_token_type: str = SUBJECT_TYPE
    #: The only tenant that the login has a role in, without.
    tenant: str | None = None
    #: The one cluster that the gateway routes the token to.
    cluster: str | None = None
    ttl_seconds: int | None = None


class ProtectedResource(BaseModel):
    """RFC 9728: where to log in for this API."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str] = ["header"]


async def read_exchange(request: Request) -> Exchange:
    content = await request.body()
    try:
        if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
            given: Any = json.loads(content)
        else:
            given = dict(parse_qsl(content.decode(), max_num_fields=20, keep_blank_values=False))
        if not isinstance(given, dict):
            raise ValueError("no mapping")
        return Exchange.model_validate(given)
    except ValidationError as error:
        raise from_validation(error.errors(include_input=False)) from None
    except (ValueError, RecursionError):
        raise Invalid("the body is neither a form nor JSON", field="body", hint="send subject_token=…") from None


@router.post(
    "/v1/token",
    openapi_extra={
        **public()["openapi_extra"],
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": Exchange.model_json_schema()}
                for kind in ("application/json", "application/x-www-form-urlencoded")
            },
        },
    },
)
def token(services: Given, body: Annotated[Exchange, Depends(read_exchange)]) -> TokenView:
    """Exchange an access token of the issuer for a platform token (RFC 8693)."""
    if body.grant_type != EXCHANGE:
        raise Invalid(f"{shown(body.grant_type)} is not done here", field="grant_type", hint=f"send {EXCHANGE}")
    if body.subject_token_type != SUBJECT_TYPE:
        raise Invalid("only access tokens are exchanged", field="subject_token_type", hint=f"send {SUBJECT_TYPE}")
    if body.cluster is not None and not is_id(body.cluster):
        raise Invalid(f"{shown(body.cluster)} is not a cluster's id", field="cluster", hint="such as clu-7k2m9q4v8x0c")
    issued = services.tokens.exchange(
        body.subject_token,
        tenant=None if body.tenant is None else parse_slug(body.tenant, field="tenant"),
        cluster=body.cluster,
        ttl_seconds=body.ttl_seconds,
    )
    return TokenView(
        access_token=issued.token,
        issued_token_type=SUBJECT_TYPE,
        expires_in=issued.expires_in_seconds,
        tenant=issued.principal.tenant,
        role=issued.principal.role,
    )


@router.get("/v1/whoami", **may(Action.WHOAMI))
def whoami(caller: Caller) -> WhoView:
    """Say who the token names, and what its role may do."""
    return WhoView(
        subject=caller.subject,
        tenant=caller.tenant,
        role=caller.role,
        sid=caller.sid,
        cluster=caller.cluster,
        expires_ms=caller.expires_ms,
        actions=[action.value for action in Action if allowed(caller.role, action)],
    )


@router.get("/.well-known/oauth-protected-resource", **public())
def protected_resource(services: Given) -> ProtectedResource:
    """Say which issuer to log in at."""
    api_url = services.endpoints().api_url
    return ProtectedResource(
        resource=api_url, authorization_servers=[services.settings.oidc_issuer or f"{api_url}/issuer"]
    )
