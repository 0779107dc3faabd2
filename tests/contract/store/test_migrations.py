from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text

from polyray.core.errors import Conflict
from polyray.store.audit import verify
from polyray.store.engine import Store
from polyray.store.migrate import MIGRATIONS, migrate
from polyray.store.tables import Base
from support.rows import add_one_of_each


def test_the_migrations_make_exactly_the_tables_that_the_code_knows(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        made = set(inspect(connection).get_table_names())
    assert made == {*Base.metadata.tables, "alembic_version"}


def test_a_database_of_the_version_before_keeps_all_that_is_in_it(store: Store) -> None:
    with store.write() as session:
        add_one_of_each(session)
    before = contents(store)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with store.write() as session:
        config.attributes["connection"] = session.connection()
        command.downgrade(config, "0001")
    migrate(store)
    assert contents(store) == before
    assert verify(store, ()).ok
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def contents(store: Store) -> dict[str, list[tuple[object, ...]]]:
    with store.read() as session:
        rows = {table.name: session.execute(select(table)).all() for table in Base.metadata.sorted_tables}
    return {name: sorted(map(tuple, found), key=repr) for name, found in rows.items()}


def test_migrating_again_changes_nothing(store: Store) -> None:
    with store.read() as session:
        before = session.execute(text("SELECT version_num FROM alembic_version")).all()
    migrate(store)
    with store.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).all() == before


def test_several_processes_may_migrate_at_once(database_url: str) -> None:
    stores = [Store(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, stores))
    with stores[0].engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    for store in stores:
        store.close()


def test_a_schema_from_the_future_is_left_alone(store: Store) -> None:
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    with pytest.raises(Conflict, match="another version"):
        migrate(store)


def test_the_history_of_the_schema_is_one_line() -> None:
    directory = ScriptDirectory(str(MIGRATIONS))
    assert len(directory.get_heads()) == 1
    assert len(directory.get_bases()) == 1
