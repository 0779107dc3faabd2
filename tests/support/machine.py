"""A user's machine, with the real platform on it, driven by its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

from polyray.core.settings import Settings
from polyray.supervise.lock import running_supervisor
from polyray.supervise.processes import ProcessRef, read_record


class Machine:
    """A user's machine: own configuration and state, real processes."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(state_dir=directory / "state")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYRAY_", "RAY_"))}
        self._env = kept | {
            "XDG_CONFIG_HOME": str(directory / "config"),
            "POLYRAY_STATE_DIR": str(self.settings.state_dir),
            "RAY_ADDRESS": "ray://192.0.2.1:1",  # of the user's shell; the platform must not hear it
        }

    def polyray(self, *argv: str, token: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command; as whoever has the token in a file, if one is given."""
        command = [sys.executable, "-m", "polyray.cli.main", *argv]
        env = self._env if token is None else self._env | {"POLYRAY_TOKEN_PATH": str(token)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [sys.executable, "-m", "polyray.cli.main", *argv], env=self._env, stdin=quiet, stdout=quiet, stderr=quiet
        )

    @property
    def api_url(self) -> str:
        return str(json.loads((self.settings.state_dir / "run" / "endpoints.json").read_text())["api_url"])

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.api_url}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def process(self, name: str) -> ProcessRef:
        record = read_record(self.settings.state_dir / "run" / "components" / f"{name}.json")
        assert record is not None
        return record.process

    @property
    def supervisor(self) -> ProcessRef | None:
        return running_supervisor(self.settings.state_dir / "run" / "supervisor.pid")
