"""How much a tenant may hold, per flavor."""

from __future__ import annotations

from dataclasses import dataclass

from polyray.broker.snapshot import TenantView
from polyray.core.resources import Resources, format_amount


@dataclass(frozen=True)
class Excess:
    """The first flavor (by name) in which a request is over quota. Milli-units; bytes for memory."""

    flavor: str
    used: int
    nominal: int
    limit: int
    asked: int

    @property
    def sentence(self) -> str:
        def told(amount: int) -> str:
            return format_amount(self.flavor, amount)

        borrowing = f" and may borrow {told(self.limit - self.nominal)}" if self.limit > self.nominal else ""
        return (
            f"it asks for {self.flavor} {told(self.asked)} while the tenant uses {told(self.used)}"
            f" of its quota of {told(self.nominal)}{borrowing}"
        )

    def facts(self) -> dict[str, object]:
        return {"flavor": self.flavor, "used": self.used, "nominal": self.nominal, "asked": self.asked}


def limit(tenant: TenantView) -> Resources:
    """Return the most it may ever hold: nominal and what it may borrow."""
    return tenant.nominal + tenant.borrowing_limit


def excess(tenant: TenantView, used: Resources, asked: Resources) -> Excess | None:
    """Return where `asked` on top of `used` is over quota.

    A flavor without a quota allows nothing, and asking nothing of it is always allowed. Usage above
    the quota (it was lowered) only means that nothing more is given.
    """
    most = limit(tenant)
    for flavor, amount in asked.items():
        if used[flavor] + amount > most[flavor]:
            return Excess(flavor, used[flavor], tenant.nominal[flavor], most[flavor], amount)
    return None
