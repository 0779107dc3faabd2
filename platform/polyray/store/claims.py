"""Claims: who may act on a key, for how long, and with which fencing number.

Two control planes may run; the one that holds the claim `leader` acts. Every new holder gets a higher
epoch, and whoever writes with an older one is refused: a paused leader that wakes does no harm.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.orm import Session

from polyray.core.errors import Conflict
from polyray.store.tables import Claim


class Held(NamedTuple):
    owner: str
    epoch: int
    expires_ms: int


def take(session: Session, key: str, owner: str, *, now_ms: int, ttl_ms: int) -> int | None:
    """Take or renew the claim on `key` and return its epoch; None while somebody else holds it."""
    claim = session.get(Claim, key)
    if claim is None:
        session.add(Claim(key=key, owner=owner, epoch=1, expires_ms=now_ms + ttl_ms))
        return 1
    if claim.owner != owner:
        if now_ms < claim.expires_ms:
            return None
        claim.owner, claim.epoch = owner, claim.epoch + 1
    claim.expires_ms = now_ms + ttl_ms
    return claim.epoch


def held(session: Session, key: str) -> Held | None:
    """Return the claim as it was taken or renewed last, whether or not it has expired."""
    claim = session.get(Claim, key)
    return None if claim is None else Held(claim.owner, claim.epoch, claim.expires_ms)


def release(session: Session, key: str, owner: str, *, now_ms: int) -> None:
    """Give the claim up, so that the next holder need not wait for it to expire."""
    claim = session.get(Claim, key)
    if claim is not None and claim.owner == owner:
        claim.expires_ms = now_ms


def require(session: Session, key: str, epoch: int) -> None:
    """Refuse to go on unless `epoch` is the claim's newest.

    Raises:
        Conflict: if somebody else took the claim since.
    """
    claim = session.get(Claim, key)
    if claim is None or claim.epoch != epoch:
        raise Conflict(f"claim {key} has passed to another holder", hint="nothing was written; the new holder goes on")
