"""The operator's file: tenants, quotas, budgets, people and node pools.

tenants:
  vision:
    display_name: Vision lab
    quota: {cpu: 8, memory: 16GiB, h100: {nominal: 8, borrowing_limit: 8}}
    budget_usd_per_month: 50
    members: {ada: admin}
users:                     # accounts of the built-in issuer; none with an outside one
  ada: {display_name: Ada, password: ...}
operators: [olga]
pools:
  rack: {provider: local, capacity_type: reserved, count: 1,
         resources: {cpu: 2, memory: 4GiB}, usd_per_hour: 0.40}
  cloud: {provider: local, capacity_type: on_demand, max_nodes: 4, boot_seconds: 3,
          resources: {cpu: 1, memory: 2GiB}, usd_per_hour: 1.20}
idle_seconds: 300
history_days: 365
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from polyray.core.errors import Invalid
from polyray.core.ids import parse_display_name, parse_slug, shown
from polyray.core.money import parse_usd
from polyray.core.resources import (
    MEMORY,
    MIN_BUNDLE_BYTES,
    Resources,
    parse_bundle,
    parse_bytes,
    parse_flavor,
    parse_milli,
)
from polyray.core.spec import CapacityType, as_invalid
from polyray.core.yaml_text import load_yaml

ROLES = ("viewer", "member", "admin")
#: What a cloud calls its types and zones, such as `g5.xlarge`.
_LABEL = r"^[A-Za-z0-9._-]{0,63}$"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QuotaSpec(_Model):
    nominal: Any
    borrowing_limit: Any = 0


class TenantSpec(_Model):
    display_name: str = ""
    quota: dict[str, Any] = Field(default_factory=dict)
    budget_usd_per_month: Any = 0
    cohort: str | None = None
    members: dict[str, Literal["viewer", "member", "admin"]] = Field(default_factory=dict)
    #: Cost labels beside `default`.
    projects: tuple[str, ...] = ()

    def amounts(self, tenant: str) -> dict[str, tuple[int, int]]:
        """Return flavor -> (nominal, borrowing limit) in milli-units or bytes."""
        result = {}
        for flavor, given in self.quota.items():
            field = f"tenants.{tenant}.quota.{flavor}"
            parse_flavor(flavor, field=field)
            quota = given if isinstance(given, dict) else {"nominal": given}
            try:
                spec = QuotaSpec.model_validate(quota)
            except ValidationError as error:
                invalid = as_invalid(error)
                raise Invalid(invalid.message, field=f"{field}.{invalid.field}", hint=invalid.hint) from error
            result[flavor] = (
                _amount(flavor, spec.nominal, f"{field}.nominal"),
                _amount(flavor, spec.borrowing_limit, f"{field}.borrowing_limit"),
            )
        return result


class UserSpec(_Model):
    display_name: str = ""
    password: str = Field(min_length=8, max_length=256)


class PoolSpec(_Model):
    provider: Literal["local"]
    capacity_type: CapacityType
    resources: dict[str, Any]
    usd_per_hour: Any
    #: Nodes that are always kept; reserved pools only.
    count: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    max_nodes: Annotated[int, Field(strict=True, ge=0, le=1000)] = 10
    instance_type: str = Field(default="", pattern=_LABEL)
    zone: str = Field(default="local-a", pattern=_LABEL)
    boot_seconds: Annotated[int, Field(strict=True, ge=0, le=3600)] = 0
    join_limit_seconds: Annotated[int, Field(strict=True, ge=10, le=7200)] = 600

    @property
    def bundle(self) -> Resources:
        return parse_bundle(self.resources)


class PlatformFile(_Model):
    tenants: dict[str, TenantSpec] = Field(default_factory=dict)
    users: dict[str, UserSpec] = Field(default_factory=dict)
    operators: tuple[str, ...] = ()
    pools: dict[str, PoolSpec] = Field(default_factory=dict)
    #: A cloud node that holds no lease for so long is drained and terminated.
    idle_seconds: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 300
    #: The run directory of a workload (log, records, checkpoints) is removed so long after its end. What it cost,
    #: and the events of its life, are kept.
    history_days: Annotated[int, Field(strict=True, ge=1, le=36_500)] = 365

    @model_validator(mode="after")
    def _sound(self) -> PlatformFile:
        for tenant, spec in self.tenants.items():
            parse_slug(tenant, field="tenants")
            if spec.display_name:
                parse_display_name(spec.display_name, field=f"tenants.{tenant}.display_name")
            spec.amounts(tenant)
            parse_usd(spec.budget_usd_per_month, field=f"tenants.{tenant}.budget_usd_per_month")
            if spec.cohort is not None:
                parse_slug(spec.cohort, field=f"tenants.{tenant}.cohort")
            for project in spec.projects:
                parse_slug(project, field=f"tenants.{tenant}.projects")
            for user in spec.members:
                self._known(user, f"tenants.{tenant}.members")
        for user, account in self.users.items():
            parse_slug(user, field="users")
            if account.display_name:
                parse_display_name(account.display_name, field=f"users.{user}.display_name")
        for user in self.operators:
            self._known(user, "operators")
        for pool, pool_spec in self.pools.items():
            parse_slug(pool, field="pools")
            parse_bundle(pool_spec.resources, field=f"pools.{pool}.resources")
            parse_usd(pool_spec.usd_per_hour, field=f"pools.{pool}.usd_per_hour")
            if pool_spec.count and pool_spec.capacity_type is not CapacityType.RESERVED:
                raise Invalid("only reserved pools keep nodes", field=f"pools.{pool}.count", hint="use max_nodes")
        return self

    def _known(self, user: str, field: str) -> None:
        parse_slug(user, field=field)
        if self.users and user not in self.users:
            raise Invalid(f"{user} is not among users", field=field, hint=f"add 'users.{user}'")

    def groups_of(self, user: str) -> list[str]:
        """Return the groups of a user as Keycloak would name them."""
        groups = ["/operators"] if user in self.operators else []
        return groups + [
            f"/tenants/{t}/{spec.members[user]}" for t, spec in self.tenants.items() if user in spec.members
        ]


def load_platform_file(path: Path) -> PlatformFile:
    """Read the operator's file.

    Raises:
        Invalid: naming the field and the way out.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read it: {error}", field=str(path)) from error
    content = load_yaml(text, field=str(path))
    try:
        return PlatformFile.model_validate({} if content is None else content)
    except ValidationError as error:
        raise as_invalid(error) from error


def _amount(flavor: str, value: object, field: str) -> int:
    if flavor != MEMORY or value == 0:
        return parse_milli(value, field=field)
    size = parse_bytes(value, field=field)
    if size < MIN_BUNDLE_BYTES:  # a forgotten unit, most likely
        raise Invalid(
            f"{shown(value)} is too little for any workload",
            field=field,
            hint="write a size with its unit, such as 64GiB; 0 for none",
        )
    return size
