"""The people of the demo: each has a home of their own, and does everything through the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

BIN = Path(sys.executable).parent


class StepFailed(Exception):
    """A step did not do what it must."""


@dataclass(frozen=True)
class Person:
    name: str
    password: str
    environment: dict[str, str]

    @classmethod
    def at(cls, home: Path, name: str, password: str, shared: dict[str, str]) -> Person:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "POLYRAY_"))}
        path = f"{BIN}:{os.environ.get('PATH', os.defpath)}"
        return cls(name, password, {**kept, **shared, "PATH": path, "XDG_CONFIG_HOME": str(home / name)})

    def polyray(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run the command line and return what it prints on standard output."""
        done = subprocess.run(
            [str(BIN / "polyray"), *arguments], env=self.environment, cwd=cwd, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise StepFailed(f"polyray {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr.strip()}")
        return done.stdout

    def ask(self, *arguments: str, cwd: Path | None = None) -> Any:
        return json.loads(self.polyray(*arguments, "--output", "json", cwd=cwd))

    def log_in(self) -> None:
        """Log in by device code: the command line names a page, and the person approves there."""
        login = subprocess.Popen(
            [str(BIN / "polyray"), "login"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert login.stderr is not None
        told = ""
        for line in login.stderr:
            told += line
            if page := re.search(r"http\S+user_code=\S+", line):
                self._approve(page[0])
        if login.wait() != 0:
            raise StepFailed(f"the login of {self.name} failed:\n{told}")

    def _approve(self, page: str) -> None:
        parts = urlsplit(page)
        form = {
            "user_code": parse_qs(parts.query)["user_code"][0],
            "username": self.name,
            "password": self.password,
            "decision": "approve",
        }
        httpx.post(parts._replace(query="").geturl(), data=form, trust_env=False).raise_for_status()

    def ray_environment(self) -> dict[str, str]:
        """Return the environment that `eval "$(polyray env)"` gives a shell."""
        lines = self.polyray("env").splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in lines if line.startswith("export "))
        return {**self.environment, **{name: value.strip("'\"") for name, _, value in pairs}}


def run(arguments: list[str], environment: dict[str, str], *, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a stock program, with standard error beside standard output kept apart."""
    return subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
