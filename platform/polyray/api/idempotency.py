"""The same request sent twice is done once.

The answer is kept in the same transaction that does the work, under the caller and the key. Writers are
one at a time, so a second call that arrives while the first still runs waits for it and gets its answer;
after a crash there is either the work with its answer, or neither. What takes long (copying a model) is
announced first instead, and a second call is told to wait while the first one lives; its answer, too, is kept
in the transaction that makes the work count.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from pydantic import BaseModel
from sqlalchemy import ColumnElement, CursorResult, delete, update
from sqlalchemy.orm import Session
from starlette.responses import Response

from polyray.core.errors import Conflict, Invalid, Unavailable
from polyray.core.ids import new_id, shown
from polyray.core.owners import is_gone, is_of_this_machine, this_process
from polyray.identity.tokens import Principal
from polyray.store.engine import Store
from polyray.store.tables import IdempotencyKey

#: A key may be used for something else after this time.
KEEP_MS = 24 * 3_600_000
_KEY = re.compile(r"[\x21-\x7e]{1,128}")

#: A long call of another machine that has not answered after this time has died with its process.
RUNNING_MS = 600_000
#: The status of a call that runs; the body is then the name of the call: its process, and an id of its own.
_RUNNING = 0
_living: set[str] = set()
_living_lock = threading.Lock()

#: Keeps the answer of a long call in the transaction that makes its work count.
Conclude = Callable[[Session, BaseModel], None]

KeyHeader = Annotated[
    str | None, Header(alias="Idempotency-Key", description="1 to 128 visible ASCII characters; kept for a day")
]


@dataclass(frozen=True)
class Request:
    """What makes two requests the same: who sends it, under which key, where, with what body."""

    principal: Principal
    key: str | None
    route: str
    body: object

    @property
    def caller(self) -> str:
        return f"{self.principal.tenant or ''}/{self.principal.subject}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.route, self.body], sort_keys=True).encode()).hexdigest()

    def checked_key(self) -> str:
        """Return the key.

        Raises:
            Invalid: if it is none.
        """
        if self.key is None or not _KEY.fullmatch(self.key):
            hint = "1 to 128 visible ASCII characters, such as a UUID"
            raise Invalid(f"{shown(self.key)} is not a key", field="Idempotency-Key", hint=hint)
        return self.key


def once(session: Session, request: Request, *, now_ms: int, status: int, work: Callable[[], BaseModel]) -> Response:
    """Do `work` in the caller's write transaction, or give the answer that it gave before under this key.

    Without a key the work is simply done. A refusal is not kept: the same request may succeed later.

    Raises:
        Conflict: if the key was used for another request.
    """
    if request.key is None:
        return _answer(status, work().model_dump_json().encode())
    kept = _kept(session, request, now_ms)
    if kept is None:
        kept = _row(request, status=status, body=work().model_dump_json().encode(), now_ms=now_ms)
        session.add(kept)
        return _answer(kept.status, kept.body)
    return _answer(kept.status, kept.body, replayed=True)


def once_long(
    store: Store, request: Request, *, now_ms: int, status: int, work: Callable[[Conclude], BaseModel]
) -> Response:
    """Do `work`, which has transactions of its own and may take long, or give the answer it gave before.

    `work` is given what to call, with its answer, in its last transaction.

    Raises:
        Conflict: if the key was used for another request, or another call took this one for dead.
        Unavailable: while the first call still runs.
    """
    if request.key is None:
        return _answer(status, work(lambda session, answer: None).model_dump_json().encode())
    call = f"{this_process()} {new_id('request')}"
    with _living_lock:
        _living.add(call)
    try:
        with store.write() as session:
            kept = _kept(session, request, now_ms)
            if kept is not None and kept.status != _RUNNING:
                return _answer(kept.status, kept.body, replayed=True)
            if kept is not None and _runs(kept, now_ms):
                raise Unavailable("the first call with this key is still running", hint="ask again in a moment")
            if kept is not None:
                session.delete(kept)
                session.flush()
            session.add(_row(request, status=_RUNNING, body=call.encode(), now_ms=now_ms))
        mine = _named(request) & (IdempotencyKey.status == _RUNNING) & (IdempotencyKey.body == call.encode())

        def conclude(session: Session, answer: BaseModel) -> None:
            values = {"status": status, "body": answer.model_dump_json().encode()}
            done = session.execute(update(IdempotencyKey).where(mine).values(values))
            if not (isinstance(done, CursorResult) and done.rowcount):
                raise Conflict("another call with this key took this one's place", field="Idempotency-Key")

        try:
            return _answer(status, work(conclude).model_dump_json().encode())
        except BaseException:
            with suppress(Unavailable), store.write() as session:  # what stays is seen to be dead
                session.execute(delete(IdempotencyKey).where(mine))
            raise
    finally:
        with _living_lock:
            _living.discard(call)


def _runs(kept: IdempotencyKey, now_ms: int) -> bool:
    """Return whether the call that announced itself still runs, as far as can be known from here."""
    call = kept.body.decode(errors="replace")
    owner = call.partition(" ")[0]
    if owner == this_process():
        with _living_lock:
            return call in _living
    if is_of_this_machine(owner):
        return not is_gone(owner)
    return now_ms - kept.created_ms < RUNNING_MS


def _kept(session: Session, request: Request, now_ms: int) -> IdempotencyKey | None:
    """Return what is kept under the caller's key, unless it is too old and only nobody has removed it yet."""
    key = request.checked_key()
    kept = session.get(IdempotencyKey, (request.caller, key))
    if kept is not None and kept.created_ms < now_ms - KEEP_MS:
        session.delete(kept)
        session.flush()
        return None
    if kept is not None and kept.request_hash != request.digest:
        hint = "use a new key for each new request"
        raise Conflict("this key was used for another request", field="Idempotency-Key", hint=hint)
    return kept


def _row(request: Request, *, status: int, body: bytes, now_ms: int) -> IdempotencyKey:
    return IdempotencyKey(
        principal=request.caller,
        key=request.checked_key(),
        request_hash=request.digest,
        status=status,
        body=body,
        created_ms=now_ms,
    )


def _named(request: Request) -> ColumnElement[bool]:
    return (IdempotencyKey.principal == request.caller) & (IdempotencyKey.key == request.checked_key())


def _answer(status: int, body: bytes, *, replayed: bool = False) -> Response:
    headers = {"Idempotency-Replayed": "true"} if replayed else {}
    return Response(body, status, headers, media_type="application/json")
