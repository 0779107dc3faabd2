"""Cursors: where a list goes on.

Lists run from the newest to the oldest and a cursor names the last row shown, so that what arrives
meanwhile neither repeats nor hides a row. A cursor is opaque, but it is no secret and grants nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from polyray.core.errors import Invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
CursorText = Annotated[str | None, Query(alias="cursor", max_length=512)]


@dataclass(frozen=True)
class Cursor:
    """The sort key of the last row shown: a time or number, and the row's id."""

    order: int
    id: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(json.dumps([self.order, self.id]).encode()).rstrip(b"=").decode()


def parse_cursor(text: str | None) -> Cursor | None:
    """Return the cursor that `text` is.

    Raises:
        Invalid: if it is not one that a list gave out.
    """
    if text is None:
        return None
    try:
        content = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _unknown() from None
    match content:
        case [int() as order, str() as identity] if abs(order) < 2**62 and len(identity) <= 128 and identity.isascii():
            return Cursor(order, identity)
    raise _unknown()


def _unknown() -> Invalid:
    return Invalid(
        "not a cursor of this list", field="cursor", hint="pass next_cursor of the page before, or leave it out"
    )
