"""Platform tokens: what people and programs show to the API and, through stock Ray clients, to the gateway.

A platform token is a JWT signed with RS256 under the `platform` keys: iss and aud `polyray`, sub, role,
sid, iat, nbf, exp, and where they apply tenant and cluster. It is had by exchanging an issuer's access
token, and dies early with its login session (`sid`) or with its tenant's suspension. The gateway holds
the same rules in its own words; a differential test keeps the two verdicts equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import jwt
from sqlalchemy import String, bindparam, select, update
from sqlalchemy.orm import Session

from polyray.core.clock import Clock
from polyray.core.errors import Forbidden, Invalid, NotFound, Unauthenticated
from polyray.core.ids import SLUG, is_id, new_id
from polyray.core.lifecycle import ClusterState
from polyray.identity.jws import check_times, read_signed
from polyray.identity.keys import SigningKeys
from polyray.identity.provider import Identity, IdentityProvider
from polyray.store.engine import Store
from polyray.store.tables import Cluster, LoginSession, Tenant

ISSUER = "polyray"
AUDIENCE = "polyray"
OPERATOR = "operator"
ROLES = frozenset({"viewer", "member", "admin", OPERATOR})
MIN_TTL_SECONDS = 10
#: A working day: `ray://` checks the token at every call, so it must outlive the session that uses it.
MAX_TTL_SECONDS = 12 * 3600
#: Tokens whose signature need not be checked again.
MAX_SEEN = 4096

#: Put together once: this is asked at each request.
_LOGIN = (
    select(LoginSession.revoked_ms, Tenant.suspended)
    .outerjoin(Tenant, Tenant.name == bindparam("tenant", type_=String))
    .where(LoginSession.sid == bindparam("sid"))
)


@dataclass(frozen=True)
class Principal:
    """Who calls, in which tenant and role. `tenant` is None for an operator's token that names none."""

    subject: str
    tenant: str | None
    role: str
    sid: str
    #: The one cluster that the gateway routes this token to; None for the tenant's default session.
    cluster: str | None = None
    expires_ms: int = 0

    @property
    def operator(self) -> bool:
        return self.role == OPERATOR


@dataclass(frozen=True)
class IssuedToken:
    token: str = field(repr=False)
    principal: Principal
    expires_in_seconds: int


