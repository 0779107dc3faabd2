"""The command line as a user has it: own configuration, the real API behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from polyray.cli.main import main
from polyray.sdk.credentials import Credentials, Login
from support.live_api import LiveApi, access_token, live_api


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveApi]:
    with live_api(tmp_path_factory.mktemp("platform")) as api:
        yield api


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directories, and an environment without words for Polyray."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("POLYRAY_TENANT", "POLYRAY_STATE_DIR", "POLYRAY_OUTPUT", "POLYRAY_TOKEN_PATH", "POLYRAY_API_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(home: Path, api: LiveApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the API; return exit code, standard output, standard error."""
    monkeypatch.setenv("POLYRAY_API_URL", api.url)

    def run_one(*argv: str) -> Result:
        capsys.readouterr()
        code = main(list(argv))
        return Result(code, *capsys.readouterr())

    return run_one


@pytest.fixture
def ada(run: Run, api: LiveApi, home: Path) -> Run:
    """The command line of somebody who is logged in as ada, admin of tenant vision."""
    return _logged_in(run, api, home, "ada", "vision")


@pytest.fixture
def olga(run: Run, api: LiveApi, home: Path) -> Run:
    return _logged_in(run, api, home, "olga", "")


def _logged_in(run: Run, api: LiveApi, home: Path, user: str, tenant: str) -> Run:
    """Put a login in place as `polyray login` does, without its waits."""
    credentials = Credentials(home / "config" / "polyray", api.url)
    access, expires_ms = access_token(api, user)
    credentials.save(Login(api.url, f"{api.url}/issuer", "polyray-cli", access, expires_ms, "", tenant))
    return run
