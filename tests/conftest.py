from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from support.postgresql import PostgreSQLServer, running_server

# The machines that run this are shared and slow at times: a slow example is no defect.
settings.register_profile("polyray", deadline=None, print_blob=True)
settings.load_profile("polyray")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A test that runs a process's `main` in this one configures its log: the next test has it as it was."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@dataclass(frozen=True)
class Tier:
    """How much of what can be tried without end is tried: little while one works, all of it in CI."""

    full: bool

    def pick(self, *, quick: int, full: int) -> int:
        return full if self.full else quick


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", choices=["quick", "full"], default="quick", help="how many faults are tried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the fault tests tried (`record_property("faults", ...)`), for whoever writes of it."""
    for report in terminalreporter.getreports("passed"):
        for name, told in report.user_properties:
            if name == "faults":
                terminalreporter.write_line(str(told))


@pytest.fixture(scope="session")
def tier(pytestconfig: pytest.Config) -> Tier:
    return Tier(full=pytestconfig.getoption("--faults") == "full")


@pytest.fixture(scope="session")
def prepared_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with a database, tenants and people, to be copied."""
    from support.api import prepare_state  # imports FastAPI, which takes a second

    directory = tmp_path_factory.mktemp("prepared")
    prepare_state(directory)
    return directory


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """One server for all tests that ask for one; they make databases of their own on it."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def module_database(request: pytest.FixtureRequest, postgresql: PostgreSQLServer) -> str:
    """The URL of a database on that server which the module's tests share."""
    return postgresql.make_database(request.module.__name__.rpartition(".")[2])


@pytest.fixture
def postgresql_url(postgresql: PostgreSQLServer, module_database: str) -> str:
    """The URL of an empty database on that server."""
    name = module_database.partition("/")[2].partition("?")[0].rpartition("/")[2]
    postgresql.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", name)
    return module_database
