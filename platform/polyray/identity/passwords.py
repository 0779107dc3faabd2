"""Passwords of the built-in issuer's accounts, kept as scrypt hashes with their parameters and salt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

#: OWASP's figures for scrypt with 16 MiB: N, r, p.
_COST = (2**14, 8, 5)
_MAX_COST = (2**17, 16, 8)


def hash_password(password: str) -> str:
    """Return `scrypt$N$r$p$salt$hash` for a password, salted afresh."""
    salt = secrets.token_bytes(16)
    n, r, p = _COST
    return "$".join(["scrypt", str(n), str(r), str(p), _text(salt), _text(_scrypt(password, salt, n, r, p))])


def verify_password(password: str, password_hash: str) -> bool:
    """Say whether `password` is the hashed one; a hash that cannot be read fits no password."""
    try:
        scheme, n, r, p, salt, expected = password_hash.split("$")
        cost = int(n), int(r), int(p)
        if scheme != "scrypt" or any(given > limit for given, limit in zip(cost, _MAX_COST, strict=True)):
            return False
        found = _scrypt(password, base64.b64decode(salt, validate=True), *cost)
        return hmac.compare_digest(found, base64.b64decode(expected, validate=True))
    except (ValueError, binascii.Error):
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = 128 * r * (n + p + 2)
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, dklen=32, maxmem=memory + 2**20)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


#: Checked when there is no such account, so that an absent one costs as long as a wrong password.
ABSENT_HASH = hash_password(secrets.token_urlsafe(16))
