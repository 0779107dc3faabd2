"""Unpacking the code of a workload: a zip that somebody else made.

Every name is checked before anything is written, sizes are counted while bytes are written (a header may
lie), and the result appears under its name only when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from polyray.core.errors import Invalid
from polyray.core.ids import shown

MAX_ENTRIES = 20_000
MAX_UNPACKED_BYTES = 2**30
_CHUNK_BYTES = 2**20


def unpack_code(archive: Path | None, sha256: str | None, into: Path) -> None:
    """Unpack `archive`, whose bytes must have `sha256`, as the directory `into`; without an archive make it empty.

    A directory that holds this very code already is left as it is, with what the program wrote there: a
    later attempt finds it again.

    Raises:
        Invalid: naming the entry, if it would lie outside, is a link or special file, or is too much.
    """
    marker = into.parent / f"{into.name}.sha256"
    wanted = sha256 or "none"
    if into.is_dir() and marker.is_file() and marker.read_text() == wanted:
        return
    partial = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
    try:
        if archive is not None:
            with archive.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise Invalid("its bytes changed since it was sent", field="working_dir", hint="submit again")
                _unpack(file, partial)
        marker.unlink(missing_ok=True)
        if into.is_dir():
            shutil.rmtree(into)
        partial.rename(into)
        marker.write_text(wanted)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(file: BinaryIO, directory: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ENTRIES:
                raise _refused(archive.filename or "", f"{len(entries)} entries; at most {MAX_ENTRIES}")
            for entry in entries:
                _check(entry)
            room = MAX_UNPACKED_BYTES
            for entry in entries:
                room -= _extract(archive, entry, directory, room)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise Invalid(f"not a sound zip file: {error}", field="working_dir", hint="pack it again") from error


def _check(entry: zipfile.ZipInfo) -> None:
    parts = entry.filename.removesuffix("/").split("/")
    if any(part in {"", ".", ".."} or "\\" in part or "\0" in part for part in parts) or ":" in parts[0][:2]:
        raise _refused(entry.filename, "its name leads elsewhere")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise _refused(entry.filename, "it is a link or a special file")
    if entry.flag_bits & 0x1:
        raise _refused(entry.filename, "it is encrypted")


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, directory: Path, room: int) -> int:
    """Write one entry and return its size in bytes; never more than `room`."""
    target = directory / entry.filename
    try:
        if entry.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        executable = entry.external_attr >> 16 & stat.S_IXUSR
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if executable else 0o644)
    except (FileExistsError, NotADirectoryError) as error:
        raise _refused(entry.filename, "it is there twice") from error
    written = 0
    with os.fdopen(handle, "wb") as out, archive.open(entry) as source:
        while chunk := source.read(_CHUNK_BYTES):
            written += len(chunk)
            if written > room:
                raise _refused(entry.filename, f"more than {MAX_UNPACKED_BYTES >> 20} MiB unpacked")
            out.write(chunk)
    return written


def _refused(name: str, why: str) -> Invalid:
    return Invalid(
        f"{shown(name)}: {why}", field="working_dir", hint="pack plain files with names inside the directory"
    )
