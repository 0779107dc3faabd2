"""Bringing a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import text

from polyray.core.errors import Conflict
from polyray.store.engine import Store

MIGRATIONS = Path(__file__).parent / "migrations"


#: What waits for a table behind a migrator waits as long as it does; so it gives up soon, and comes again.
LOCK_SECONDS = 4


def migrate(store: Store) -> None:
    """Upgrade `store` to the newest schema, wholly or not at all. Idempotent; two processes may call it at once.

    Raises:
        Unavailable: if another control plane keeps a table, or the write lock, for too long.
        Conflict: if the schema is newer than this version knows.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with store.write() as session:
        if store.on_postgresql:
            # Rewriting a large table takes its time; waiting for its lock must not.
            session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
            session.execute(text("SET LOCAL statement_timeout = 0"))
        config.attributes["connection"] = session.connection()
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            hint = "upgrade Polyray on this machine too"
            raise Conflict(f"the database was made by another version: {error}", hint=hint) from error
