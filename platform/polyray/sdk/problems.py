"""RFC 9457 problems, read back into the error that the platform raised."""

from __future__ import annotations

from typing import Any

from polyray.core.errors import OUTCOMES, Code, PolyrayError, Unauthenticated

#: HTTP statuses that promise that the same call may succeed later.
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})

_MAX_MESSAGE = 2000


def error_from(status: int, problem: Any) -> PolyrayError:
    """Return the error behind an HTTP status and its decoded body (None or anything else if it was not a problem)."""
    fields = problem if isinstance(problem, dict) else {}
    code = _code(fields.get("code"), status)
    message = _text(fields.get("detail")) or _text(fields.get("title")) or f"the platform answered with status {status}"
    hint, field = _text(fields.get("hint")), _text(fields.get("field"))
    if code is Code.UNAUTHENTICATED:
        reason = _text(fields.get("reason")) or "refused"
        return Unauthenticated(reason, message, hint=hint or "log in with 'polyray login'")
    retryable = fields.get("retryable")
    return PolyrayError(
        code, message, hint, field, retryable if isinstance(retryable, bool) else status in RETRYABLE_STATUSES
    )


def _code(given: object, status: int) -> Code:
    """There are two cases: the problem names its code, or a server in between answered and only the status tells."""
    if isinstance(given, str) and given in set(Code):
        return Code(given)
    by_status = {502: Code.UNAVAILABLE, 503: Code.UNAVAILABLE, 400: Code.INVALID, 422: Code.INVALID}
    for code, outcome in OUTCOMES.items():
        by_status.setdefault(outcome.http_status, code)
    return by_status.get(status, Code.INTERNAL if status >= 500 else Code.INVALID)


def _text(value: object) -> str:
    return value[:_MAX_MESSAGE] if isinstance(value, str) else ""
