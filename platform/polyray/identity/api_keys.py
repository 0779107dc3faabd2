"""API keys for inference: shown once, stored hashed, scoped to one service or to all of a tenant."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.errors import Invalid, NotFound, Unauthenticated
from polyray.core.ids import new_id, parse_slug
from polyray.store.tables import ApiKey

PREFIX = "pr_"
DEFAULT_TTL_DAYS = 90
MAX_TTL_DAYS = 365
_DAY_MS = 86_400_000
_SHAPE = re.compile(r"pr_[A-Za-z0-9_-]{40}")


@dataclass(frozen=True)
class NewKey:
    key_id: str
    #: The key itself: nobody can read it again later.
    key: str = field(repr=False)
    expires_ms: int


def make_key(
    session: Session,
    *,
    tenant: str,
    name: str,
    created_by: str,
    now_ms: int,
    service: str | None = None,
    ttl_days: int | None = None,
) -> NewKey:
    """Store a new key for the services of a tenant, or for one of them.

    Raises:
        Invalid: naming the field.
    """
    parse_slug(name, field="name")
    if service is not None:
        parse_slug(service, field="service")
    days = DEFAULT_TTL_DAYS if ttl_days is None else ttl_days
    if not 1 <= days <= MAX_TTL_DAYS:
        raise Invalid(f"a key cannot live {days} days", field="ttl_days", hint=f"1 to {MAX_TTL_DAYS}")
    new = NewKey(new_id("key"), PREFIX + secrets.token_urlsafe(30), now_ms + days * _DAY_MS)
    session.add(
        ApiKey(
            key_id=new.key_id,
            key_hash=hash_key(new.key),
            tenant=tenant,
            name=name,
            service=service,
            created_by=created_by,
            revoked_ms=None,
            expires_ms=new.expires_ms,
            created_ms=now_ms,
        )
    )
    return new


def hash_key(key: str) -> str:
    """Return a key's SHA-256 in upper-case hexadecimal, as the gateway computes it. 240 random bits need no salt."""
    return hashlib.sha256(key.encode()).hexdigest().upper()


def verify_key(session: Session, key: str, *, service: str, now_ms: int) -> ApiKey:
    """Return the row of a key that opens `service` now.

    Raises:
        Unauthenticated: reason `unknown_api_key` (a revoked one reads the same) or `api_key_expired`.
        NotFound: if it is a key to other services only.
    """
    row = None
    if _SHAPE.fullmatch(key):
        row = session.scalar(select(ApiKey).where(ApiKey.key_hash == hash_key(key)))
    if row is None or row.revoked_ms is not None:
        raise Unauthenticated("unknown_api_key", "this API key is not known", hint="make one with 'polyray key create'")
    if row.expires_ms <= now_ms:
        raise Unauthenticated("api_key_expired", "this API key has expired", hint="make one with 'polyray key create'")
    if row.service is not None and row.service != service:
        raise NotFound("service", service)
    return row


def revoke_key(session: Session, *, tenant: str, key_id: str, now_ms: int) -> None:
    """Revoke a tenant's key for good. Idempotent.

    Raises:
        NotFound: if the tenant has no such key.
    """
    row = session.get(ApiKey, key_id)
    if row is None or row.tenant != tenant:
        raise NotFound("key", key_id)
    if row.revoked_ms is None:
        row.revoked_ms = now_ms


def live_keys(session: Session, now_ms: int) -> tuple[ApiKey, ...]:
    """Return the keys that open something now: what the gateway must know."""
    living = select(ApiKey).where(ApiKey.revoked_ms.is_(None), ApiKey.expires_ms > now_ms).order_by(ApiKey.key_id)
    return tuple(session.scalars(living))
