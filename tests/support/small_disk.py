"""A disk of a few megabytes that a test can fill to the last page, or make read-only.

It is a tmpfs in a mount namespace of its own, so it needs no root where users may have namespaces. Only the process
that made it sees it: a test's body is run there, in a fork, and what it raises comes back.
"""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path

PAGE = 4096
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


class SmallDisk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._filler = root / "filler"

    def fill(self, *, free_pages: int) -> None:
        """Leave room for so many pages of 4 KiB and no more."""
        self.clear()
        free = os.statvfs(self.root).f_bavail
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - free_pages, 1) * PAGE)
        assert os.statvfs(self.root).f_bavail <= free_pages

    def clear(self) -> None:
        self._filler.unlink(missing_ok=True)

    def remount(self, *, read_only: bool) -> None:
        flags = _MS_REMOUNT | (_MS_RDONLY if read_only else 0)
        _call(_libc.mount, b"none", os.fsencode(self.root), b"tmpfs", flags, None)


def on_small_disk(directory: Path, body: Callable[[SmallDisk], None], *, mebibytes: int = 16) -> None:
    """Run `body` on a disk mounted at `directory`.

    Raises:
        AssertionError: with the body's traceback, if it raised.
        OSError: if this user may not have a mount namespace.
    """
    directory.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        try:
            _mount(directory, mebibytes)
            body(SmallDisk(directory))
        except BaseException:
            told = traceback.format_exc()
        finally:
            os.write(write_end, told.encode()[-60_000:] or b"-")
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        told_bytes = pipe.read()
    os.waitpid(child, 0)
    assert told_bytes, "the process on the small disk died"
    assert told_bytes == b"-", told_bytes.decode(errors="replace")


def _mount(directory: Path, mebibytes: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNS) != 0:
        _call(_libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNS)
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(content)
    _call(_libc.mount, b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call(_libc.mount, b"none", os.fsencode(directory), b"tmpfs", 0, f"size={mebibytes}m".encode())


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
