"""Whose things a caller sees: a foreign id reads exactly as an absent one."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from polyray.api.submission import live
from polyray.core.errors import Code, NotFound, PolyrayError
from polyray.core.ids import is_id, shown
from polyray.core.spec import Kind
from polyray.identity.tokens import Principal
from polyray.store.tables import Workload


def require_history(row: Workload) -> None:
    """Check that the files of a workload's run are still kept.

    Raises:
        PolyrayError: code `not_found`, saying since when they are not.
    """
    if row.history_removed_ms is None:
        return
    day = datetime.fromtimestamp(row.history_removed_ms / 1000, UTC).date()
    days = max((row.history_removed_ms - (row.ended_ms or row.history_removed_ms)) // 86_400_000, 0)
    raise PolyrayError(
        Code.NOT_FOUND,
        f"the log and the files of {row.workload_id} were removed on {day}, {days} days after its end",
        hint="the operator sets for how long they are kept: 'history_days' in the platform file",
    )


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
