"""What goes wrong in one world: a seed decides once which kinds of faults it has, and how often."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Kinds of faults. Each world has some of them, so that each is also seen without the others.
KINDS = (
    "points",
    "stalls",
    "late",
    "crashes",
    "pauses",
    "clock",
    "core",
    "cloud",
    "gateway",
    "health",
    "slices",
    "machines",
    "capacity",
    "slow",
)
SHARE = 0.6


@dataclass(frozen=True)
class Weather:
    #: Seconds that pass with each step, on average.
    tempo: float
    kinds: frozenset[str]
    #: Probabilities: at each point, of a failure, of a stall, of its process being stopped there for a while (right
    #: before an effect), and of a crash; at each effect, of coming late or twice.
    fails: float
    stalls: float
    pauses: float
    crashes: float
    late: float
    #: At each step: of an event outside.
    events: float
    #: Control planes.
    planes: int

    @classmethod
    def of(cls, rng: random.Random) -> Weather:
        kinds = frozenset(kind for kind in KINDS if rng.random() < SHARE)
        return cls(
            tempo=rng.choice([0.003, 0.01, 0.04]),
            kinds=kinds,
            fails=rng.choice([0.004, 0.02]) * ("points" in kinds),
            stalls=rng.choice([0.003, 0.012]) * ("stalls" in kinds),
            pauses=rng.choice([0.003, 0.015]) * ("pauses" in kinds),
            crashes=rng.choice([0.0002, 0.001]) * ("crashes" in kinds),
            late=rng.choice([0.05, 0.3]) * ("late" in kinds),
            events=rng.choice([0.01, 0.03, 0.06]),
            planes=rng.choice([1, 2, 2, 2]),
        )

    @classmethod
    def storm(cls, *kinds: str) -> Weather:
        """Return the worst there is of some kinds of faults, and none of others."""
        assert set(kinds) <= set(KINDS)
        given = frozenset(kinds)
        return cls(
            tempo=0.01,
            kinds=given,
            fails=0.02 * ("points" in given),
            stalls=0.02 * ("stalls" in given),
            pauses=0.05 * ("pauses" in given),
            crashes=0.001 * ("crashes" in given),
            late=0.4 * ("late" in given),
            events=0.08,
            planes=2,
        )

    def __str__(self) -> str:
        return f"{self.planes} control planes, {self.tempo * 1000:.0f} ms a step, {' '.join(sorted(self.kinds))}"
