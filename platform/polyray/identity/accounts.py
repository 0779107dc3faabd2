"""The built-in issuer's accounts, made to match the operator's file."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from polyray.core.platform_file import PlatformFile
from polyray.identity.passwords import hash_password, verify_password
from polyray.identity.tokens import revoke_sessions
from polyray.store.engine import Store
from polyray.store.tables import RefreshToken, User


def apply_accounts(store: Store, file: PlatformFile, now_ms: int) -> None:
    """Make the accounts those of the file: add, change, disable. Idempotent.

    Who lost an account or changed groups or password is logged out everywhere, so that no token tells of
    old roles. A file without users (an outside issuer keeps them) changes no account.
    """
    if not file.users:
        return
    with store.read() as session:
        known = {row.name: row.password_hash for row in session.scalars(select(User))}
    # Hashing is slow on purpose, so it is done before the write lock is taken.
    hashes = {name: _hash(spec.password, known.get(name)) for name, spec in file.users.items()}
    with store.write() as session:
        rows = {row.name: row for row in session.scalars(select(User))}
        for name, spec in file.users.items():
            account = (spec.display_name or name, hashes[name], file.groups_of(name))
            _apply_account(session, rows.get(name), name, account, now_ms)
        for name, row in rows.items():
            if name not in file.users and not row.disabled:
                row.disabled = True
                log_out(session, name, now_ms)


def _apply_account(
    session: Session, row: User | None, name: str, account: tuple[str, str, list[str]], now_ms: int
) -> None:
    display_name, password_hash, groups = account
    if row is None:
        session.add(
            User(
                name=name,
                display_name=display_name,
                password_hash=password_hash,
                groups=groups,
                disabled=False,
                created_ms=now_ms,
            )
        )
        return
    if (row.password_hash, row.groups) != (password_hash, groups):
        log_out(session, name, now_ms)
    row.display_name, row.password_hash, row.groups, row.disabled = display_name, password_hash, groups, False


def _hash(password: str, known: str | None) -> str:
    return known if known is not None and verify_password(password, known) else hash_password(password)


def log_out(session: Session, user: str, now_ms: int) -> None:
    """End an account's platform tokens and refresh tokens."""
    revoke_sessions(session, now_ms, subject=user)
    session.execute(delete(RefreshToken).where(RefreshToken.user == user))
