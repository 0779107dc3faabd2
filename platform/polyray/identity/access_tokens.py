"""The rules that an issuer's access token must meet, whichever issuer it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyray.core.clock import Clock
from polyray.core.errors import Unauthenticated
from polyray.identity.jws import KeyFor, check_times, read_signed
from polyray.identity.keys import SigningKeys
from polyray.identity.provider import Identity, roles_of

#: What every token for this platform must name in `aud`.
AUDIENCE = "polyray"


@dataclass(frozen=True)
class AccessTokenRules:
    issuer: str
    #: Clients (`azp`) whose tokens are taken.
    client_ids: frozenset[str]
    audience: str = AUDIENCE


def read_access_token(
    token: str, key_for: KeyFor, algorithms: tuple[str, ...], rules: AccessTokenRules, now_seconds: int
) -> Identity:
    """Return the identity in an access token.

    Raises:
        Unauthenticated: naming the first rule that it breaks.
    """
    claims = read_signed(token, key_for, algorithms)
    if claims.get("iss") != rules.issuer:
        raise Unauthenticated("bad_issuer", "the token is of another issuer")
    # ID and refresh tokens are signed with the same keys: they say what they are in `typ`.
    if claims.get("typ") != "Bearer":
        raise Unauthenticated("bad_type", "this is not an access token")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if rules.audience not in audiences:
        raise Unauthenticated("bad_audience", "the token is for another audience")
    if claims.get("azp") not in rules.client_ids:
        raise Unauthenticated("bad_client", "the token was made for another client")
    check_times(claims, now_seconds, required=("exp", "iat"))
    return _identity(claims)


def _identity(claims: dict[str, Any]) -> Identity:
    subject, groups = claims.get("sub"), claims.get("groups", [])
    if not isinstance(subject, str) or not 1 <= len(subject) <= 255 or not isinstance(groups, list):
        raise Unauthenticated("bad_claims", "the token names no subject, or its groups are no list")
    roles, operator = roles_of(groups)
    username, name = claims.get("preferred_username"), claims.get("name")
    username = username if isinstance(username, str) and username else subject
    name = name if isinstance(name, str) and name else username
    return Identity(claims["iss"], subject, username[:255], name[:255], roles, operator)


class BuiltInProvider:
    """Verifies tokens of the built-in issuer with its keys at hand: the same rules, no HTTP to ourselves."""

    def __init__(self, keys: SigningKeys, rules: AccessTokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock

    def verify(self, token: str) -> Identity:
        def key_for(kid: str, _algorithm: str) -> Any:
            return self._keys.public_key(kid)

        return read_access_token(token, key_for, ("RS256",), self._rules, self._clock.now_ms() // 1000)
