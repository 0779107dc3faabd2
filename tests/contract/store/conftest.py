"""The store's contract holds on every database that the platform runs on; a new one is a new line here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polyray.store.engine import Store
from polyray.store.migrate import migrate

DATABASES = ("sqlite", "postgres")


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgresql_url"))
    return f"sqlite:///{tmp_path}/state/polyray.db"


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url)
    migrate(store)
    yield store
    store.close()
