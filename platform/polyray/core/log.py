"""Structured logs: an event name and fields, one JSON object a line; never a token, secret or query string."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_FIELD = re.compile(r"token|secret|password|authorization|cookie|api_key|credential", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JWT
    r"|\bpr_[A-Za-z0-9_-]{16,}"  # an API key
    r"|(?<=[?&])[^=\s&\"']+=[^\s&\"']+"  # a query string's values
    r"|(?i:bearer)\s+\S+"
)


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace what looks like a credential, by field name and by shape."""
    for key, value in event.items():
        if _SECRET_FIELD.search(key) and not isinstance(value, (bool, int, float)):
            event[key] = "[redacted]"
        elif isinstance(value, str):
            event[key] = _SECRET_TEXT.sub("[redacted]", value)
    return event


def configure(level: str = "INFO", *, component: str) -> None:
    """Send this process's logs to stderr as JSON lines that name `component`."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(component=component)
