"""The archive: a compressed tar of the manifest, the database and the platform's definition.

It is written whole or not at all, and read as what a stranger may have made: only regular files of known names,
no longer than the manifest says, each checked against its digest.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from polyray.core.durable import sync_directory
from polyray.core.errors import Code, Conflict, Invalid, PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.recovery.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_PLATFORM_BYTES,
    PLATFORM,
    Manifest,
    Member,
    parse_manifest,
)

_CHUNK = 2**20
_DAMAGED = "it is damaged, cut short, or no backup at all"


@contextmanager
def working_directory(beside: Path, name: str) -> Iterator[Path]:
    """Make a directory that only its owner reads, and remove it afterwards; what a crash left of it goes first."""
    directory = beside / name
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise Unavailable(f"{directory} cannot be made: {error}", hint="name another place") from error
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def digest_of(path: Path) -> Member:
    with path.open("rb") as file:
        return Member(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size_bytes=path.stat().st_size)


def write_archive(target: Path, manifest: Manifest, members: Mapping[str, Path], *, overwrite: bool) -> None:
    """Write an archive, 0600, and put it in place when it is on the disk.

    Raises:
        Conflict: if there is a file already, and it is not to be overwritten.
        Unavailable: if it cannot be written; then nothing of it is left.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
                content = manifest.as_bytes()
                archive.addfile(_entry(MANIFEST, len(content), manifest.made_ms), io.BytesIO(content))
                for name, path in members.items():
                    with path.open("rb") as member:
                        archive.addfile(_entry(name, path.stat().st_size, manifest.made_ms), member)
            file.flush()
            os.fsync(file.fileno())
        with outside("backup.place"):
            if overwrite:
                partial.replace(target)
            else:
                os.link(partial, target)  # fails where a rename would replace
        sync_directory(target.parent)
    except FileExistsError:
        raise Conflict(f"{target} is there already", hint="name another file, or overwrite it with --yes") from None
    except OSError as error:
        raise Unavailable(f"the backup cannot be written: {error}", hint="make room, or name another place") from error
    finally:
        partial.unlink(missing_ok=True)


def read_manifest(source: Path, *, known_revisions: Collection[str]) -> Manifest:
    """Return what an archive says of itself, which is at its very beginning."""
    with _opened(source) as archive:
        return _manifest(archive, known_revisions)


def extract(source: Path, into: Path, *, known_revisions: Collection[str]) -> Manifest:
    """Unpack an archive into an empty directory and check each member against its digest.

    Raises:
        Invalid: if it is not whole, or no backup.
        Conflict: if a newer version made it.
        Unavailable: if there is no room for it.
    """
    with _opened(source) as archive:
        manifest = _manifest(archive, known_revisions)
        missing = dict(manifest.members)
        while (entry := archive.next()) is not None:
            if (told := missing.pop(entry.name, None)) is None or not entry.isreg() or entry.size != told.size_bytes:
                raise Invalid(f"{source}: {_DAMAGED}", field="backup", hint="take another one")
            if entry.name == PLATFORM and entry.size > MAX_PLATFORM_BYTES:
                raise Invalid(f"{source}: its {PLATFORM} is too large", field="backup", hint="take another one")
            with outside("restore.unpack"):
                _unpack(archive, entry, into / entry.name, told)
        if missing:
            raise Invalid(f"{source}: it lacks {', '.join(missing)}", field="backup", hint="take another one")
    return manifest


@contextmanager
def _opened(source: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive; whatever is wrong with it is told as its own fault."""
    try:
        with source.open("rb") as file, tarfile.open(fileobj=file, mode="r|gz") as archive:
            yield archive
    except PolyrayError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise Invalid(f"{source}: {_DAMAGED} ({error})", field="backup", hint="take another one") from error
    except OSError as error:
        # A file of another kind comes as an OSError of gzip's, without a number.
        if error.errno is None:
            raise Invalid(f"{source}: {_DAMAGED} ({error})", field="backup", hint="take another one") from error
        if isinstance(error, FileNotFoundError):
            hint = "name a file that 'polyray backup' wrote"
            raise PolyrayError(Code.NOT_FOUND, f"there is no file {source}", hint) from error
        if isinstance(error, IsADirectoryError):
            hint = "name a file in it that 'polyray backup' wrote"
            raise Invalid(f"{source} is a directory", field="backup", hint=hint) from error
        raise Unavailable(f"{source}: {error.strerror}", hint="check that it can be read") from error


def _manifest(archive: tarfile.TarFile, known_revisions: Collection[str]) -> Manifest:
    entry = archive.next()
    if entry is None or entry.name != MANIFEST or not entry.isreg() or entry.size > MAX_MANIFEST_BYTES:
        raise Invalid("it does not begin with a manifest", field="backup", hint="name a file of 'polyray backup'")
    file = archive.extractfile(entry)
    assert file is not None
    return parse_manifest(file.read(), known_revisions=known_revisions)


def _unpack(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path, told: Member) -> None:
    file = archive.extractfile(entry)
    assert file is not None
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as copy:
        digest = _copy(file, copy)
        copy.flush()
        os.fsync(copy.fileno())
    if digest != told.sha256:
        raise Invalid(f"{entry.name} is not what the manifest says: {_DAMAGED}", field="backup", hint="take another")


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def _entry(name: str, size: int, at_ms: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, at_ms // 1000
    return entry
