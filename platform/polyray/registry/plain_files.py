"""Reading a directory that a tenant's code may change while it is read.

Every step down is taken relative to the directory before and without following links, and what was opened
is looked at, so nothing outside can be read, whatever is swapped when.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from polyray.core.beneath import open_beneath
from polyray.core.errors import Code, Conflict, Invalid, PolyrayError
from polyray.core.file_set import FileEntry
from polyray.core.ids import shown

MAX_FILES = 1_000
MAX_DEPTH = 8
_CHUNK_BYTES = 2**20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def plain_files(root: Path, relative: str) -> Iterator[tuple[str, BinaryIO]]:
    """Yield each file beneath `root/relative` with its path from there, open for reading; a file yields itself.

    Raises:
        FileNotFoundError: if there is no such path.
        Conflict: if something there is neither a plain file nor a directory.
        Invalid: if a name is not printable text, or there are too many files or levels.
    """
    try:
        directory = _opened(root, relative.split("/"))
    except FileNotFoundError:
        raise
    except OSError:  # not a directory: a file, or a link that `open_beneath` refuses
        with os.fdopen(open_beneath(root, relative), "rb") as file:
            yield relative.rsplit("/", 1)[-1], file
        return
    with _closing(directory):
        for count, found in enumerate(_beneath(directory, "", MAX_DEPTH), start=1):
            if count > MAX_FILES:
                found[1].close()
                raise Invalid(f"more than {MAX_FILES} files", field="path", hint="pack them into fewer")
            with found[1]:
                yield found


def hash_entry(path: str, file: BinaryIO, copy_to: BinaryIO | None = None, *, limit: int | None = None) -> FileEntry:
    """Return the entry of an open file's bytes, written to `copy_to` on the way; at most `limit` of them.

    Raises:
        PolyrayError: code `too_large`.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        if limit is not None and size > limit:
            raise PolyrayError(Code.TOO_LARGE, f"{shown(path)} is larger than what is left", "", "path")
        digest.update(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return FileEntry(path, size, digest.hexdigest())


def _opened(root: Path, parts: list[str]) -> int:
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        with _closing(directory):
            directory = os.open(part, _DIRECTORY, dir_fd=directory)
    return directory


def _beneath(directory: int, prefix: str, levels: int) -> Iterator[tuple[str, BinaryIO]]:
    for name in sorted(os.listdir(directory)):
        path = prefix + name
        if not name.isprintable():
            raise Invalid(f"{shown(path)} is not printable text", field="path", hint="rename it")
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if levels == 0:
                raise Invalid(f"{shown(path)} is more than {MAX_DEPTH} levels down", field="path")
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            with _closing(below):
                yield from _beneath(below, f"{path}/", levels - 1)
        elif stat.S_ISREG(mode):
            yield path, _plain(name, directory, path)
        else:
            raise _special(path)


def _plain(name: str, directory: int, path: str) -> BinaryIO:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise _special(path) from error
    found = os.fstat(handle)
    # A second name of the file may be in a place which its owner could not read itself.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise _special(path)
    return os.fdopen(handle, "rb")


def _special(path: str) -> Conflict:
    return Conflict(f"{shown(path)} is not a plain file", hint="links and special files are not followed")


@contextmanager
def _closing(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(handle)
