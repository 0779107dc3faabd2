"""Opening, listing and removing files that a tenant's code may have replaced.

Whoever writes in a run directory may put a symbolic link, a FIFO or a device where the platform expects a
log, and swap it between a check and the open. So every component is opened relative to its parent and
without following links, and what was opened is looked at, never what a path says.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath

from polyray.core.errors import Conflict

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A FIFO opened without O_NONBLOCK waits for its writer, for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_beneath(root: Path, relative: str | PurePosixPath) -> int:
    """Return a descriptor of the plain file `relative` beneath `root`, for reading; the caller closes it.

    Raises:
        FileNotFoundError: if it, or a directory on the way, is not there.
        Conflict: if a component is a link, or the file is no plain one with one name.
        ValueError: if `relative` is absolute, empty, or has `.`, `..` or NUL in it.
    """
    parts = _checked(str(relative))
    directory = _directory(root, parts[:-1], relative)
    try:
        descriptor = _open(parts[-1], _FILE, directory, relative)
    finally:
        os.close(directory)
    found = os.fstat(descriptor)
    # A second name of the file may be in a place which its owner could not read itself.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _not_plain(relative)
    return descriptor


def read_beneath(root: Path, relative: str | PurePosixPath, *, offset: int, limit: int) -> tuple[bytes, int]:
    """Return at most `limit` bytes from `offset`, and the size of the whole file in bytes.

    Raises as `open_beneath`.
    """
    descriptor = open_beneath(root, relative)
    try:
        return os.pread(descriptor, limit, offset), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def list_beneath(root: Path, relative: str | PurePosixPath) -> list[tuple[str, int]]:
    """Return the names in the directory `relative` beneath `root`, links too, with their own sizes in bytes.

    All names are read before the first size: what grows meanwhile is not seen smaller than when its name was.

    Raises:
        FileNotFoundError: if it, or a directory on the way, is not there.
        Conflict: if a component is a link, or no directory.
        ValueError: as `open_beneath`.
    """
    directory = _directory(root, _checked(str(relative)), relative)
    try:
        found = []
        for name in os.listdir(directory):
            with suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=directory, follow_symlinks=False).st_size))
        return found
    finally:
        os.close(directory)


def remove_beneath(root: Path, relative: str | PurePosixPath) -> None:
    """Remove the directory `relative` beneath `root` with all in it, links themselves and not what they name.

    However deep it is nested, and whatever modes it has. Idempotent: an absent one is removed.

    Raises:
        Conflict: if a component is a link, or no directory.
        OSError: if something in it cannot be removed, or is made anew all the time.
        ValueError: as `open_beneath`.
    """
    *parents, name = _checked(str(relative))
    try:
        directory = _directory(root, parents, relative)
    except FileNotFoundError:
        return
    try:
        top = _own_directory(name, directory)
        if top is None:
            raise _not_plain(relative)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=directory)
    except FileNotFoundError:
        return
    finally:
        os.close(directory)


def _empty(top: int) -> None:
    """Empty a directory. What is nested deeper is moved up to it first, so that depth costs no stack.

    What another removes meanwhile is gone as well; the rest is listed anew.
    """
    while names := os.listdir(top):
        for name in names:
            with suppress(FileNotFoundError):
                _remove(name, top)


def _remove(name: str, top: int) -> None:
    below = _own_directory(name, top)
    if below is None:
        os.unlink(name, dir_fd=top)
        return
    try:
        for inner in os.listdir(below):
            if (deeper := _own_directory(inner, below)) is None:
                os.unlink(inner, dir_fd=below)
            else:
                os.close(deeper)
                os.rename(inner, f".removed-{secrets.token_hex(8)}", src_dir_fd=below, dst_dir_fd=top)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=top)


def _own_directory(name: str, parent: int) -> int | None:
    """Return a descriptor of a directory that may now be emptied; None if it is something else."""
    try:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except NotADirectoryError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _directory(root: Path, parts: list[str], relative: str | PurePosixPath) -> int:
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            below = _open(part, _DIRECTORY, directory, relative)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


def _open(part: str, flags: int, directory: int, relative: str | PurePosixPath) -> int:
    try:
        return os.open(part, flags, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:  # ELOOP or ENOTDIR for a link, ENXIO for a socket
        raise _not_plain(relative) from error


def _checked(relative: str) -> list[str]:
    parts = relative.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise ValueError(f"{relative!r} is not a path beneath a directory")
    return parts


def _not_plain(relative: str | PurePosixPath) -> Conflict:
    return Conflict(f"{relative} is not a plain file", hint="links and special files in a run are not followed")
