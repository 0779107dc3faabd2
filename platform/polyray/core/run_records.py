"""Records of a run: append-only JSON lines that its program writes and the platform reads.

Each line is `{"at_ms", "attempt", "type", ...}`, of a type `metrics` (`"metrics": {...}`), `model`
(`"path"`, `"digest"`, `"size_bytes"`) or `serving` (`"state"`). The writer is a tenant's code, so a reader takes
what parses and passes over the rest.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyray.core.errors import Invalid

RECORDS_NAME = "records.jsonl"
MAX_LINE_BYTES = 64 * 1024


def append_record(run_dir: Path, kind: str, fields: Mapping[str, Any], *, attempt: int, now_ms: int) -> None:
    """Append one record; lines of several writers never mix, since each is one write.

    Raises:
        Invalid: if a value has no JSON form, or the line would be longer than 64 KiB.
    """
    try:
        text = json.dumps({"at_ms": now_ms, "attempt": attempt, "type": kind, **_finite(fields)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid(f"a record holds numbers, text, lists and mappings: {error}", field=kind) from error
    line = text.encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise Invalid(f"a record of {len(line)} bytes", field=kind, hint=f"at most {MAX_LINE_BYTES}")
    handle = os.open(run_dir / RECORDS_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def parse_records(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a file's bytes, passing over lines that are torn, too long or no records."""
    for line in content.splitlines():
        if len(line) > MAX_LINE_BYTES:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("type"), str):
            yield record


def _finite(value: Any) -> Any:
    """Return a value with NaN and the infinities as text: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
