"""Where a login is kept: one directory for each platform, 0700, its files 0600.

$XDG_CONFIG_HOME/polyray/credentials/HOST-PORT-HASH/
    login.json             the issuer's tokens and the chosen tenant
    tokens/TENANT.jwt      platform tokens, renewed from the login
    clusters/CLUSTER.jwt   platform tokens for one cluster each, which stock Ray reads
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from polyray.core.errors import Invalid
from polyray.core.ids import SLUG, is_id


@dataclass(frozen=True)
class Login:
    """What the issuer gave. Times are milliseconds since the epoch."""

    api_url: str
    issuer: str
    client_id: str
    access_token: str = field(repr=False)
    access_expires_ms: int
    refresh_token: str = field(repr=False, default="")
    #: The tenant that commands act for; empty until one is chosen.
    tenant: str = ""


def claims_of(token: str) -> dict[str, Any]:
    """Return a JWT's claims, unverified: good for showing and for renewing in time, never for deciding.

    Raises:
        Invalid: if it is no JWT.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if not isinstance(claims, dict):
            raise ValueError
    except (ValueError, IndexError) as error:
        raise Invalid("this is no token", hint="log in with 'polyray login'") from error
    return claims


def expires_ms(token: str) -> int:
    """Return when a token ends; 0 if it does not say."""
    exp = claims_of(token).get("exp")
    return int(exp * 1000) if isinstance(exp, (int, float)) and not isinstance(exp, bool) else 0


class Credentials:
    """The login at one platform, on disk."""

    def __init__(self, config_dir: Path, api_url: str) -> None:
        parts = urlsplit(api_url)
        readable = re.sub(r"[^a-z0-9.]+", "-", f"{parts.hostname}-{parts.port or ''}".lower()).strip("-")[:60]
        digest = hashlib.sha256(api_url.rstrip("/").encode()).hexdigest()[:8]
        self.api_url = api_url
        self.directory = config_dir / "credentials" / f"{readable}-{digest}"

    def login(self) -> Login | None:
        """Return the stored login, or None.

        Raises:
            Invalid: if it cannot be read, or others could read it too.
        """
        text = _read(self.directory / "login.json")
        if text is None:
            return None
        try:
            return Login(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise Invalid(
                "the stored login is damaged",
                field=str(self.directory / "login.json"),
                hint="'polyray logout', then 'polyray login'",
            ) from error

    def save(self, login: Login) -> None:
        _write(self.directory / "login.json", json.dumps(asdict(login), indent=1))

    def choose(self, tenant: str) -> None:
        """Make `tenant` the one that commands act for."""
        if (login := self.login()) is not None and login.tenant != tenant:
            self.save(replace(login, tenant=tenant))

    def token(self, tenant: str) -> str | None:
        """Return the stored platform token of a tenant, expired or not."""
        return _read(self.directory / "tokens" / f"{_part(tenant)}.jwt")

    def save_token(self, tenant: str, token: str) -> Path:
        path = self.directory / "tokens" / f"{_part(tenant)}.jwt"
        _write(path, token)
        return path

    def drop_token(self, tenant: str) -> None:
        (self.directory / "tokens" / f"{_part(tenant)}.jwt").unlink(missing_ok=True)

    def save_cluster_token(self, cluster_id: str, token: str) -> Path:
        """Keep a cluster's token where `RAY_AUTH_TOKEN_PATH` will point to."""
        path = self.directory / "clusters" / f"{_part(cluster_id)}.jwt"
        _write(path, token)
        return path

    def forget(self) -> bool:
        """Remove everything of this login; return whether there was one."""
        there = self.directory.exists()
        shutil.rmtree(self.directory, ignore_errors=True)
        return there

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time renews a login: a refresh token may be good for one use only."""
        _private_dir(self.directory)
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _part(name: str) -> str:
    """Return a name that is safe in a path: a slug, an id, or `_` for no tenant (an operator's token)."""
    if name == "":
        return "_"
    if SLUG.fullmatch(name) or is_id(name):
        return name
    raise Invalid("not a name", field="tenant", hint="1 to 40 of a-z, 0-9 and '-'")


def _private_dir(directory: Path) -> None:
    """Make a directory and what is missing above it, all of them the owner's alone."""
    if not directory.exists():
        _private_dir(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _read(path: Path) -> str | None:
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise Invalid("others can read this file", field=str(path), hint=f"chmod 600 '{path}', or log in again")
            return file.read(1 << 20)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read it: {error}", field=str(path)) from error


def _write(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner alone from its first byte on."""
    _private_dir(path.parent)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # 0600 by contract
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
