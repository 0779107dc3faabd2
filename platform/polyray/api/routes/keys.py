"""API keys for inference."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select, tuple_
from starlette.responses import Response

from polyray.api.deps import Caller, Given, guarded_router, may, member_tenant
from polyray.api.idempotency import KeyHeader, Request, once
from polyray.api.paging import DEFAULT_LIMIT, Cursor, CursorText, Limit, parse_cursor
from polyray.api.views import KeyView, NewKeyView, Page
from polyray.core.errors import Conflict
from polyray.core.ids import shown
from polyray.identity.api_keys import MAX_TTL_DAYS, make_key, revoke_key
from polyray.identity.policy import Action
from polyray.store.tables import ApiKey

router = guarded_router("/v1/keys", "keys")


class Create(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    #: The one service it opens, by name; all of the tenant's without.
    service: str | None = None
    ttl_days: int | None = Field(default=None, strict=True, ge=1, le=MAX_TTL_DAYS)


@router.post("", status_code=201, response_model=NewKeyView, **may(Action.CREATE_KEY))
def create(services: Given, caller: Caller, body: Create, idempotency_key: KeyHeader = None) -> Response:
    """Make a key. It is in this answer and nowhere else: sent again, the request is refused, and names the key made."""
    tenant, now_ms = member_tenant(caller), services.clock.now_ms()
    request = Request(caller, idempotency_key, "POST /v1/keys", body.model_dump())
    made: list[str] = []
    with services.store.write() as session:

        def work() -> KeyView:
            new = make_key(
                session,
                tenant=tenant,
                name=body.name,
                created_by=caller.subject,
                now_ms=services.tokens.now_ms(),
                service=body.service,
                ttl_days=body.ttl_days,
            )
            session.flush()
            made.append(new.key)
            return _view(session.get_one(ApiKey, new.key_id))

        # What is kept under the idempotency key is the view without the secret.
        kept = KeyView.model_validate_json(bytes(once(session, request, now_ms=now_ms, status=201, work=work).body))
    if not made:
        raise Conflict(
            f"this request made {kept.key_id} before, and a key is shown once",
            field="Idempotency-Key",
            hint=f"if it was lost, revoke it with 'polyray key revoke {kept.key_id}' and make another",
        )
    services.wake("routes", "all")
    new_view = NewKeyView(**kept.model_dump(), key=made[0])
    return Response(new_view.model_dump_json(), 201, media_type="application/json")


@router.get("", **may(Action.READ_KEYS))
def listing(services: Given, caller: Caller, cursor: CursorText = None, limit: Limit = DEFAULT_LIMIT) -> Page[KeyView]:
    """List the tenant's keys, the newest first, revoked ones too; never the keys themselves."""
    after = parse_cursor(cursor)
    query = select(ApiKey).where(ApiKey.tenant == member_tenant(caller))
    if after is not None:
        query = query.where(tuple_(ApiKey.created_ms, ApiKey.key_id) < (after.order, after.id))
    with services.store.read() as session:
        rows = session.scalars(query.order_by(ApiKey.created_ms.desc(), ApiKey.key_id.desc()).limit(limit + 1)).all()
    more = Cursor(rows[limit - 1].created_ms, rows[limit - 1].key_id).encode() if len(rows) > limit else None
    return Page[KeyView](items=[_view(row) for row in rows[:limit]], next_cursor=more)


@router.delete("/{key_id}", status_code=204, **may(Action.REVOKE_KEY))
def revoke(services: Given, caller: Caller, key_id: str) -> Response:
    """Revoke a key for good; again is no error."""
    with services.store.write() as session:
        revoke_key(
            session,
            tenant=member_tenant(caller),
            key_id=shown(key_id)[1:-1],
            now_ms=services.tokens.now_ms(),
        )
    services.wake("routes", "all")
    return Response(status_code=204)


def _view(row: ApiKey) -> KeyView:
    fields: dict[str, Any] = {name: getattr(row, name) for name in KeyView.model_fields}
    return KeyView(**fields)
