"""Whose things a caller sees: a foreign id reads exactly as an absent one."""

from __future__ import annotations

from sqlalchemy.orm import Session

from polyray.api.submission import live
from polyray.core.errors import NotFound
from polyray.core.ids import is_id, shown
from polyray.core.spec import Kind
from polyray.identity.tokens import Principal
from polyray.store.tables import Workload


def own_workload(session: Session, caller: Principal, kind: Kind, name: str) -> Workload:
    """Return the workload of that id or, for what lives on, of that live name.

    Raises:
        NotFound: if it is not there, of another kind, or of another tenant.
    """
    row = session.get(Workload, name) if is_id(name) else None
    if row is None and kind is not Kind.JOB and caller.tenant is not None:
        row = live(session, caller.tenant, kind, name)
    if row is None or row.kind != kind or (caller.tenant is not None and row.tenant != caller.tenant):
        raise NotFound(kind.value, shown(name)[1:-1])
    return row
