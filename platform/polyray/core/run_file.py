"""`run.json`: what the control plane tells the program that it starts in a slice.

The control plane writes the file whole before each attempt; what runs beside user code reads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyray.core.errors import Invalid
from polyray.core.spec import PLATFORM_ENV

RUN_FILE = "run.json"


@dataclass(frozen=True)
class MountedDataset:
    name: str
    version: int
    #: Of the manifest; what is read must have it.
    digest: str
    path: Path

    @property
    def link_name(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class MountedModel:
    name: str
    version: int
    path: Path


@dataclass(frozen=True)
class RunFile:
    run_dir: Path
    workload_id: str
    name: str
    attempt: int
    #: A job's command.
    run: str | None
    #: A service's application, `module:attribute`.
    app: str | None
    #: The packed code and its SHA-256; None where the workload brought none.
    code_blob: Path | None
    code_sha256: str | None
    datasets: tuple[MountedDataset, ...]
    model: MountedModel | None
    env: dict[str, str]

    @property
    def code_dir(self) -> Path:
        return self.run_dir / "code"


def load_run_file(run_dir: Path) -> RunFile:
    """Read `run.json` of a run directory.

    Raises:
        Invalid: if it is not there or lacks a key.
    """
    path = run_dir / RUN_FILE
    try:
        given: dict[str, Any] = json.loads(path.read_bytes())
        model = given.get("model")
        return RunFile(
            run_dir=run_dir,
            workload_id=given["workload_id"],
            name=given["name"],
            attempt=given["attempt"],
            run=given.get("run"),
            app=given.get("app"),
            code_blob=Path(given["code_blob"]) if given.get("code_blob") else None,
            code_sha256=given.get("code_sha256"),
            datasets=tuple(
                MountedDataset(d["name"], d["version"], d["digest"], Path(d["path"])) for d in given["datasets"]
            ),
            model=MountedModel(model["name"], model["version"], Path(model["path"])) if model else None,
            env=dict(given["env"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Invalid(
            f"cannot read it: {type(error).__name__}: {error}", field=str(path), hint="the control plane writes it"
        ) from error


def user_environment(run: RunFile, own: dict[str, str]) -> dict[str, str]:
    """Return the environment for user code: this process's own, and the workload's where it is not the platform's."""
    return own | {name: value for name, value in run.env.items() if not PLATFORM_ENV.fullmatch(name)}


def link_datasets(run: RunFile) -> Path:
    """Make `datasets/NAME@VERSION` lead to each declared version, and to nothing else; return the directory."""
    directory = run.run_dir / "datasets"
    directory.mkdir(mode=0o700, exist_ok=True)
    wanted = {dataset.link_name: dataset.path for dataset in run.datasets}
    for link in directory.iterdir():
        if link.is_symlink() and (link.name not in wanted or Path(os.readlink(link)) != wanted[link.name]):
            link.unlink()
    for name, path in wanted.items():
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(path)
    return directory
