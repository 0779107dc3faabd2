"""RSA keys that sign tokens, one file each: `<state>/keys/PURPOSE-CREATED_MS-KID.pem`, mode 0600.

A purpose (`issuer`, `platform`) has keys of its own, so that a token of one kind can never pass for
another. The newest key signs; the older ones verify until they are retired. A key id is taken from the
key itself (RFC 7638), so the same id always means the same key.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from polyray.core.clock import Clock, SystemClock
from polyray.core.durable import put_file
from polyray.core.errors import Invalid

_FILE = re.compile(r"(?P<purpose>[a-z]+)-(?P<created_ms>\d{1,16})-(?P<kid>[0-9a-f]{16})\.pem")


@dataclass(frozen=True)
class SigningKey:
    kid: str
    created_ms: int
    private: RSAPrivateKey = field(repr=False)

    @property
    def public(self) -> RSAPublicKey:
        return self.private.public_key()

    @property
    def public_pem(self) -> str:
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.public.public_bytes(serialization.Encoding.PEM, spki).decode()

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key as a member of a JWKS."""
        jwk = RSAAlgorithm.to_jwk(self.public, as_dict=True)
        return {"kid": self.kid, "kty": "RSA", "alg": "RS256", "use": "sig", "n": jwk["n"], "e": jwk["e"]}


class SigningKeys:
    """The signing keys of one purpose. The first use makes the first key, in one process only."""

    def __init__(self, directory: Path, purpose: str, clock: Clock | None = None, *, epoch_ms: int = 0) -> None:
        """Keys made before `epoch_ms` (`polyray.identity.key_epoch`) are dead, and deleted where they are found."""
        self._directory = directory
        self._purpose = purpose
        self._clock = clock or SystemClock()
        self._epoch_ms = epoch_ms
        self._loaded: tuple[SigningKey, ...] = ()

    def all(self) -> tuple[SigningKey, ...]:
        """Return every key, the one that signs first."""
        if not self._loaded:
            with self._locked():
                self._delete_dead()
                self._loaded = self._read() or (self._create(),)
        return self._loaded

    def signing(self) -> SigningKey:
        return self.all()[0]

    def public_key(self, kid: str) -> RSAPublicKey | None:
        return next((key.public for key in self.all() if key.kid == kid), None)

    def public_pems(self) -> tuple[tuple[str, str], ...]:
        """Return (kid, PEM) of every key that verifies, as the gateway takes them."""
        return tuple((key.kid, key.public_pem) for key in self.all())

    def jwks(self) -> dict[str, Any]:
        return {"keys": [key.jwk for key in self.all()]}

    def rotate(self) -> SigningKey:
        """Make a new key that signs from now on; the older ones go on verifying."""
        self.all()
        with self._locked():
            key = self._create()
            self._loaded = self._read()
        return key

    def retire(self, kid: str) -> None:
        """Delete a key: what it signed is void from now on. The key that signs cannot be retired."""
        if kid == self.signing().kid:
            raise Invalid(f"key {kid} signs", field="kid", hint="rotate first, then retire the old key")
        with self._locked():
            for key in self._read():
                if key.kid == kid:
                    self._path(key).unlink(missing_ok=True)
            self._loaded = self._read()

    def _delete_dead(self) -> None:
        for path in self._directory.iterdir():
            match = _FILE.fullmatch(path.name)
            if match is not None and match["purpose"] == self._purpose and int(match["created_ms"]) < self._epoch_ms:
                path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / f".{self._purpose}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _path(self, key: SigningKey) -> Path:
        return self._directory / f"{self._purpose}-{key.created_ms}-{key.kid}.pem"

    def _read(self) -> tuple[SigningKey, ...]:
        keys = []
        for path in self._directory.iterdir():
            match = _FILE.fullmatch(path.name)
            if match is None or match["purpose"] != self._purpose:
                continue
            try:
                private = serialization.load_pem_private_key(path.read_bytes(), password=None)
            except ValueError as error:
                raise Invalid("it is no private key", field=str(path), hint="restore it, or delete it") from error
            if not isinstance(private, RSAPrivateKey) or _thumbprint(private.public_key()) != match["kid"]:
                raise Invalid("its name is not that of its key", field=str(path), hint="restore it, or delete it")
            keys.append(SigningKey(match["kid"], int(match["created_ms"]), private))
        return tuple(sorted(keys, key=lambda key: (key.created_ms, key.kid), reverse=True))

    def _create(self) -> SigningKey:
        private = generate_private_key(public_exponent=65537, key_size=2048)
        newest = max((key.created_ms for key in self._read()), default=0)
        # A clock that was set back must not make the new key look older than the last one, or dead.
        created_ms = max(self._clock.now_ms(), newest + 1, self._epoch_ms)
        key = SigningKey(_thumbprint(private.public_key()), created_ms, private)
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        put_file(self._path(key), pem, effect="file.key")
        return key


def _thumbprint(public: RSAPublicKey) -> str:
    """Return the first 64 bits of the key's RFC 7638 thumbprint, in hexadecimal."""
    jwk = RSAAlgorithm.to_jwk(public, as_dict=True)
    canonical = json.dumps({"e": jwk["e"], "kty": "RSA", "n": jwk["n"]}, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
