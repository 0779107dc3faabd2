"""From files to a dataset version ready to be sent: one schema, normalised Parquet, hashes, a manifest.

    python -m polyray.data.publishing SOURCE --name digits --out DIRECTORY

The first file declares the columns and their order, unless a schema is given. Others may have them in
another order, lack nulls, or be all null; any other difference is refused by file and column, and no value
is ever matched by position. What a file says of other tools (pandas' metadata) is left behind.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from polyray.core.errors import Invalid, PolyrayError
from polyray.core.ids import parse_slug
from polyray.data.cache import as_plain, batches, first_line, hash_file, open_parquet, plain
from polyray.data.manifest import Column, DataFile, DataLineage, Manifest, Stage, parse_manifest, parse_stage
from polyray.data.source import FILES_NAME, MANIFEST_NAME

_ROW_GROUP_BYTES = 32 * 2**20
_READABLE = (".parquet", ".csv")


@dataclass(frozen=True)
class Published:
    """A version on disk: `manifest.json` and `files/NAME`, as `polyray.data.stream` reads it."""

    directory: Path
    manifest: Manifest

    @property
    def files(self) -> tuple[tuple[Path, DataFile], ...]:
        """Each file with its entry of the manifest, in order."""
        return tuple((self.directory / FILES_NAME / file.name, file) for file in self.manifest.files)


@dataclass(frozen=True)
class _Source:
    """One input: its name in messages, its own schema, and its rows, read when asked for."""

    name: str
    schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]


def publish(
    source: str | os.PathLike[str] | pa.Table,
    *,
    name: str,
    directory: str | os.PathLike[str],
    stage: str = "raw",
    schema: pa.Schema | None = None,
    lineage: DataLineage = DataLineage(),
) -> Published:
    """Write `source` (Parquet or CSV file, a directory of them, or a table) as a version into `directory`.

    Memory is bounded by a row group, whatever the size of the data.

    Raises:
        Invalid: naming the file and column that do not fit, and the way out. Nothing is left in `directory` then.
    """
    dataset, declared_stage = parse_slug(name, field="name"), parse_stage(stage)
    sources = _sources(source)
    declared = plain(schema) if schema is not None else _unified(sources)
    _check_columns(declared)
    out = Path(directory)
    if (out / MANIFEST_NAME).exists():
        raise Invalid("a version is there already", field=str(out), hint="name an empty directory")
    (out / FILES_NAME).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        files = []
        for index, one in enumerate(sources):
            path = out / FILES_NAME / f"part-{index:05d}.parquet"
            written.append(path)
            files.append(_write(one, declared, path))
        manifest = _manifest(dataset, declared_stage, declared, tuple(files), lineage)
        parse_manifest(manifest.as_dict())  # what the control plane would refuse is refused here
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    (out / MANIFEST_NAME).write_bytes(manifest.canonical())
    return Published(out, manifest)


def _sources(source: str | os.PathLike[str] | pa.Table) -> list[_Source]:
    if isinstance(source, pa.Table):
        table = source
        return [_Source("table", plain(table.schema), lambda: _plain_batches(iter(table.to_batches()), table.schema))]
    path = Path(source)
    if path.is_dir():
        paths = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith((".", "_")))
    else:
        paths = [path]
    if not paths:
        raise Invalid("no files in it", field=str(path), hint="name a directory of Parquet or CSV files")
    return [_file_source(p) for p in paths]


def _file_source(path: Path) -> _Source:
    if path.suffix not in _READABLE:
        raise Invalid("neither .parquet nor .csv", field=path.name, hint="convert it, or move it out of the directory")
    if not path.is_file():
        raise Invalid("no such file", field=str(path))
    if path.suffix == ".csv":
        with _refused(path.name, "not a CSV file"), pyarrow.csv.open_csv(path) as reader:
            csv_schema = reader.schema
        return _Source(path.name, plain(csv_schema), lambda: _csv_batches(path, csv_schema))
    with open_parquet(path) as parquet:
        own = parquet.schema_arrow

    def read() -> Iterator[pa.RecordBatch]:
        with open_parquet(path) as again:
            yield from _plain_batches(batches(again, path.name), own)

    return _Source(path.name, plain(own), read)


def _csv_batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _refused(path.name, "not a CSV file of one type a column"):
        yield from pyarrow.csv.open_csv(
            path, convert_options=pyarrow.csv.ConvertOptions(column_types=schema, null_values=[""])
        )


def _plain_batches(source: Iterator[pa.RecordBatch], own: pa.Schema) -> Iterator[pa.RecordBatch]:
    stored = plain(own)
    return (as_plain(batch, stored) for batch in source)


def _unified(sources: list[_Source]) -> pa.Schema:
    """Return the first file's columns, nullable where any file says so, typed where the first is all null."""
    first = sources[0]
    fields = {field.name: field for field in first.schema}
    if len(fields) != len(first.schema.names):
        raise Invalid("two columns have one name", field=first.name, hint="rename one")
    for one in sources[1:]:
        if len(set(one.schema.names)) != len(one.schema.names):
            raise Invalid("two columns have one name", field=one.name, hint="rename one")
        for name in fields:
            if one.schema.get_field_index(name) < 0:
                raise Invalid(f"column {name} is missing, which {first.name} has", field=one.name, hint="add it")
        for field in one.schema:
            if field.name not in fields:
                raise Invalid(
                    f"column {field.name} is not in {first.name}", field=one.name, hint="drop it, or add it to all"
                )
            fields[field.name] = _joined(fields[field.name], field, one.name, first.name)
    return pa.schema(list(fields.values()))


