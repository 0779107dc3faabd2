"""What a run tells the platform: metrics as it goes, and the model it made."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from polyray.core.errors import Invalid
from polyray.core.file_set import FileEntry, files_digest
from polyray.core.run_records import append_record
from polyray.train.run_context import context, rank_and_world_size

MODEL_PATH = "artifacts/model"


def record(**metrics: Any) -> None:
    """Append metrics to the run's records; only rank 0 writes, so all ranks may call it.

    Values are numbers, text or booleans; a tensor of one element counts as its number.

    Raises:
        Invalid: naming a metric that is none of these.
    """
    if rank_and_world_size()[0] != 0:
        return
    here = context()
    values = {name: _plain(name, value) for name, value in metrics.items()}
    append_record(here.run_dir, "metrics", {"metrics": values}, attempt=here.attempt, now_ms=_now_ms())


def save_model(directory: str | os.PathLike[str]) -> Path:
    """Copy the files of `directory` to the run's `artifacts/model`, record their digest, and return the place.

    An older model of the run is replaced, whole by whole. Call it on one rank.

    Raises:
        Invalid: if there are no files, or something that is neither a file nor a directory.
    """
    here, source = context(), Path(directory)
    names = _plain_files(source)
    target = here.run_dir / MODEL_PATH
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arriving = Path(tempfile.mkdtemp(prefix=".model-", dir=target.parent))
    try:
        entries = [_copy(source / name, arriving / name, name) for name in names]
        if target.exists():
            target.rename(arriving.with_suffix(".old"))
        arriving.rename(target)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
        shutil.rmtree(arriving.with_suffix(".old"), ignore_errors=True)
    size_bytes = sum(entry.size_bytes for entry in entries)
    fields = {"path": MODEL_PATH, "digest": files_digest(entries), "size_bytes": size_bytes}
    append_record(here.run_dir, "model", fields, attempt=here.attempt, now_ms=_now_ms())
    return target


def _plain_files(directory: Path) -> list[str]:
    names = []
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Invalid("neither a file nor a directory", field=str(path), hint="a model is plain files")
        if path.is_file():
            names.append(path.relative_to(directory).as_posix())
    if not names:
        raise Invalid("no files in it", field=str(directory), hint="save the model there first")
    return names


def _copy(source: Path, target: Path, name: str) -> FileEntry:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, 2**20)
        writing.flush()
        os.fsync(writing.fileno())
    with target.open("rb") as copied:
        return FileEntry(name, target.stat().st_size, hashlib.file_digest(copied, "sha256").hexdigest())


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, (bool, int, float, str)) and hasattr(value, "item"):
        try:
            value = value.item()
        except (RuntimeError, ValueError) as error:
            raise Invalid("not one number", field=name, hint="record its mean, or several metrics") from error
    if not isinstance(value, (bool, int, float, str)):
        raise Invalid(f"{type(value).__name__} is not a number or text", field=name)
    return value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
