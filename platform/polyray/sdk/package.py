"""Packing a working directory: one zip whose bytes depend on names and contents alone.

Names are kept byte for byte. Links are followed inside the directory and stored as what they lead to.
There are four things that cannot be packed, each refused by name: a link that leads outside, a link that
leads nowhere or in a circle, a special file (socket, pipe, device), and a name that is not UTF-8. Lines of a
`.polyrayignore` (globs on a name or on a path from the top, like simple lines of a `.gitignore`) leave things out.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polyray.core.errors import Code, Invalid, PolyrayError
from polyray.core.ids import shown

MAX_PACKAGE_BYTES = 256 * 2**20
MAX_FILES = 20_000
IGNORE_FILE = ".polyrayignore"
#: Never packed: version control, caches, environments.
EXCLUDED = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "*.pyc",
    ".venv",
    ".tox",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".DS_Store",
)
#: Zip has no time before it; a fixed one keeps the same content at the same digest.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    path: Path
    sha256: str
    size_bytes: int
    #: Names in the package, in its order (by bytes).
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    #: Relative to the top, with `/`.
    name: str
    #: What to read: the file itself, or what the link leads to.
    path: str
    executable: bool
    size_bytes: int


def pack(working_dir: Path, into: Path, *, max_bytes: int = MAX_PACKAGE_BYTES) -> Package:
    """Write a working directory to the zip file `into`. The same content gives the same bytes.

    Raises:
        Invalid: naming what cannot be packed.
        PolyrayError: code `too_large`.
    """
    if not working_dir.is_dir():
        raise Invalid("not a directory", field="working_dir", hint=f"check {shown(str(working_dir))}")
    top = os.path.realpath(working_dir)
    tree, entries, total = _Tree(top, _patterns(top)), [], 0
    for entry in tree.files(top, "", (top,)):
        entries.append(entry)
        total += entry.size_bytes
        if total > max_bytes or len(entries) > MAX_FILES:
            raise _too_large(entries, max_bytes)
    entries.sort(key=lambda entry: entry.name.encode())
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
        for entry in entries:
            _add(archive, entry)
    with into.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Package(into, digest, into.stat().st_size, tuple(entry.name for entry in entries))


class _Tree:
    def __init__(self, top: str, patterns: tuple[str, ...]) -> None:
        self._top, self._patterns, self._directories = top, patterns, 0

    def files(self, directory: str, prefix: str, ancestors: tuple[str, ...]) -> Iterator[_Entry]:
        """Yield the files below a directory. `ancestors` are the real paths from the top down to it."""
        self._directories += 1
        if self._directories > MAX_FILES:  # links to directories that hold links multiply without any file
            raise _refused(prefix, f"more than {MAX_FILES} directories, links followed")
        try:
            found = sorted(os.scandir(directory), key=lambda item: item.name)
        except OSError as error:
            raise _refused(prefix or ".", f"cannot read it: {error.strerror}") from error
        for item in found:
            name = prefix + item.name
            if not _ignored(name, item.name, self._patterns):
                yield from self._item(item, name, ancestors)

    def _item(self, item: os.DirEntry[str], name: str, ancestors: tuple[str, ...]) -> Iterator[_Entry]:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise _refused(name, "its name is not UTF-8", "rename it") from None
        path = os.path.realpath(item.path) if item.is_symlink() else item.path
        if os.path.commonpath([self._top, path]) != self._top:
            raise _refused(name, "the link leads out of the working directory", "copy what it leads to")
        mode, size = _status(name, path)
        if stat.S_ISREG(mode):
            yield _Entry(name, path, bool(mode & stat.S_IXUSR), size)
        elif not stat.S_ISDIR(mode):
            raise _refused(name, "not a regular file (a socket, pipe or device)", "remove it")
        elif path in ancestors:
            raise _refused(name, "the link leads back to a directory above it", "remove it")
        elif not os.path.exists(os.path.join(path, "pyvenv.cfg")):
            yield from self.files(path, name + "/", (*ancestors, path))


def _status(name: str, path: str) -> tuple[int, int]:
    try:
        status = os.lstat(path)
    except OSError as error:
        raise _refused(name, "the link leads nowhere, or in a circle", "remove it") from error
    if stat.S_ISLNK(status.st_mode):  # what realpath leaves unresolved is a circle
        raise _refused(name, "the link leads nowhere, or in a circle", "remove it")
    return status.st_mode, status.st_size


def _add(archive: zipfile.ZipFile, entry: _Entry) -> None:
    """Store one file, opened so that neither a link nor a pipe that took its place meanwhile can be read."""
    try:
        fd = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = "it changed while it was packed" if error.errno == errno.ELOOP else f"cannot read it: {error.strerror}"
        raise _refused(entry.name, what) from error
    with os.fdopen(fd, "rb") as source:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size_bytes:
            raise _refused(entry.name, "it changed while it was packed", "try again")
        info = zipfile.ZipInfo(entry.name, _EPOCH)
        info.create_system = 3  # unix: the mode below counts
        info.external_attr = (stat.S_IFREG | (0o755 if entry.executable else 0o644)) << 16
        info.file_size = entry.size_bytes
        with archive.open(info, "w") as target:
            left = entry.size_bytes
            while left and (chunk := source.read(min(left, 1 << 20))):
                target.write(chunk)
                left -= len(chunk)
        if left:
            raise _refused(entry.name, "it changed while it was packed", "try again")


def _patterns(top: str) -> tuple[str, ...]:
    try:
        lines = (Path(top) / IGNORE_FILE).read_text().splitlines()
    except FileNotFoundError:
        return EXCLUDED
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(IGNORE_FILE, f"cannot read it: {error}") from error
    own = (line.strip().rstrip("/") for line in lines)
    return (*EXCLUDED, *(line for line in own if line and not line.startswith("#")))


def _ignored(name: str, last: str, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern.lstrip("/")) if "/" in pattern else fnmatch.fnmatchcase(last, pattern)
        for pattern in patterns
    )


def _refused(name: str, what: str, way_out: str = "") -> Invalid:
    leave_out = f"leave it out with a line in {IGNORE_FILE}"
    return Invalid(
        f"{name!a}: {what}", field="working_dir", hint=f"{way_out}, or {leave_out}" if way_out else leave_out
    )


def _too_large(entries: list[_Entry], max_bytes: int) -> PolyrayError:
    largest = max(entries, key=lambda entry: entry.size_bytes)
    return PolyrayError(
        Code.TOO_LARGE,
        f"more than {max_bytes >> 20} MiB or {MAX_FILES} files; the largest is {largest.name!a} "
        f"({largest.size_bytes >> 20} MiB)",
        f"leave things out with a {IGNORE_FILE}, or publish data with 'polyray data publish'",
        "working_dir",
    )
