"""PostgreSQL as the store: how a connection is made and bounded, and what its refusals mean.

Nothing waits without end: not a connect, a lock, a statement, nor a transaction whose client has been
stopped. Whatever was bounded ends as a whole, so the caller may do all of it again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

from polyray.core.errors import Invalid, Unavailable

SETTING = "database_url"
#: For each address that the host's name stands for.
CONNECT_SECONDS = 5
#: A statement of ours takes milliseconds.
STATEMENT_SECONDS = 30
#: A control plane that is stopped in the middle of a write loses it after so long, and with it the write lock:
#: less than the claim to lead lasts, so that a successor can write as soon as it leads.
IDLE_SECONDS = 10
#: A machine that has vanished is noticed after about this time, by both sides.
VANISHED_SECONDS = 15
#: The key of the advisory lock that serialises writers.
WRITE_LOCK = 0x706F6C79

#: SQLSTATEs, or their classes, that the same transaction may not meet again: connection lost (08), read-only since it
#: is a standby (25006), idle too long (25P03), rolled back for another (40), out of resources (53), a lock not had
#: (55P03), an operator's doing (57), a failing disk (58), a spoilt page (XX001, XX002).
_PASSING = ("08", "25006", "25P03", "40", "53", "55P03", "57", "58", "XX001", "XX002")
#: Not permitted (42501), or no schema that the role may use (3F000).
_NOT_PERMITTED = ("42501", "3F000")


def engine_of(url: URL, *, lock_seconds: float, kept: int, most: int) -> Engine:
    """Return an engine that waits `lock_seconds` for any lock and for a free connection of at most `most`.

    Raises:
        Invalid: if the driver is not installed.
    """
    if url.drivername != "postgresql+psycopg":
        url = url.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(
            url,
            isolation_level="READ COMMITTED",
            pool_size=kept,
            max_overflow=most - kept,
            pool_timeout=lock_seconds,
            pool_pre_ping=True,  # a restarted server is met here, before a transaction begins
            hide_parameters=True,
            connect_args={
                "connect_timeout": CONNECT_SECONDS,
                "application_name": "polyray",
                "client_encoding": "utf8",
                # A prepared statement outlives a migration by another control plane, and a pooler's connection.
                "prepare_threshold": None,
                "keepalives_idle": VANISHED_SECONDS // 3,
                "keepalives_interval": VANISHED_SECONDS // 3,
                "keepalives_count": 2,
                "tcp_user_timeout": VANISHED_SECONDS * 1000,
            },
        )
    except ImportError as error:
        hint = "install it with: pip install 'polyray[postgres]'"
        raise Invalid(f"PostgreSQL's driver cannot be loaded: {error}", field=SETTING, hint=hint) from error

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: object, args: list[Any], parameters: dict[str, Any]) -> Any:
        try:
            return dialect.connect(*args, **parameters)
        except dialect.loaded_dbapi.Error as error:
            hint = f"check that it runs, and that the setting {SETTING} names it and a role that may log in"
            raise Unavailable(f"cannot connect to the database {place(url)}: {_first_line(error)}", hint=hint) from None

    bounds = {
        "lock_timeout": round(lock_seconds * 1000),
        "statement_timeout": STATEMENT_SECONDS * 1000,
        "idle_in_transaction_session_timeout": round(IDLE_SECONDS * 1000),
        "tcp_keepalives_idle": VANISHED_SECONDS // 3,
        "tcp_keepalives_interval": VANISHED_SECONDS // 3,
        "tcp_keepalives_count": 2,
    }

    text_dumper = _text_dumper()

    @event.listens_for(engine, "connect")
    def bound(connection: Any, _record: object) -> None:
        connection.adapters.register_dumper(str, text_dumper)
        connection.autocommit = True
        with connection.cursor() as cursor:
            chosen = ", ".join(["set_config(%s, %s, false)"] * len(bounds))
            cursor.execute(f"SELECT {chosen}", [str(part) for pair in bounds.items() for part in pair])
        connection.autocommit = False

    return engine


def _text_dumper() -> type:
    """Return what writes text for the server, which knows no NUL: such a name is not found, such a reason is told."""
    from psycopg.types.string import StrDumper

    class TextDumper(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    return TextDumper


def place(url: URL) -> str:
    """Return where a URL leads, without the password and the options."""
    host = url.host or url.query.get("host") or "local socket"
    port = f":{url.port}" if url.port else ""
    return f"{host}{port}/{url.database or ''}"


def refusal(error: DBAPIError) -> Unavailable | None:
    """Return what a caller is told of a failure that passes, None if it is a defect."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    told = f"the database does not take this now: {_first_line(error.orig)}"
    if state in _NOT_PERMITTED:
        return Unavailable(told, hint=f"the role that the setting {SETTING} names must own the database")
    if isinstance(error, OperationalError) if state is None else state.startswith(_PASSING):
        return Unavailable(told, hint="do all of it again in a moment")
    return None


def _first_line(error: BaseException | None) -> str:
    """Return the failure itself: the lines below it may quote rows or statements."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
