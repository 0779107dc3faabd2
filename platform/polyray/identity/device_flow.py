"""Logging in on one device by approving on another (RFC 8628): codes, polling, refreshing.

Codes are kept hashed, live ten minutes and are good for one login. A refresh token is good for one use;
a second use ends the whole login, since one of the two users must have stolen it.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from polyray.identity.passwords import ABSENT_HASH, verify_password
from polyray.store.engine import Store
from polyray.store.tables import DeviceCode, RefreshToken, User

DEVICE_CODE_SECONDS = 600
REFRESH_SECONDS = 12 * 3600
#: The issuer stands beside the control plane, and a poll costs it little.
POLL_SECONDS = 2.0
#: RFC 8628, 6.1: consonants only, so that no code spells a word or is misread.
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


class OAuthError(Exception):
    """A refusal in OAuth's own words: `error` is one of the codes of RFC 6749 or RFC 8628."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.error, self.description, self.status = error, description, status


@dataclass(frozen=True)
class DeviceLogin:
    device_code: str = field(repr=False)
    user_code: str


@dataclass(frozen=True)
class Grant:
    """A login that holds: tokens may be signed for it."""

    user: User
    sid: str
    scope: str
    #: None when a refresh token was not asked for.
    refresh_token: str = field(repr=False)
    refresh_expires_ms: int


def begin_device_login(session: Session, client_id: str, scope: str, now_ms: int) -> DeviceLogin:
    session.execute(delete(DeviceCode).where(DeviceCode.expires_ms < now_ms - DEVICE_CODE_SECONDS * 1000))
    letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
    login = DeviceLogin(secrets.token_urlsafe(32), f"{letters[:4]}-{letters[4:]}")
    session.add(
        DeviceCode(
            code_hash=_hash(login.device_code),
            user_code=login.user_code,
            client_id=client_id,
            scope=scope,
            user=None,
            denied=False,
            expires_ms=now_ms + DEVICE_CODE_SECONDS * 1000,
            last_poll_ms=0,
        )
    )
    return login


def open_login(session: Session, user_code: str, now_ms: int) -> DeviceCode | None:
    """Return the login under way that a user code names, if it still waits for an answer."""
    letters = "".join(c for c in user_code.upper() if c in _LETTERS)
    row = session.scalar(select(DeviceCode).where(DeviceCode.user_code == f"{letters[:4]}-{letters[4:]}"))
    if row is None or row.expires_ms <= now_ms or row.user is not None or row.denied:
        return None
    return row


def right_password(store: Store, name: str, password: str) -> bool:
    """Say whether this is the password of a living account; an absent one takes as long as a wrong password."""
    with store.read() as session:
        user = session.get(User, name)
    right = verify_password(password, user.password_hash if user else ABSENT_HASH)
    return right and user is not None and not user.disabled


def redeem_device_code(
    store: Store, client_id: str, device_code: str, now_ms: int, poll_seconds: float = POLL_SECONDS
) -> Grant:
    """Answer a poll, which should come no more than every `poll_seconds`: the login if it was approved.

    Raises:
        OAuthError: `authorization_pending`, `slow_down`, `access_denied`, `expired_token`, `invalid_grant`.
    """
    with store.write() as session:
        row = session.get(DeviceCode, _hash(device_code))
        if row is None or row.client_id != client_id:
            raise OAuthError("invalid_grant", "no such device code, or it was used")
        if row.expires_ms <= now_ms:
            raise OAuthError("expired_token", "the code has expired; begin again")
        refused = _poll(row, now_ms, poll_seconds)
        if refused is None:
            session.delete(row)
            user = session.get(User, row.user)
            if user is not None and not user.disabled:
                return _grant(session, user, client_id, secrets.token_hex(16), row.scope, now_ms)
            refused = OAuthError("access_denied", "the account was disabled")
    # Raised after the commit, which keeps the time of this poll.
    raise refused


def redeem_refresh_token(store: Store, client_id: str, refresh_token: str, now_ms: int) -> Grant:
    """Turn a refresh token into a fresh login of the same `sid`; the old one is used up.

    Raises:
        OAuthError: `invalid_grant`.
    """
    with store.write() as session:
        row = session.get(RefreshToken, _hash(refresh_token))
        if row is None or row.client_id != client_id or row.expires_ms <= now_ms:
            raise OAuthError("invalid_grant", "no such refresh token, or it has expired")
        user = session.get(User, row.user)
        if row.used_ms is None and user is not None and not user.disabled:
            row.used_ms = now_ms
            return _grant(session, user, client_id, row.sid, row.scope, now_ms, expires_ms=row.expires_ms)
        session.execute(delete(RefreshToken).where(RefreshToken.sid == row.sid))
    raise OAuthError("invalid_grant", "the refresh token was used before, or the account was disabled; log in again")


def _poll(row: DeviceCode, now_ms: int, poll_seconds: float) -> OAuthError | None:
    too_soon = now_ms - row.last_poll_ms < poll_seconds * 1000
    row.last_poll_ms = now_ms
    if row.denied:
        return OAuthError("access_denied", "the login was refused")
    if row.user is not None:
        return None
    if too_soon:
        return OAuthError("slow_down", f"ask no more than every {poll_seconds:g} s")
    return OAuthError("authorization_pending", "nobody has approved it yet")


def _grant(
    session: Session, user: User, client_id: str, sid: str, scope: str, now_ms: int, expires_ms: int | None = None
) -> Grant:
    session.execute(delete(RefreshToken).where(RefreshToken.expires_ms <= now_ms))
    token = secrets.token_urlsafe(32)
    # A login ends at a fixed time: refreshing does not lengthen it.
    expires_ms = expires_ms or now_ms + REFRESH_SECONDS * 1000
    session.add(
        RefreshToken(
            token_hash=_hash(token),
            user=user.name,
            client_id=client_id,
            sid=sid,
            scope=scope,
            used_ms=None,
            expires_ms=expires_ms,
        )
    )
    return Grant(user, sid, scope, token, expires_ms)


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
