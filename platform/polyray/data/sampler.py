"""In which order rows are read, and which of them a rank reads: pure arithmetic over a global row index.

The order of an epoch depends on (rows, shuffle, seed, epoch) alone, never on the number of ranks. Its
position is one number, the rows that all ranks together have read, so a run that goes on with another
number of workers goes on at the same row.

A shuffled epoch permutes blocks of neighbouring rows, then the rows within each window of blocks: memory
is touched a few blocks at a time, and any position is found without walking there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
#: What becomes of the last, incomplete step of an epoch. `keep`: its rows are shared out, a rank may get fewer
#: or none; `drop`: nobody reads them; `pad`: it is filled up with rows from the epoch's beginning.
Tail = Literal["keep", "drop", "pad"]

BLOCK_ROWS = 256
#: Rows of up to 64 blocks (16,384 rows) are mixed with each other.
WINDOW_BLOCKS = 64


class EpochOrder:
    """The permutation of one epoch, computed window by window."""

    def __init__(self, rows: int, *, shuffle: bool, seed: int, epoch: int) -> None:
        self.rows = rows
        self._key = (seed, epoch) if shuffle else None
        self._window: tuple[int, Indices] = (-1, np.empty(0, np.int64))
        if self._key is None:
            return
        self._starts = np.arange(0, rows, BLOCK_ROWS, dtype=np.int64)
        self._starts = self._starts[_permutation(len(self._starts), *self._key, -1)]
        lengths = np.minimum(self._starts + BLOCK_ROWS, rows) - self._starts
        #: Position in the epoch at which each block of the permuted order ends.
        self._ends = np.cumsum(lengths)
        self._window_ends = self._ends[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS]
        if len(self._ends) % WINDOW_BLOCKS:
            self._window_ends = np.append(self._window_ends, self._ends[-1])

    def rows_at(self, start: int, stop: int) -> Indices:
        """Return the row indices at the positions [start, stop) of the epoch, in its order."""
        if self._key is None:
            return np.arange(start, stop, dtype=np.int64)
        parts = []
        while start < stop:
            window = int(np.searchsorted(self._window_ends, start, side="right"))
            begins = int(self._window_ends[window - 1]) if window else 0
            until = min(stop, int(self._window_ends[window]))
            parts.append(self._rows_of(window)[start - begins : until - begins])
            start = until
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _rows_of(self, window: int) -> Indices:
        if self._window[0] != window:
            assert self._key is not None
            starts = self._starts[window * WINDOW_BLOCKS : (window + 1) * WINDOW_BLOCKS]
            blocks = [np.arange(s, min(s + BLOCK_ROWS, self.rows), dtype=np.int64) for s in starts.tolist()]
            rows = np.concatenate(blocks)
            self._window = (window, rows[_permutation(len(rows), *self._key, window)])
        return self._window[1]


def _permutation(n: int, seed: int, epoch: int, window: int) -> Indices:
    """Return a permutation that stays the same over releases of numpy: only raw bits are drawn from its generator."""
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch, window + 1])).random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True)
class Share:
    """What one rank reads of one step: positions [start, stop) of the epoch, then the positions [0, pad)."""

    start: int
    stop: int
    pad: int
    #: Where the epoch stands after this step, for all ranks alike.
    next_offset: int

    @property
    def rows(self) -> int:
        return self.stop - self.start + self.pad


def share(rows: int, offset: int, *, batch_size: int, rank: int, world_size: int, tail: Tail) -> Share | None:
    """Return this rank's share of the step that begins at `offset`; None when the epoch is over.

    A step is `batch_size * world_size` rows, of which each rank reads a run of `batch_size`.
    """
    left = rows - offset
    step = batch_size * world_size
    if left >= step:
        start = offset + rank * batch_size
        return Share(start, start + batch_size, 0, offset + step)
    if left <= 0 or tail == "drop":
        return None
    start, stop = offset + left * rank // world_size, offset + left * (rank + 1) // world_size
    return Share(start, stop, batch_size - (stop - start) if tail == "pad" else 0, rows)


def steps_left(rows: int, offset: int, *, batch_size: int, world_size: int, tail: Tail) -> int:
    """Return how many steps an epoch has from `offset` on."""
    whole, rest = divmod(max(rows - offset, 0), batch_size * world_size)
    return whole + (1 if rest and tail != "drop" else 0)
