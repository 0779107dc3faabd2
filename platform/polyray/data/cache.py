"""Parquet, transcoded once into uncompressed Arrow IPC that can be mapped.

The cache is content-addressed: an entry is named by the SHA-256 of the Parquet file it came from, written
beside its place and renamed into it, so a half-written entry is never seen and two processes that make
the same one agree. Bytes are hashed before they are parsed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from polyray.core.errors import Invalid

#: Part of every entry's name: a change of how entries are written must not find old ones.
_LAYOUT = "1"
#: Rows and bytes of one record batch: large enough to be cheap to find, small enough to transcode in little memory.
_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 * 2**20


def cache_dir() -> Path:
    """Return where entries live: `POLYRAY_CACHE_DIR`, else the run's directory, else the user's cache."""
    if given := os.environ.get("POLYRAY_CACHE_DIR"):
        return Path(given)
    if run := os.environ.get("POLYRAY_RUN_DIR"):
        return Path(run) / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyray" / "arrow"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        Invalid: naming the file, if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Invalid(f"cannot read it: {error.strerror}", field=path.name) from error


def mapped(source: Path, sha256: str, directory: Path) -> pa.ipc.RecordBatchFileReader:
    """Return the mapped IPC form of the Parquet file `source`, making it if it is not there.

    Raises:
        Invalid: naming the file, if its bytes are not `sha256` or are no Parquet.
    """
    entry = directory / f"{sha256}-{_LAYOUT}.arrow"
    if not entry.exists():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _one_at_a_time(directory / f"{sha256}.lock"):
            if not entry.exists():
                _make(source, sha256, entry)
    return pa.ipc.open_file(pa.memory_map(str(entry)))


def _make(source: Path, sha256: str, entry: Path) -> None:
    found = hash_file(source)
    if found != sha256:
        raise Invalid(
            f"its bytes changed since it was published: SHA-256 {found}, not {sha256}",
            field=source.name,
            hint="publish the data as a new version",
        )
    handle, name = tempfile.mkstemp(dir=entry.parent, prefix=".making-")
    try:
        with open_parquet(source) as parquet, os.fdopen(handle, "wb") as file:
            schema = plain(parquet.schema_arrow)
            with pa.ipc.new_file(file, schema) as writer:
                for batch in batches(parquet, source.name):
                    writer.write_batch(as_plain(batch, schema))
            file.flush()
            os.fsync(file.fileno())
        os.rename(name, entry)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        Invalid: naming the file and what is wrong, if it is empty or no Parquet.
    """
    try:
        if path.stat().st_size == 0:
            raise Invalid("it has no bytes", field=path.name, hint="even a file of 0 rows has a footer; remove it")
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"not a Parquet file: {first_line(error)}", field=path.name) from error


def batches(parquet: pq.ParquetFile, name: str) -> Iterator[pa.RecordBatch]:
    """Read a Parquet file batch by batch, in bounded memory."""
    rows = parquet.metadata.num_rows
    size = sum(parquet.metadata.row_group(i).total_byte_size for i in range(parquet.num_row_groups))
    batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // size if size else _BATCH_ROWS))
    try:
        yield from parquet.iter_batches(batch_size=batch_rows)
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"its data are damaged: {first_line(error)}", field=name) from error


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema as it is stored here: dictionaries decoded, no metadata of other tools."""
    fields = []
    for field in schema:
        dtype = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        fields.append(pa.field(field.name, dtype, field.nullable))
    return pa.schema(fields)


def as_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
