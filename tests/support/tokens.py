"""People, tenants and their tokens, on a real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt

from polyray.core.clock import Clock
from polyray.core.errors import Unauthenticated
from polyray.identity.keys import SigningKeys
from polyray.identity.provider import Identity
from polyray.identity.tokens import PlatformTokens
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Tenant


class KnownPeople:
    """An identity provider for which a name is its own access token."""

    def __init__(self, *people: Identity) -> None:
        self._people = {person.subject: person for person in people}

    def verify(self, token: str) -> Identity:
        if token not in self._people:
            raise Unauthenticated("bad_signature", "nobody of that name")
        return self._people[token]


def person(name: str, *, operator: bool = False, **roles: str) -> Identity:
    return Identity("https://issuer.test", name, name, name.title(), roles, operator)


PEOPLE = (
    person("ada", vision="admin"),
    person("vic", vision="viewer"),
    person("bob", speech="member"),
    person("eve", vision="member", speech="viewer"),
    person("olga", operator=True),
    person("zoe"),
)


def make_store(directory: Path, *tenants: str, created_ms: int = 0) -> Store:
    store = Store(f"sqlite:///{directory / 'polyray.db'}")
    migrate(store)
    with store.write() as session:
        for number, tenant in enumerate(tenants):
            session.add(
                Tenant(name=tenant, display_name=tenant, uid=20_000 + number, cohort=None, created_ms=created_ms)
            )
    return store


def make_keys(directory: Path, clock: Clock) -> SigningKeys:
    return SigningKeys(directory / "keys", "platform", clock)


def make_tokens(store: Store, keys: SigningKeys, clock: Clock) -> PlatformTokens:
    return PlatformTokens(store, keys, KnownPeople(*PEOPLE), clock)


def sign(keys: SigningKeys, claims: dict[str, Any], **header: Any) -> str:
    """Sign any claims at all, as only a platform that went mad would."""
    key = keys.signing()
    return jwt.encode(claims, key.private, algorithm="RS256", headers={"kid": key.kid, **header})
