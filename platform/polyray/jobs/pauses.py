"""How long a workload rests before it is tried again: attempts that do not last must not follow each other for ever."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

#: An attempt that lived for so long was a good one: whatever ended it, the next is tried at once.
LASTING_MS = 600_000
FIRST_MS = 5_000
LONGEST_MS = 300_000


def pause_ms(workload_id: str, lifetimes_ms: Sequence[int]) -> int:
    """Return the milliseconds to rest after attempts that lived for `lifetimes_ms`, the latest last.

    One short attempt costs no rest; from the second in a row on it doubles, up to five minutes, and differs
    by a fifth between workloads, so that those which fell together do not come back together.
    """
    short = 0
    for lifetime_ms in reversed(lifetimes_ms):
        if lifetime_ms >= LASTING_MS:
            break
        short += 1
    if short < 2:
        return 0
    rest = min(FIRST_MS << min(short - 2, 16), LONGEST_MS)
    spread = zlib.crc32(f"{workload_id}.{len(lifetimes_ms)}".encode()) % 401
    return rest * (800 + spread) // 1000
