"""The platform of one state directory, as this machine's files and processes tell it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyray.core.settings import Settings
from polyray.supervise.lock import running_supervisor
from polyray.supervise.processes import ProcessRef, is_alive, read_record


@dataclass(frozen=True)
class Local:
    settings: Settings

    @property
    def run_dir(self) -> Path:
        return self.settings.state_dir / "run"

    @property
    def supervisor(self) -> ProcessRef | None:
        return running_supervisor(self.run_dir / "supervisor.pid")

    @property
    def endpoints(self) -> dict[str, Any]:
        """Return what the server wrote of its addresses; {} before it did."""
        return read_json(self.run_dir / "endpoints.json")

    @property
    def api_url(self) -> str:
        return str(self.endpoints.get("api_url") or f"http://{self.settings.host}:{self.settings.api_port}")

    @property
    def told(self) -> dict[str, Any]:
        """Return what the supervisor says of its components."""
        return read_json(self.run_dir / "supervisor.json")

    @property
    def components(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each component; `pid` is None for one that does not run."""
        components = dict(self.told.get("components") or {})
        if self.supervisor is None:  # what it said last may not be so any more
            components = {
                name: {**told, "pid": told.get("pid") if self.lives(name) else None}
                for name, told in components.items()
            }
        return components

    def lives(self, name: str) -> bool:
        """Say whether a component runs, whoever started it."""
        record = read_record(self.run_dir / "components" / f"{name}.json")
        return record is not None and is_alive(record.process)

    @property
    def is_cut_off(self) -> bool:
        """Say whether nobody answers and nobody will: the server has ended, and what would start it again."""
        return self.supervisor is None and self.has_records and not self.lives("server")

    @property
    def has_records(self) -> bool:
        return any((self.run_dir / "components").glob("*.json"))

    def log(self, name: str) -> Path:
        return self.settings.state_dir / "logs" / f"{name}.log"


def read_json(path: Path) -> dict[str, Any]:
    """Return a record; {} if there is none, or it is no record."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
