"""Bringing a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from polyray.store.engine import Store

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(store: Store) -> None:
    """Upgrade `store` to the newest schema, wholly or not at all. Idempotent; two processes may call it at once."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with store.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "head")
