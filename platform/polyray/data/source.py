"""From a name or a path to verified, mapped rows.

`digits@1` is a version the workload declared: it is looked for in `POLYRAY_DATASETS_DIR`, its manifest
must have the digest that the platform wrote into run.json, and each file must have the bytes that the
manifest names. A path is a directory that `publish` made, or Parquet files of one schema.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from polyray.core.errors import Invalid
from polyray.core.spec import DatasetRef
from polyray.data.cache import cache_dir, hash_file, mapped
from polyray.data.manifest import MAX_MANIFEST_BYTES, Manifest, load_manifest

MANIFEST_NAME = "manifest.json"
FILES_NAME = "files"


@dataclass(frozen=True)
class Rows:
    """Record batches in their global order, with the columns asked for."""

    batches: tuple[pa.RecordBatch, ...]
    schema: pa.Schema
    #: Global index of each batch's first row, and the number of rows at the end.
    starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    #: Names the content: the manifest's digest, or one over the files' digests.
    digest: str

    @property
    def count(self) -> int:
        return int(self.starts[-1])


def open_rows(name_or_path: str | os.PathLike[str], columns: Sequence[str] | None) -> Rows:
    """Return the mapped rows of a dataset.

    Raises:
        Invalid: naming the dataset, file or column, and the way out.
    """
    directory = _located(name_or_path)
    manifest_path = directory / MANIFEST_NAME
    if directory.is_dir() and manifest_path.is_file():
        manifest = _manifest(manifest_path, _expected_digest(name_or_path))
        digest = manifest.digest
        files = [(directory / FILES_NAME / file.name, file.sha256) for file in manifest.files]
        declared = _declared(manifest)
    else:
        paths = parquet_files(directory)
        files = [(path, hash_file(path)) for path in paths]
        digest = hashlib.sha256("".join(sha256 for _, sha256 in files).encode()).hexdigest()
        declared = None
    batches: list[pa.RecordBatch] = []
    for path, sha256 in files:
        reader = mapped(path, sha256, cache_dir())
        declared = declared or reader.schema
        _check_schema(reader.schema, declared, path.name)
        batches += [reader.get_batch(i) for i in range(reader.num_record_batches)]
    assert declared is not None
    chosen = _chosen(declared, columns)
    selected = tuple(batch.select(chosen.names) for batch in batches)
    starts = np.cumsum([0, *(batch.num_rows for batch in selected)], dtype=np.int64)
    return Rows(selected, chosen, starts, digest)


def parquet_files(path: Path) -> list[Path]:
    """Return a Parquet file, or those of a directory in the order of their names.

    Raises:
        Invalid: if there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Invalid("no such dataset or path", field=str(path), hint="name a directory or a Parquet file")
    if found := sorted(p for p in path.iterdir() if p.suffix == ".parquet" and p.is_file()):
        return found
    raise Invalid("no Parquet files in it", field=str(path), hint="publish the data, or name another directory")


def _located(name_or_path: str | os.PathLike[str]) -> Path:
    text = os.fspath(name_or_path)
    datasets = os.environ.get("POLYRAY_DATASETS_DIR")
    if "@" not in text or "/" in text:
        return Path(text)
    ref = DatasetRef.parse(text, field="dataset")
    if datasets is None:
        raise Invalid(
            f"{ref} is a version's name, and POLYRAY_DATASETS_DIR is not set", field="dataset", hint="give a path"
        )
    directory = Path(datasets) / str(ref)
    if not directory.is_dir():
        there = sorted(p.name for p in Path(datasets).iterdir()) if Path(datasets).is_dir() else []
        raise Invalid(
            f"this workload did not declare {ref}",
            field="dataset",
            hint=f"add it to 'datasets:' in its file; declared are: {', '.join(there) or 'none'}",
        )
    return directory


def _expected_digest(name_or_path: str | os.PathLike[str]) -> str | None:
    """Return the digest that the platform wrote for a declared version; None outside a run."""
    text = os.fspath(name_or_path)
    run_dir = os.environ.get("POLYRAY_RUN_DIR")
    if run_dir is None or "@" not in text or "/" in text:
        return None
    try:
        entries = json.loads((Path(run_dir) / "run.json").read_bytes()).get("datasets", [])
    except FileNotFoundError:
        return None
    ref = DatasetRef.parse(text, field="dataset")
    for entry in entries:
        if (entry["name"], entry["version"]) == (ref.name, ref.version):
            return str(entry["digest"])
    raise Invalid(f"this workload did not declare {ref}", field="dataset", hint="add it to 'datasets:' in its file")


def _manifest(path: Path, expected: str | None) -> Manifest:
    with path.open("rb") as file:
        manifest = load_manifest(file.read(MAX_MANIFEST_BYTES + 1))
    if expected is not None and manifest.digest != expected:
        raise Invalid(
            f"its manifest changed since the version was made: digest {manifest.digest}, not {expected}",
            field=f"{manifest.name}",
            hint="nothing was read; publish the data as a new version",
        )
    return manifest


def _declared(manifest: Manifest) -> pa.Schema | None:
    if manifest.arrow_schema is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.arrow_schema)))
    except (pa.ArrowException, OSError) as error:
        raise Invalid("it is no Arrow schema", field="arrow_schema") from error


def _check_schema(found: pa.Schema, declared: pa.Schema, file: str) -> None:
    if found.equals(declared):
        return
    for name in declared.names:
        if found.get_field_index(name) < 0:
            raise Invalid(f"column {name} is missing", field=file, hint="publish the files as one dataset")
    for field in found:
        index = declared.get_field_index(field.name)
        if index < 0 or not field.equals(declared.field(index)):
            raise Invalid(
                f"column {field.name} is {field.type}, which the dataset's schema does not have",
                field=file,
                hint="publish the files as one dataset",
            )
    raise Invalid("its columns are in another order", field=file, hint="publish the files as one dataset")


def _chosen(declared: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return declared
    for name in columns:
        if declared.get_field_index(name) < 0:
            raise Invalid(
                "no such column", field=f"columns.{name}", hint=f"there are: {', '.join(declared.names[:20])}"
            )
    return pa.schema([declared.field(name) for name in columns])
