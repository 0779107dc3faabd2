"""Every refusal as an RFC 9457 problem: code, what is wrong, which field, the way out, the request's id.

Nothing of the machine is told: no traceback, no path. An unforeseen error says only its request id, under
which the log has the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from polyray.core.errors import OUTCOMES, Code, Invalid, PolyrayError, Unauthenticated

MEDIA_TYPE = "application/problem+json"

_HINTS = {
    "extra_forbidden": "remove it, or check its spelling",
    "missing": "add it",
    "json_invalid": "send one JSON document",
}
_CODES = {
    HTTPStatus.BAD_REQUEST: Code.INVALID,
    HTTPStatus.NOT_FOUND: Code.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: Code.NOT_FOUND,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Code.TOO_LARGE,
}


def problem(error: PolyrayError, request_id: str, *, status: int | None = None) -> Response:
    """Return `error` as a problem; `status` only where HTTP has a narrower one than the table."""
    status = OUTCOMES[error.code].http_status if status is None else status
    body: dict[str, Any] = {
        "type": f"urn:polyray:problem:{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code.value,
        "detail": error.message,
        "hint": error.hint,
        "field": error.field,
        "retryable": error.retryable,
        "request_id": request_id,
    }
    headers = {}
    if isinstance(error, Unauthenticated):
        body["reason"] = error.reason
        # The reason in the standard's own words (RFC 6750): a client need not parse the body.
        headers["WWW-Authenticate"] = (
            f'Bearer realm="polyray", error="invalid_token", error_description="{error.reason}"'
        )
    if error.retryable or error.code is Code.RATE_LIMITED:
        headers["Retry-After"] = "1"
    # ASCII only: a lone surrogate in a message must not make the refusal itself fail.
    return Response(json.dumps(body), status, headers, media_type=MEDIA_TYPE)


def internal(request_id: str) -> Response:
    return problem(
        PolyrayError(Code.INTERNAL, "something went wrong inside", f"tell the operator the request id {request_id}"),
        request_id,
    )


def from_validation(errors: Sequence[Mapping[str, Any]]) -> Invalid:
    """Return the first complaint of a request's validation as ours: the field without `body` before it."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    if len(place) > 1 and place[0] in {"body", "query", "path", "header"}:
        place = place[1:]
    if first["type"] == "json_invalid":  # there the rest of the place is a byte offset
        place = ["body"]
    return Invalid(str(first["msg"]), field=".".join(place), hint=_HINTS.get(first["type"], ""))


def install(app: FastAPI) -> None:
    """Make `app` answer every error as a problem. What is not foreseen is the gate's business."""

    @app.exception_handler(PolyrayError)
    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, PolyrayError)
        return problem(error, request.scope["polyray.request_id"])

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(from_validation(error.errors()), request.scope["polyray.request_id"])

    @app.exception_handler(HTTPException)
    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        request_id = request.scope["polyray.request_id"]
        if error.status_code == HTTPStatus.BAD_REQUEST:
            # The framework could not read the body: a number of 5,000 digits, nesting without end.
            return problem(Invalid("the body cannot be read", field="body", hint="send one JSON document"), request_id)
        code = _CODES.get(HTTPStatus(error.status_code), Code.INTERNAL)
        response = problem(
            PolyrayError(code, f"no such route: {request.method} {request.url.path}"[:300], "see /docs"),
            request_id,
            status=error.status_code,
        )
        response.headers.update(error.headers or {})
        return response
