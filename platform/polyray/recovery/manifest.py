"""What a backup says of itself, and whether it can be believed. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyray.core.errors import Conflict, Invalid

#: Of the archive's members and their meaning.
FORMAT = 1
MANIFEST, DATABASE, PLATFORM = "manifest.json", "database.sqlite", "platform.json"
MAX_MANIFEST_BYTES = 2**20
MAX_PLATFORM_BYTES = 8 * 2**20
_SHA256 = r"^[0-9a-f]{64}$"
#: Some thousands of years: a moment beyond is none that a calendar has.
_MAX_MS = 250_000_000_000_000


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Member(_Model):
    sha256: str = Field(pattern=_SHA256)
    size_bytes: int = Field(ge=0)


class Manifest(_Model):
    format: Literal[1] = 1
    #: The version that made it.
    polyray: str = Field(max_length=100)
    #: Revision of the schema of `database.sqlite`.
    schema_revision: str = Field(max_length=32)
    source: Literal["sqlite", "postgresql"]
    made_ms: int = Field(ge=0, le=_MAX_MS)
    #: The newest event, and its place in the chain; 0 if there was none.
    last_event_id: int = Field(ge=0)
    last_chain: str = Field(pattern=_SHA256)
    rows: dict[str, int]
    members: dict[str, Member]

    def as_bytes(self) -> bytes:
        return json.dumps(self.model_dump(), indent=1).encode() + b"\n"


def parse_manifest(content: bytes, *, known_revisions: Collection[str]) -> Manifest:
    """Return the manifest of a backup that this version can restore.

    Raises:
        Conflict: if a newer version made it.
        Invalid: if it is no manifest.
    """
    try:
        given = json.loads(content)
        if isinstance(given, dict) and isinstance(given.get("format"), int) and given["format"] > FORMAT:
            raise Conflict(f"the backup has format {given['format']}", hint=_NEWER)
        manifest = Manifest.model_validate(given)
    except (ValueError, RecursionError) as error:
        told = "its manifest cannot be read"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            told = f"{told}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise Invalid(told, field="backup", hint=_FOREIGN) from error
    if DATABASE not in manifest.members or not set(manifest.members) <= {DATABASE, PLATFORM}:
        raise Invalid("its manifest names other members than a backup has", field="backup", hint=_FOREIGN)
    if manifest.schema_revision not in known_revisions:
        raise Conflict(f"the backup's schema is {manifest.schema_revision}, which is not known here", hint=_NEWER)
    return manifest


def check_rows(manifest: Manifest, found: Mapping[str, int]) -> None:
    """Check that the database has what its manifest says.

    Raises:
        Invalid: naming the first table that differs.
    """
    for table in sorted({*manifest.rows, *found}):
        told, is_there = manifest.rows.get(table, 0), found.get(table, 0)
        if told != is_there:
            raise Invalid(f"it has {is_there} rows of {table}, and says {told}", field="backup", hint=_FOREIGN)


_NEWER = "a newer Polyray made it: restore it with that version"
_FOREIGN = "name a file that 'polyray backup' made"
