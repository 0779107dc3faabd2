"""Whose turn it is: between tenants by what they use of their quota, within a tenant by priority and age.

Each workload stands where its tenant's use would be when all that its tenant queued before it had started. So
the tenant that uses the least of its quota is served first, two that use the same alternate, and the one job of
a tenant does not wait for another's ten thousand. Integers only; the same queue has the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from polyray.broker.snapshot import TenantView
from polyray.core.resources import ANY_GPU, Resources, is_gpu, total

#: A share of one, in the units that shares are told in.
WHOLE = 10**9


class Queued(Protocol):
    @property
    def workload_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def bundles(self) -> tuple[Resources, ...]: ...
    @property
    def priority(self) -> int: ...
    @property
    def queued_ms(self) -> int: ...


#: Flavors with their amounts.
Amounts = tuple[tuple[str, int], ...]
Q = TypeVar("Q", bound=Queued)


def in_turn(queue: Iterable[Q], tenants: Iterable[TenantView]) -> list[Q]:
    """Return the queue as it is served: by share, then priority (a higher one first), age and id."""
    views = {tenant.tenant: tenant for tenant in tenants}
    lines: dict[str, list[Q]] = {}
    for queued in queue:
        lines.setdefault(queued.tenant, []).append(queued)
    ranked: list[tuple[int, int, int, str, Q]] = []
    asked: dict[int, Amounts] = {}
    for tenant, line in lines.items():
        share = Share(views.get(tenant))
        line.sort(key=_place)
        for queued in line:
            bundles = queued.bundles
            ranked.append((share.now, -queued.priority, queued.queued_ms, queued.workload_id, queued))
            if (amounts := asked.get(id(bundles))) is None:
                amounts = asked[id(bundles)] = _amounts(total(bundles))
            share.add(amounts)
    ranked.sort(key=lambda each: each[:4])
    return [each[4] for each in ranked]


class Share:
    """How much of its quota a tenant uses, of the flavor of which it uses most; in parts of `WHOLE`."""

    def __init__(self, tenant: TenantView | None) -> None:
        nominal = {} if tenant is None else tenant.nominal.as_dict()
        gpus = sum(amount for flavor, amount in nominal.items() if is_gpu(flavor))
        #: A flavor without a quota counts nothing: nobody gets any of it.
        self._nominal = {**nominal, ANY_GPU: gpus} if gpus else nominal
        self._used: dict[str, int] = {}
        self.now = 0
        self.add(() if tenant is None else _amounts(tenant.used))

    def add(self, amounts: Amounts) -> None:
        used, most = self._used, self.now
        for flavor, amount in amounts:
            if (nominal := self._nominal.get(flavor)) is not None:
                used[flavor] = now = used.get(flavor, 0) + amount
                share = now * WHOLE // nominal
                most = share if share > most else most
        self.now = most


def _amounts(resources: Resources) -> Amounts:
    return tuple(resources.as_dict().items())


def _place(queued: Queued) -> tuple[int, int, str]:
    return -queued.priority, queued.queued_ms, queued.workload_id
