"""What a dataset version is: its files by content, one declared schema, its origin.

A manifest is made beside the data, where Parquet may be parsed, and travels as JSON. The control plane
reads it strictly and never opens the files: it compares digests of bytes. The digest of the canonical
JSON names the version's content, and is what a run checks before it reads.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from polyray.core.errors import Invalid
from polyray.core.ids import is_id, parse_slug, shown
from polyray.core.layout import parse_sha256
from polyray.core.spec import DatasetRef

#: The one layout of manifests that is written; another number is refused, not guessed at.
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 8 * 2**20
MAX_FILES = 10_000
MAX_COLUMNS = 2_000
MAX_TYPE_LENGTH = 1_000
MAX_ARROW_SCHEMA_BYTES = 2**20
MAX_PARENTS = 100
#: Bytes and rows of one version; sums of bounded numbers cannot wrap in the database.
MAX_TOTAL = 2**50

#: A name that is one path component on every system: no separator, not hidden, neither `.` nor `..`.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class Stage(StrEnum):
    """How far its author says the data are. Approval is another person's word and is not in the manifest."""

    RAW = "raw"
    PROCESSED = "processed"


@dataclass(frozen=True)
class Column:
    name: str
    #: The type in Arrow's own notation, such as `fixed_size_list<element: float>[64]`.
    type: str
    nullable: bool


@dataclass(frozen=True)
class DataFile:
    name: str
    sha256: str
    size_bytes: int
    rows: int
    #: How many row groups.
    row_groups: int


@dataclass(frozen=True)
class DataLineage:
    """Where the data come from: the job and the code (SHA-256) that wrote them, and the versions they were made of."""

    job: str | None = None
    code: str | None = None
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    name: str
    stage: Stage
    columns: tuple[Column, ...]
    files: tuple[DataFile, ...]
    lineage: DataLineage = DataLineage()
    #: The exact schema as an Arrow IPC message in base64; the columns above are for people.
    arrow_schema: str | None = None
    format: str = "parquet"

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, object]:
        return {
            "manifest": MANIFEST_VERSION,
            "name": self.name,
            "stage": self.stage.value,
            "format": self.format,
            "schema": [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in self.columns],
            "arrow_schema": self.arrow_schema,
            "files": [
                {
                    "name": f.name,
                    "sha256": f.sha256,
                    "size_bytes": f.size_bytes,
                    "rows": f.rows,
                    "row_groups": f.row_groups,
                }
                for f in self.files
            ],
            "rows": self.rows,
            "lineage": {"job": self.lineage.job, "code": self.lineage.code, "parents": list(self.lineage.parents)},
        }

    def canonical(self) -> bytes:
        """Return the one JSON text of this manifest: sorted keys, no spaces, ASCII."""
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.canonical()).hexdigest()