def _joined(declared: pa.Field, found: pa.Field, file: str, first: str) -> pa.Field:
    nullable = declared.nullable or found.nullable
    if pa.types.is_null(declared.type):
        return pa.field(found.name, found.type, True)
    if not pa.types.is_null(found.type) and found.type != declared.type:
        raise Invalid(
            f"column {found.name} is {found.type}, but {declared.type} in {first}",
            field=file,
            hint=f"cast it to {declared.type}, or give publish a schema",
        )
    return pa.field(declared.name, declared.type, nullable or pa.types.is_null(found.type))


def _check_columns(schema: pa.Schema) -> None:
    if not len(schema):
        raise Invalid("it has no columns", field="schema")
    for field in schema:
        if isinstance(field.type, pa.BaseExtensionType):
            raise Invalid(
                f"column {field.name} is of the extension type {field.type}",
                field="schema",
                hint="publish its storage type",
            )


def _write(one: _Source, declared: pa.Schema, path: Path) -> DataFile:
    rows = 0
    with pq.ParquetWriter(path, declared, compression="zstd") as writer:
        pending: list[pa.RecordBatch] = []
        for batch in one.read():
            pending.append(_fitted(batch, declared, one.name))
            rows += batch.num_rows
            if sum(b.nbytes for b in pending) >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(pending, declared))
                pending = []
        if pending:
            writer.write_table(pa.Table.from_batches(pending, declared))
    with pq.ParquetFile(path) as parquet:
        groups = parquet.num_row_groups
    return DataFile(path.name, hash_file(path), path.stat().st_size, rows, groups)


def _fitted(batch: pa.RecordBatch, declared: pa.Schema, file: str) -> pa.RecordBatch:
    """Return the batch with the declared columns: picked by name, cast where no value can change."""
    arrays = []
    for field in declared:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise Invalid(f"column {field.name} is missing", field=file, hint="add it")
        try:
            array = batch.column(index).cast(field.type, safe=True)
        except pa.ArrowException as error:
            raise Invalid(
                f"column {field.name}: {first_line(error)}", field=file, hint=f"cast it to {field.type}"
            ) from error
        if array.null_count and not field.nullable:
            raise Invalid(
                f"column {field.name} has {array.null_count} nulls, but is declared without",
                field=file,
                hint="fill them, or declare it nullable",
            )
        arrays.append(array)
    if extra := set(batch.schema.names) - set(declared.names):
        raise Invalid(f"column {min(extra)} is not in the schema", field=file, hint="drop it, or declare it")
    return pa.RecordBatch.from_arrays(arrays, schema=declared)


def _manifest(
    name: str, stage: Stage, schema: pa.Schema, files: tuple[DataFile, ...], lineage: DataLineage
) -> Manifest:
    return Manifest(
        name=name,
        stage=stage,
        columns=tuple(Column(field.name, str(field.type), field.nullable) for field in schema),
        files=files,
        lineage=lineage,
        arrow_schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
    )


@contextmanager
def _refused(file: str, what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        told = re.sub(r"\s+", " ", first_line(error))
        raise Invalid(f"{what}: {told}", field=file) from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m polyray.data.publishing", description="Write a dataset version.")
    parser.add_argument("source", help="a Parquet or CSV file, or a directory of them")
    parser.add_argument("--name", required=True)
    parser.add_argument("--stage", default="raw", help="raw or processed")
    parser.add_argument("--out", required=True, help="directory for the version")
    given = parser.parse_args(argv)
    try:
        published = publish(given.source, name=given.name, stage=given.stage, directory=given.out)
    except PolyrayError as error:
        print(error, file=sys.stderr)
        return 2
    print(published.manifest.digest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