class PlatformTokens:
    """Issues, verifies and revokes platform tokens."""

    def __init__(self, store: Store, keys: SigningKeys, provider: IdentityProvider, clock: Clock) -> None:
        """`keys` are those of purpose `platform`; `provider` says whose issuer's token is exchanged."""
        self._store = store
        self._keys = keys
        self._provider = provider
        self._clock = clock
        #: SHA-256 of tokens whose signature was found to hold, with the key's id and the claims.
        self._seen: dict[bytes, tuple[str, dict[str, Any]]] = {}

    def now_ms(self) -> int:
        """Return the time that the times in tokens and keys are told in, since others judge by it: the wall clock's."""
        return self._clock.now_ms()

    def exchange(
        self,
        subject_token: str,
        *,
        tenant: str | None = None,
        cluster: str | None = None,
        ttl_seconds: int | None = None,
    ) -> IssuedToken:
        """Turn an issuer's access token into a platform token (RFC 8693) with a login session of its own.

        Without `tenant` the only one that the identity has a role in is taken, for an operator none.

        Raises:
            Unauthenticated: if the access token does not hold.
            Forbidden: if the identity has no role there, or the tenant is suspended.
            Invalid: if the tenant must be named, or the lifetime is out of bounds.
            NotFound: if the cluster is not a living one of the tenant.
        """
        identity = self._provider.verify(subject_token)
        chosen, role = choose_role(identity, tenant)
        return self.issue(identity.subject, tenant=chosen, role=role, cluster=cluster, ttl_seconds=ttl_seconds)

    def issue(
        self, subject: str, *, tenant: str | None, role: str, cluster: str | None = None, ttl_seconds: int | None = None
    ) -> IssuedToken:
        """Sign a platform token for a subject whose right to `role` was checked before."""
        ttl = MAX_TTL_SECONDS if ttl_seconds is None else ttl_seconds
        if not MIN_TTL_SECONDS <= ttl <= MAX_TTL_SECONDS:
            raise Invalid(
                f"a token cannot live {ttl} s", field="ttl_seconds", hint=f"{MIN_TTL_SECONDS} to {MAX_TTL_SECONDS}"
            )
        now_ms = self._clock.now_ms()
        issued = now_ms // 1000
        principal = Principal(subject, tenant, role, new_id("sid"), cluster, (issued + ttl) * 1000)
        with self._store.write() as session:
            _check_scope(session, tenant, cluster)
            session.add(
                LoginSession(
                    sid=principal.sid,
                    subject=subject,
                    tenant=tenant,
                    role=role,
                    revoked_ms=None,
                    expires_ms=principal.expires_ms,
                    created_ms=now_ms,
                )
            )
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "role": role,
            "sid": principal.sid,
            "iat": issued,
            "nbf": issued,
            "exp": issued + ttl,
        }
        claims |= {"tenant": tenant} if tenant else {}
        claims |= {"cluster": cluster} if cluster else {}
        key = self._keys.signing()
        token = jwt.encode(claims, key.private, algorithm="RS256", headers={"kid": key.kid})
        return IssuedToken(token, principal, ttl)

    def verify(self, token: str) -> Principal:
        """Return whose platform token this is.

        Raises:
            Unauthenticated: with the same reasons as the gateway gives, for a revoked session or a
                suspended tenant too.
        """

        principal = principal_of(self._signed(token), self._clock.now_ms() // 1000)
        with self._store.read() as session:
            found = session.execute(_LOGIN, {"sid": principal.sid, "tenant": principal.tenant}).first()
        if found is None or found[0] is not None:
            raise Unauthenticated("token_revoked", "the session of this token was ended")
        if principal.tenant is not None and found[1] is not False:
            raise Unauthenticated("tenant_suspended", "the tenant of this token is suspended", hint="ask the operator")
        return principal

    def _signed(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature holds. One that was seen before holds while its key does."""
        digest = hashlib.sha256(token.encode()).digest()
        seen = self._seen.get(digest)
        if seen is not None and self._keys.public_key(seen[0]) is not None:
            return seen[1]
        kids: list[str] = []

        def key_for(kid: str, _algorithm: str) -> Any:
            kids.append(kid)
            return self._keys.public_key(kid)

        claims = read_signed(token, key_for, ("RS256",))
        if len(self._seen) >= MAX_SEEN:
            self._seen = {}
        self._seen[digest] = kids[-1], claims
        return claims

    def revoke(self, sid: str) -> None:
        """End a login session and so all its tokens. Idempotent; an unknown one is ended already."""
        with self._store.write() as session:
            revoke_sessions(session, self._clock.now_ms(), sid=sid)

    def revoke_subject(self, subject: str) -> None:
        """End every login session of a subject."""
        with self._store.write() as session:
            revoke_sessions(session, self._clock.now_ms(), subject=subject)


def choose_role(identity: Identity, tenant: str | None) -> tuple[str | None, str]:
    """Return (tenant, role) of the token that an identity asks for."""
    if tenant is not None:
        role = identity.roles.get(tenant)
        if role is None:
            raise Forbidden("you have no role in that tenant", hint=_choices(identity))
        return tenant, role
    if identity.operator:
        return None, OPERATOR
    if not identity.roles:
        raise Forbidden("you have no role in any tenant", hint="ask the operator to add you to one")
    if len(identity.roles) > 1:
        raise Invalid("you have roles in several tenants", field="tenant", hint=_choices(identity))
    return next(iter(identity.roles.items()))


def principal_of(claims: dict[str, Any], now_seconds: int) -> Principal:
    """Check a platform token's claims, whose signature holds, and return its principal."""
    if claims.get("iss") != ISSUER:
        raise Unauthenticated("bad_issuer", "this is not a platform token", hint="exchange it with 'polyray token'")
    if claims.get("aud") != AUDIENCE:
        raise Unauthenticated("bad_audience", "the token is for another audience")
    check_times(claims, now_seconds, required=("exp", "nbf", "iat"))
    subject, role, sid = claims.get("sub"), claims.get("role"), claims.get("sid")
    tenant, cluster = claims.get("tenant"), claims.get("cluster")
    if (
        not isinstance(subject, str)
        or not subject
        or not isinstance(role, str)
        or role not in ROLES
        or not isinstance(sid, str)
        or not is_id(sid)
        or (tenant is None) != (role == OPERATOR)
        or not (tenant is None or (isinstance(tenant, str) and SLUG.fullmatch(tenant)))
        or not (cluster is None or (isinstance(cluster, str) and is_id(cluster)))
    ):
        raise Unauthenticated("bad_claims", "the token's subject, role, session, tenant or cluster is missing or wrong")
    return Principal(subject, tenant, role, sid, cluster, claims["exp"] * 1000)


def revoke_sessions(session: Session, now_ms: int, *, sid: str | None = None, subject: str | None = None) -> None:
    """Mark the login sessions with this sid, or of this subject, as revoked."""
    chosen = LoginSession.sid == sid if sid is not None else LoginSession.subject == subject
    session.execute(update(LoginSession).where(chosen, LoginSession.revoked_ms.is_(None)).values(revoked_ms=now_ms))


def revoked_sids(session: Session, now_ms: int) -> tuple[tuple[str, str | None], ...]:
    """Return (sid, tenant) of revoked sessions whose tokens have not expired: what the gateway must refuse."""
    rows = session.execute(
        select(LoginSession.sid, LoginSession.tenant)
        .where(LoginSession.revoked_ms.is_not(None), LoginSession.expires_ms > now_ms)
        .order_by(LoginSession.sid)
    )
    return tuple((sid, tenant) for sid, tenant in rows)


def _check_scope(session: Session, tenant: str | None, cluster: str | None) -> None:
    if tenant is not None:
        row = session.get(Tenant, tenant)
        if row is None:
            raise Forbidden("that tenant is not known to the platform", hint="ask the operator to create it")
        if row.suspended:
            raise Forbidden("that tenant is suspended", hint="ask the operator")
    if cluster is not None:
        found = session.get(Cluster, cluster)
        if found is None or found.tenant != tenant or found.state == ClusterState.GONE:
            raise NotFound("cluster", cluster)


def _choices(identity: Identity) -> str:
    if not identity.roles:
        return "ask the operator to add you to a tenant"
    return "choose one of " + ", ".join(sorted(identity.roles))
