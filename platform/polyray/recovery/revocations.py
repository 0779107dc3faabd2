"""What must stay shut after a restore, though the backup was made while it was open."""

from __future__ import annotations

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from polyray.core.lifecycle import NodeState
from polyray.store.tables import (
    ApiKey,
    Claim,
    DeviceCode,
    LoginSession,
    Node,
    RefreshToken,
    Tenant,
    User,
)

LEADER = "leader"


def leader_epoch(session: Session) -> int:
    claim = session.get(Claim, LEADER)
    return 0 if claim is None else claim.epoch


def fence_leaders(session: Session, epoch: int) -> None:
    """Let the next leader have a higher epoch than any before: one that still lives writes nothing."""
    claim = session.get(Claim, LEADER)
    if claim is None:
        session.add(Claim(key=LEADER, owner="restore", epoch=epoch, expires_ms=0))
    else:
        claim.owner, claim.epoch, claim.expires_ms = "restore", epoch, 0


def end_logins(session: Session) -> None:
    """Forget every login, whole or under way: an unknown session opens nothing, and all log in again."""
    for table in (LoginSession, RefreshToken, DeviceCode):
        session.execute(delete(table))


def carry_over(old: Session, new: Session, *, is_successor: bool, now_ms: int) -> list[str]:
    """Take over what the replaced database shuts, and say what that was.

    `is_successor`: the replaced database went on from the backup, so that what it lacks was removed.
    """
    return [
        *_users(old, new, is_successor),
        *_keys(old, new, is_successor, now_ms),
        *_tenants(old, new),
        *_bills(old, new),
    ]


def _users(old: Session, new: Session, is_successor: bool) -> list[str]:
    """A password that was changed may have been known to others; a role that was taken away stays away."""
    told = []
    newer = {row.name: row for row in old.scalars(select(User))}
    for row in new.scalars(select(User).order_by(User.name)):
        seen = newer.get(row.name)
        if seen is None:
            if is_successor and not row.disabled:
                row.disabled = True
                told.append(f"account {row.name} is disabled: it was removed since")
            continue
        if seen.disabled and not row.disabled:
            row.disabled = True
            told.append(f"account {row.name} is disabled: it was since")
        if seen.password_hash != row.password_hash:
            row.password_hash = seen.password_hash
            told.append(f"account {row.name} keeps the password that it was given since")
        kept = [group for group in row.groups if group in seen.groups]
        if kept != row.groups:
            told.append(f"account {row.name} is not in {', '.join(set(map(str, row.groups)) - set(kept))} any more")
            row.groups = kept
    return told


def _keys(old: Session, new: Session, is_successor: bool, now_ms: int) -> list[str]:
    newer = {row.key_id: row.revoked_ms for row in old.scalars(select(ApiKey))}
    told = []
    for row in new.scalars(select(ApiKey).where(ApiKey.revoked_ms.is_(None)).order_by(ApiKey.key_id)):
        gone = row.key_id not in newer
        if (gone and is_successor) or newer.get(row.key_id) is not None:
            row.revoked_ms = newer.get(row.key_id) or now_ms
            told.append(f"API key {row.key_id} of {row.tenant} is revoked: it was since")
    return told


def _tenants(old: Session, new: Session) -> list[str]:
    suspended = set(old.scalars(select(Tenant.name).where(Tenant.suspended)))
    open_ones = set(new.scalars(select(Tenant.name).where(~Tenant.suspended)))
    shut = sorted(suspended & open_ones)
    new.execute(update(Tenant).where(Tenant.name.in_(shut)).values(suspended=True))
    return [f"tenant {name} is suspended: it was since" for name in shut]


def _bills(old: Session, new: Session) -> list[str]:
    """Take over what machines cost that are gone: no provider may list them any more. Those that live are adopted."""
    known = {row.node_id: row for row in new.scalars(select(Node))}
    booked = 0
    for row in old.scalars(select(Node).where(Node.state == NodeState.TERMINATED.value)):
        mine = known.get(row.node_id)
        if mine is not None:
            mine.billed_from_ms, mine.billed_to_ms = row.billed_from_ms, row.billed_to_ms
        else:
            new.add(Node(**{column.key: getattr(row, column.key) for column in Node.__table__.columns}))
            booked += 1
    return [f"{booked} ended machines of since then stay in the ledger"] if booked else []
