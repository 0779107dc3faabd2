"""The strict reading of a signed token (JWS in compact form), shared by all that verify one.

Nothing of the token chooses how it is checked: the algorithms are fixed by the caller, the key is
picked from known ones by `kid` alone, and `jku`, `jwk`, `x5u` are never followed (RFC 8725).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jwt

from polyray.core.errors import Unauthenticated

MAX_TOKEN_CHARACTERS = 16 * 1024
#: Clocks may differ by so much: for `nbf` and `iat` only, never to lengthen a token's life.
LEEWAY_SECONDS = 10
#: The largest time that is read; a later one is a mistake or a trick.
_MAX_TIME = 10**12
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

#: Signatures alone: PyJWT's own reading takes "1799999999" and 1.5 as times, so claims are checked here.
_JWS = jwt.PyJWS()

#: Returns the key for (kid, algorithm), or None if there is none that may be used so.
KeyFor = Callable[[str, str], Any]


def read_signed(token: str, key_for: KeyFor, algorithms: Sequence[str]) -> dict[str, Any]:
    """Return the claims of a token whose signature holds. The claims themselves are not yet checked.

    Raises:
        Unauthenticated: with reason `malformed`, `bad_alg`, `unknown_kid` or `bad_signature`.
    """
    if len(token) > MAX_TOKEN_CHARACTERS or _COMPACT.fullmatch(token) is None:
        raise Unauthenticated("malformed", "this is not a token")
    header = _object(_decoded(token.partition(".")[0]), "header")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms or "crit" in header or "b64" in header:
        raise Unauthenticated("bad_alg", "the token is not signed in a way that is accepted here")
    key = key_for(kid, algorithm) if isinstance(kid, str) else None
    if key is None:
        raise Unauthenticated("unknown_kid", "the token is signed with a key that is not known here")
    try:
        payload = _JWS.decode(token, key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError) as error:
        raise Unauthenticated("bad_signature", "the token's signature does not hold") from error
    return _object(payload, "claims")


def _decoded(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error as error:
        raise Unauthenticated("malformed", "this is not a token") from error


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Unauthenticated("malformed", f"the token's {what} cannot be read") from error
    if not isinstance(parsed, dict):
        raise Unauthenticated("malformed", f"the token's {what} is no object")
    return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    claims = dict(pairs)
    if len(claims) != len(pairs):
        raise ValueError("a claim is there twice: readers would differ on which one counts")
    return claims


def check_times(claims: dict[str, Any], now_seconds: int, required: Sequence[str]) -> None:
    """Hold `exp`, `nbf` and `iat` against the clock; those in `required` must be there, as whole numbers.

    Raises:
        Unauthenticated: with reason `bad_claims`, `token_expired` or `token_not_yet_valid`.
    """
    for name in ("exp", "nbf", "iat"):
        if name not in claims and name not in required:
            continue
        value = claims.get(name)
        if type(value) is not int or not 0 <= value < _MAX_TIME:
            raise Unauthenticated("bad_claims", f"the token's '{name}' is missing or no time")
    if claims["exp"] <= now_seconds:
        raise Unauthenticated("token_expired", "the token has expired")
    for name in ("nbf", "iat"):
        if claims.get(name, 0) > now_seconds + LEEWAY_SECONDS:
            raise Unauthenticated("token_not_yet_valid", "the token is not valid yet; a clock may be wrong")
