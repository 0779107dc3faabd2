from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from support.api import Platform, make_platform


@pytest.fixture
def platform(prepared_state: Path, tmp_path: Path) -> Iterator[Platform]:
    state = tmp_path / "state"
    shutil.copytree(prepared_state, state)
    made = make_platform(state)
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def shared_platform(prepared_state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One for a module's tables of refusals: what is refused leaves nothing for the next to find."""
    state = tmp_path_factory.mktemp("shared") / "state"
    shutil.copytree(prepared_state, state)
    made = make_platform(state)
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def shared_ada(shared_platform: Platform) -> TestClient:
    return shared_platform.client("ada")


@pytest.fixture
def ada(platform: Platform) -> TestClient:
    """An admin of tenant vision."""
    return platform.client("ada")


@pytest.fixture
def bob(platform: Platform) -> TestClient:
    """An admin of tenant speech."""
    return platform.client("bob")
