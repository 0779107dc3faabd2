from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.front import Front, open_front


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with open_front(tmp_path_factory.mktemp("identity")) as opened:
        yield opened
