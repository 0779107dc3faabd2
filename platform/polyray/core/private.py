"""Directories and files that only this user may look into."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from polyray.core.errors import Invalid


def private_directory(path: Path, *, field: str = "state_dir") -> Path:
    """Make a directory of mode 0700, or check that the one that is there is ours alone.

    Raises:
        Invalid: if it is somebody else's or a link: in /tmp anybody could have put it there.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Invalid(f"{path} is not a directory of this user", field=field, hint="remove it, or choose another place")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def secret_file(path: Path) -> Path:
    """Make a file of mode 0400 with a fresh secret (256 random bits, hexadecimal), unless it is there already."""
    private_directory(path.parent)
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}.new")
        fresh.unlink(missing_ok=True)
        try:
            with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o400), "w") as file:
                file.write(secrets.token_hex(32))
                file.flush()
                # A crash of the machine must not leave the name with nothing in it.
                os.fsync(file.fileno())
            # A link fails where a rename would replace what another process just made.
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink(missing_ok=True)
    return path