def load_manifest(content: bytes) -> Manifest:
    """Return the manifest of a JSON text.

    Raises:
        Invalid: if it is too large, no JSON, or as `parse_manifest` says.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise Invalid(f"{len(content)} bytes", field="manifest", hint=f"at most {MAX_MANIFEST_BYTES}")
    try:
        return parse_manifest(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"not JSON: {shown(str(error))}", field="manifest") from error


def parse_manifest(value: object) -> Manifest:
    """Return the manifest that a mapping describes. Unknown keys are refused: the digest must cover what is meant.

    Raises:
        Invalid: naming the first field that is wrong.
    """
    given = _mapping(
        value,
        "manifest",
        required={"manifest", "name", "stage", "format", "schema", "files", "rows", "lineage"},
        optional={"arrow_schema"},
    )
    if given["manifest"] != MANIFEST_VERSION or isinstance(given["manifest"], bool):
        raise Invalid(
            f"{shown(given['manifest'])} is not a known layout", field="manifest", hint=f"write {MANIFEST_VERSION}"
        )
    if given["format"] != "parquet":
        raise Invalid(f"{shown(given['format'])} is not a format", field="format", hint="write parquet")
    manifest = Manifest(
        name=parse_slug(given["name"], field="name"),
        stage=parse_stage(given["stage"]),
        columns=_columns(given["schema"]),
        files=_files(given["files"]),
        lineage=_lineage(given["lineage"]),
        arrow_schema=_arrow_schema(given.get("arrow_schema")),
    )
    if _count(given["rows"], "rows") != manifest.rows:
        raise Invalid(f"{given['rows']} rows, but the files hold {manifest.rows}", field="rows")
    if manifest.size_bytes > MAX_TOTAL:
        raise Invalid(f"{manifest.size_bytes} bytes", field="files", hint=f"at most {MAX_TOTAL} bytes a version")
    return manifest


def parse_stage(value: object) -> Stage:
    if isinstance(value, str) and value in set(Stage):
        return Stage(value)
    hint = "write raw or processed"
    if value == "approved":
        hint += "; a version is approved by somebody else, after it is published"
    raise Invalid(f"{shown(value)} is not a stage", field="stage", hint=hint)


def _columns(value: object) -> tuple[Column, ...]:
    columns = []
    for index, item in enumerate(_list(value, "schema", at_least=1, at_most=MAX_COLUMNS)):
        field = f"schema[{index}]"
        given = _mapping(item, field, required={"name", "type", "nullable"})
        if not isinstance(given["nullable"], bool):
            raise Invalid(f"{shown(given['nullable'])} is neither true nor false", field=f"{field}.nullable")
        columns.append(
            Column(
                name=_text(given["name"], f"{field}.name", at_most=256),
                type=_text(given["type"], f"{field}.type", at_most=MAX_TYPE_LENGTH),
                nullable=given["nullable"],
            )
        )
    _once((column.name for column in columns), "schema")
    return tuple(columns)


def _files(value: object) -> tuple[DataFile, ...]:
    files = []
    for index, item in enumerate(_list(value, "files", at_least=1, at_most=MAX_FILES)):
        field = f"files[{index}]"
        given = _mapping(item, field, required={"name", "sha256", "size_bytes", "rows", "row_groups"})
        name = given["name"]
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise Invalid(
                f"{shown(name)} is not a file's name",
                field=f"{field}.name",
                hint="letters, digits, '.', '_' and '-', in no folder",
            )
        size_bytes = _count(given["size_bytes"], f"{field}.size_bytes")
        if size_bytes == 0:
            raise Invalid(f"{name} has no bytes", field=f"{field}.size_bytes", hint="even 0 rows have a footer")
        files.append(
            DataFile(
                name=name,
                sha256=parse_sha256(given["sha256"], field=f"{field}.sha256"),
                size_bytes=size_bytes,
                rows=_count(given["rows"], f"{field}.rows"),
                row_groups=_count(given["row_groups"], f"{field}.row_groups"),
            )
        )
    _once((file.name for file in files), "files")
    return tuple(files)


def _lineage(value: object) -> DataLineage:
    given = _mapping(value, "lineage", required=set(), optional={"job", "code", "parents"})
    job, code = given.get("job"), given.get("code")
    if job is not None and not (isinstance(job, str) and is_id(job)):
        raise Invalid(f"{shown(job)} is not a workload's id", field="lineage.job")
    parents = _list(given.get("parents") or [], "lineage.parents", at_least=0, at_most=MAX_PARENTS)
    return DataLineage(
        job=job,
        code=None if code is None else parse_sha256(code, field="lineage.code"),
        parents=tuple(str(DatasetRef.parse(parent, field="lineage.parents")) for parent in parents),
    )


def _arrow_schema(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_ARROW_SCHEMA_BYTES:
        raise Invalid("not a schema in base64", field="arrow_schema", hint=f"at most {MAX_ARROW_SCHEMA_BYTES} bytes")
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid("not base64", field="arrow_schema") from error
    return value


def _mapping(value: object, field: str, *, required: set[str], optional: Iterable[str] = ()) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{shown(value)} is not a mapping", field=field)
    given = cast(Mapping[object, object], value)
    if unknown := [key for key in given if key not in required | set(optional)]:
        raise Invalid(f"unknown key {shown(unknown[0])}", field=field, hint="remove it, or check its spelling")
    if missing := sorted(required - set(cast(Mapping[str, object], given))):
        raise Invalid(f"{missing[0]} is missing", field=field, hint="add it")
    return cast(Mapping[str, object], given)


def _list(value: object, field: str, *, at_least: int, at_most: int) -> list[object]:
    if not isinstance(value, list):
        raise Invalid(f"{shown(value)} is not a list", field=field)
    if not at_least <= len(value) <= at_most:
        raise Invalid(f"{len(value)} entries", field=field, hint=f"from {at_least} to {at_most}")
    return value


def _text(value: object, field: str, *, at_most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= at_most:
        raise Invalid(f"{shown(value)} is not a text of 1 to {at_most} characters", field=field)
    if any(unicodedata.category(character) in {"Cc", "Cf", "Cs"} for character in value):
        raise Invalid(f"{shown(value)} has control characters", field=field, hint="rename it")
    return value


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOTAL:
        raise Invalid(f"{shown(value)} is not a count", field=field, hint=f"a whole number from 0 to {MAX_TOTAL}")
    return value


def _once(names: Iterable[str], field: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Invalid(f"{shown(name)} is there twice", field=field, hint="rename one")
        seen.add(name)
