"""Run directories as the control plane leaves them, with packed code and published datasets."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from polyray.core.run_records import parse_records
from polyray.data.publishing import publish

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_module(path: Path) -> ModuleType:
    """Import a file of an example by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pack(directory: Path, archive: Path) -> str:
    """Zip the files of a directory and return the archive's SHA-256."""
    with zipfile.ZipFile(archive, "w") as out:
        for path in sorted(p for p in directory.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            out.write(path, path.relative_to(directory))
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def make_run(
    run_dir: Path,
    *,
    code: Path | None = None,
    datasets: Mapping[str, Path] | None = None,
    model: Path | None = None,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, str]:
    """Write run.json and return the environment that the platform gives every slice of the run.

    `datasets` are Parquet files or directories by name; each is published as version 1.
    """
    for part in ("logs", "code", "datasets", "checkpoints", "artifacts"):
        (run_dir / part).mkdir(parents=True, exist_ok=True)
    blob = sha256 = None
    if code is not None:
        blob = run_dir.parent / f"{run_dir.name}.zip"
        sha256 = pack(code, blob)
    mounted = []
    for name, source in (datasets or {}).items():
        published = publish(source, name=name, directory=run_dir.parent / "store" / name / "1")
        mounted.append(
            {
                "name": name,
                "version": 1,
                "digest": published.manifest.digest,
                "path": str(published.directory),
            }
        )
    description = {
        "workload_id": "job-000000000001",
        "tenant": "vision",
        "project": "default",
        "attempt": 1,
        "kind": "job",
        "name": "digits",
        "run": None,
        "app": None,
        "code_blob": str(blob) if blob else None,
        "code_sha256": sha256,
        "datasets": mounted,
        "model": {"name": "digits", "version": 1, "path": str(model)} if model else None,
        "env": dict(env or {}),
        "workers": 1,
        "num_cpus_per_worker_milli": 1000,
        "gpus_per_worker": 0,
        **more,
    }
    (run_dir / "run.json").write_text(json.dumps(description))
    return {
        "POLYRAY_RUN_DIR": str(run_dir),
        "POLYRAY_WORKLOAD_ID": "job-000000000001",
        "POLYRAY_TENANT": "vision",
        "POLYRAY_ATTEMPT": "1",
        "POLYRAY_WORKERS": str(description["workers"]),
        "POLYRAY_DATASETS_DIR": str(run_dir / "datasets"),
        "PYTHONPATH": str(run_dir / "code"),
        **(env or {}),
    }


def records(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    path = run_dir / "records.jsonl"
    return [r for r in parse_records(path.read_bytes() if path.exists() else b"") if r["type"] == kind]
