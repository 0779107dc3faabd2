"""The digest of a set of files, as a model version is named by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class FileEntry:
    #: Relative, with `/`.
    path: str
    size_bytes: int
    sha256: str

    def as_dict(self) -> dict[str, object]:
        return {"path": self.path, "size_bytes": self.size_bytes, "sha256": self.sha256}


def files_digest(entries: Iterable[FileEntry]) -> str:
    """Return the SHA-256 over the sorted (path, size, SHA-256) of a set of files, written as canonical JSON."""
    rows = [[entry.path, entry.size_bytes, entry.sha256] for entry in sorted(entries)]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()
