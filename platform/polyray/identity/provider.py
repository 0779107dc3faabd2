"""Who somebody is, as an issuer says it, and the seam to issuers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from polyray.core.ids import SLUG

#: Roles within a tenant, the weakest first.
TENANT_ROLES = ("viewer", "member", "admin")
OPERATORS_GROUP = "/operators"
_TENANT_GROUP = re.compile(r"/tenants/([^/]+)/([^/]+)")


@dataclass(frozen=True)
class Identity:
    """A person or machine whose access token an issuer signed: who, and which roles where."""

    issuer: str
    subject: str
    username: str
    name: str
    #: Tenant -> role.
    roles: Mapping[str, str] = field(default_factory=dict)
    operator: bool = False


class IdentityProvider(Protocol):
    def verify(self, token: str) -> Identity:
        """Return whose access token this is.

        Raises:
            Unauthenticated: with a stable reason, if it is not one of this issuer for this platform.
            Unavailable: if the issuer's keys were never had and cannot be had now.
        """


def roles_of(groups: Sequence[object]) -> tuple[dict[str, str], bool]:
    """Return (tenant -> role, whether operator) from groups as Keycloak's group mapper names them.

    Groups of others are passed over; of several roles in one tenant the strongest counts.
    """
    roles: dict[str, str] = {}
    operator = False
    for group in groups:
        if group == OPERATORS_GROUP:
            operator = True
        elif isinstance(group, str) and (match := _TENANT_GROUP.fullmatch(group)):
            tenant, role = match.groups()
            if SLUG.fullmatch(tenant) and role in TENANT_ROLES:
                roles[tenant] = max(role, roles.get(tenant, TENANT_ROLES[0]), key=TENANT_ROLES.index)
    return roles, operator
