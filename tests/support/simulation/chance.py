"""Chance, as a seed decides it."""

from __future__ import annotations

import random


class Chance:
    """Stands in for the module `secrets`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choice(self, of: str) -> str:
        return self._rng.choice(of)

    def token_hex(self, count: int) -> str:
        return self._rng.randbytes(count).hex()
