"""What can go wrong, in words a user can act on.

Every failure that crosses a seam is a `PolyrayError`. Its code decides the HTTP status and the exit
code of the CLI through one table, so the same refusal reads the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Code(StrEnum):
    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    INFEASIBLE = "infeasible"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    GRANT_REJECTED = "grant_rejected"
    INSUFFICIENT_CAPACITY = "insufficient_capacity"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


class Outcome(NamedTuple):
    http_status: int
    exit_code: int


#: The one table code -> (HTTP status, exit code). Exit codes are documented in the README.
OUTCOMES: dict[Code, Outcome] = {
    Code.INVALID: Outcome(422, 2),
    Code.INFEASIBLE: Outcome(422, 2),
    Code.UNAUTHENTICATED: Outcome(401, 3),
    Code.FORBIDDEN: Outcome(403, 3),
    Code.NOT_FOUND: Outcome(404, 4),
    Code.CONFLICT: Outcome(409, 5),
    Code.TOO_LARGE: Outcome(413, 2),
    Code.RATE_LIMITED: Outcome(429, 6),
    Code.GRANT_REJECTED: Outcome(503, 6),
    Code.INSUFFICIENT_CAPACITY: Outcome(503, 6),
    Code.UNAVAILABLE: Outcome(503, 6),
    Code.TIMEOUT: Outcome(504, 6),
    Code.INTERNAL: Outcome(500, 1),
}


@dataclass(eq=False)
class PolyrayError(Exception):
    """A refusal or failure with the way out.

    `message` says what is wrong, `hint` what to do next, `field` which input field is meant (dotted
    path), `retryable` whether the same call may succeed later.
    """

    code: Code
    message: str
    hint: str = ""
    field: str = ""
    retryable: bool = False

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self)._restore, (self.code, self.message, self.hint, self.field, self.retryable)

    @classmethod
    def _restore(cls, code: Code, message: str, hint: str, field: str, retryable: bool) -> PolyrayError:
        error = PolyrayError(code, message, hint, field, retryable)
        error.__class__ = cls
        return error


class Invalid(PolyrayError):
    """Bad input. Names the field and the way out."""

    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(Code.INVALID, message, hint, field)


class NotFound(PolyrayError):
    """An absent thing, or one of another tenant: the two must be indistinguishable."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(Code.NOT_FOUND, f"no such {kind}: {name}", f"list what there is with 'polyray {kind} ls'")


class Conflict(PolyrayError):
    """The request contradicts what is stored."""

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(Code.CONFLICT, message, hint, field)


class Infeasible(PolyrayError):
    """The request can never be met, however long one waits. Names the nearest feasible one."""

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(Code.INFEASIBLE, message, hint, field)


class Forbidden(PolyrayError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(Code.FORBIDDEN, message, hint)


class Unauthenticated(PolyrayError):
    """No usable credential. `reason` is a stable word (`token_expired`, `bad_signature`, ...)."""

    def __init__(self, reason: str, message: str, *, hint: str = "log in with 'polyray login'") -> None:
        super().__init__(Code.UNAUTHENTICATED, message, hint)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return *super().__reduce__(), {"reason": self.reason}


class Unavailable(PolyrayError):
    """A part of the platform does not answer now; the same call may succeed later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(Code.UNAVAILABLE, message, hint, retryable=True)
