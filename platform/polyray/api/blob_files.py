"""Blobs on disk: streamed beside their place, checked, then renamed into it. A reader sees all of one or none."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyray.core.durable import sync_directory
from polyray.core.errors import Code, Invalid, PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.core.layout import Layout

#: What a broken upload left is removed at some later upload of the tenant.
STALE_SECONDS = 24 * 3600


@dataclass
class Incoming:
    """One upload under way, from `open` to `close`; without `commit` in between it leaves nothing behind."""

    layout: Layout
    tenant: str
    sha256: str
    limit_bytes: int
    size_bytes: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _path: Path | None = None
    _descriptor: int = -1

    def open(self) -> None:
        directory = self.layout.tenant(self.tenant) / "incoming"
        with _disk():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(directory)
            self._descriptor, name = tempfile.mkstemp(dir=directory, prefix="blob-")
        self._path = Path(name)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises:
            PolyrayError: code `too_large`, or `unavailable` if the disk is full.
        """
        self.size_bytes += len(chunk)
        if self.size_bytes > self.limit_bytes:
            raise too_large(self.limit_bytes)
        self._digest.update(chunk)
        view = memoryview(chunk)
        with _disk():
            while view:
                view = view[os.write(self._descriptor, view) :]

    def commit(self) -> None:
        """Put the blob in its place, durable. Idempotent: the same content is there already, or comes now.

        Raises:
            Invalid: if the bytes are not what their name says.
        """
        found = self._digest.hexdigest()
        if found != self.sha256:
            raise Invalid(
                f"the {self.size_bytes} bytes received have the SHA-256 {found}", field="sha256", hint="send them again"
            )
        assert self._path is not None
        place = self.layout.blob(self.tenant, self.sha256)
        with _disk():
            os.fchmod(self._descriptor, 0o444)
            os.fsync(self._descriptor)
            place.parent.mkdir(mode=0o700, exist_ok=True)
            with outside("file.blob"):
                self._path.rename(place)
                sync_directory(place.parent)
        self._path = None


def too_large(limit_bytes: int) -> PolyrayError:
    return PolyrayError(Code.TOO_LARGE, f"a blob has at most {limit_bytes} bytes", "split it", "body")


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Unavailable("the store is full", hint="ask the operator to make room") from error
        raise


def _sweep(directory: Path) -> None:
    """Remove what uploads left that ended with the process."""
    for entry in os.scandir(directory):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS:
                os.unlink(entry.path)
