"""Structured logs: an event name and fields, one JSON object a line; never a token, secret or query string."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import structlog

_SECRET_FIELD = re.compile(r"token|secret|password|authorization|cookie|api_key|credential", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JWT
    r"|\bpr_[A-Za-z0-9_-]{16,}"  # an API key
    r"|(?<=\S\?)[^\s\"'<>]+"  # a query string
    r"|(?<=://)[^/\s@\"']+(?=@)"  # user and password in a URL
    r"|(?i:bearer|basic)\s+[^\s\"',]+"
)


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace what looks like a credential, by field name and by shape."""
    for key, value in event.items():
        event[key] = _redacted(key, value)
    return event


def _redacted(name: str, value: object) -> object:
    """Return `value` without credentials; what JSON cannot say is shown as its `repr`, which is redacted too."""
    match value:
        case bool() | int() | float() | None:
            return value
        case _ if _SECRET_FIELD.search(name):
            return "[redacted]"
        case str():
            return _SECRET_TEXT.sub("[redacted]", value)
        case Mapping():
            return {_redacted("", str(key)): _redacted(str(key), item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_redacted(name, item) for item in value]
        case _:
            return _SECRET_TEXT.sub("[redacted]", repr(value))


class _Line(structlog.PrintLogger):
    """Prints a line, or loses it: a full disk or a closed pipe must not stop the thread that tells of it."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


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
        logger_factory=lambda *_: _Line(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(component=component)
