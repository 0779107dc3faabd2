"""The key epoch: a moment before which no signing key counts, kept in the database that the keys sign for.

A restored database does not know which sessions were ended since its backup. So it comes with a higher epoch:
whatever was signed before is dead, on every machine that works with this database, from its first read on.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from polyray.store.tables import Claim

_KEY = "signing-keys"


def key_epoch_ms(session: Session) -> int:
    """Return since when signing keys count, in milliseconds since the epoch; 0: all do."""
    claim = session.get(Claim, _KEY)
    return 0 if claim is None else claim.epoch


def raise_key_epoch(session: Session, at_ms: int, *, by: str) -> None:
    """Let only keys count that are made from `at_ms` on. It never goes back."""
    claim = session.get(Claim, _KEY)
    if claim is None:
        session.add(Claim(key=_KEY, owner=by[:64], epoch=at_ms, expires_ms=0))
    else:
        claim.owner, claim.epoch = by[:64], max(claim.epoch, at_ms)
