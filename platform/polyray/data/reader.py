"""Batches for training, straight from mapped Arrow, at an exact position.

`stream(...)` needs no worker process: one thread prepares the next batches while the caller computes. The
position counts the rows that the caller has been given, not those prepared ahead.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from polyray.core.errors import Invalid
from polyray.data import convert
from polyray.data.sampler import EpochOrder, Indices, Share, Tail, share, steps_left
from polyray.data.source import Rows, open_rows

Form = Literal["torch", "numpy", "arrow"]


class Stream:
    """An iterable over the rest of the present epoch, at whose end the next one begins.

    Iterating again goes on where the last iteration stopped. Batches are mappings column -> tensor `(N, ...)`,
    or Arrow record batches. All ranks must take the same number of steps.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        epoch: int,
        rank: int,
        world_size: int,
        tail: Tail,
        as_: Form,
        prefetch: int,
        writable: bool,
    ) -> None:
        self._rows = rows
        self._batch_size, self._rank, self._world_size, self._tail = batch_size, rank, world_size, tail
        self._shuffle, self._seed, self._as = shuffle, seed, as_
        self._prefetch, self._writable = prefetch, writable
        self._epoch, self._offset = epoch, 0
        self._views: dict[tuple[int, str], npt.NDArray[Any]] = {}

    @property
    def rows(self) -> int:
        """Rows of the whole dataset."""
        return self._rows.count

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def offset(self) -> int:
        """Rows of this epoch that all ranks together have been given."""
        return self._offset

    def __len__(self) -> int:
        """Steps left in this epoch."""
        return steps_left(
            self.rows, self._offset, batch_size=self._batch_size, world_size=self._world_size, tail=self._tail
        )

    def __iter__(self) -> Iterator[Any]:
        with _Ahead(self._shares(self._epoch, self._offset), self._prefetch) as prepared:
            for batch, next_offset in prepared:
                self._offset = next_offset
                if batch is not None:
                    yield batch
        self._epoch, self._offset = self._epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._epoch, self._offset = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position: plain values that any number of ranks can go on from."""
        return {
            "digest": self._rows.digest,
            "rows": self.rows,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "epoch": self._epoch,
            "offset": self._offset,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` gave, at this or another number of ranks and batch size.

        Raises:
            Invalid: if it was taken from other data, or another order of them.
        """
        for key, mine in (("digest", self._rows.digest), ("rows", self.rows), ("shuffle", self._shuffle)):
            if state.get(key) != mine:
                raise Invalid(
                    f"the position was taken with {key} {state.get(key)}, this stream has {mine}",
                    field=f"state.{key}",
                    hint="go on with the dataset version and the order of the run that saved it",
                )
        offset = int(state["offset"])
        if not 0 <= offset <= self.rows:
            raise Invalid(f"{offset} is not a position among {self.rows} rows", field="state.offset")
        self._seed, self._epoch, self._offset = int(state["seed"]), int(state["epoch"]), offset

    def _shares(self, epoch: int, offset: int) -> Iterator[tuple[Any, int]]:
        order = EpochOrder(self.rows, shuffle=self._shuffle, seed=self._seed, epoch=epoch)
        while part := share(
            self.rows,
            offset,
            batch_size=self._batch_size,
            rank=self._rank,
            world_size=self._world_size,
            tail=self._tail,
        ):
            offset = part.next_offset
            yield (self._batch(order, part) if part.rows else None), offset

    def _batch(self, order: EpochOrder, part: Share) -> Any:
        # Padding may need the epoch's first rows more than once: a dataset can be smaller than a batch.
        wanted = [order.rows_at(part.start, part.stop)]
        pad = part.pad
        while pad > 0:
            wanted.append(order.rows_at(0, min(pad, self.rows)))
            pad -= self.rows
        indices = np.concatenate(wanted) if len(wanted) > 1 else wanted[0]
        if self._as == "arrow":
            return self._arrow(indices)
        arrays = {field.name: self._column(field, indices) for field in self._rows.schema}
        return {name: convert.as_torch(array) for name, array in arrays.items()} if self._as == "torch" else arrays

    def _column(self, field: pa.Field, indices: Indices) -> npt.NDArray[Any]:
        starts = self._rows.starts
        first = int(np.searchsorted(starts, indices[0], side="right")) - 1
        start, n = int(indices[0] - starts[first]), len(indices)
        in_one_run = indices[-1] - indices[0] == n - 1 and indices[-1] < starts[first + 1]
        if in_one_run and (n == 1 or bool((np.diff(indices) == 1).all())):
            view = self._view(first, field.name)[start : start + n]
            return view.copy() if self._writable else view
        out = convert.empty(field.type, n)
        homes = np.searchsorted(starts, indices, side="right") - 1
        for home in np.unique(homes).tolist():
            here = homes == home
            out[here] = self._view(home, field.name)[indices[here] - starts[home]]
        return out

    def _view(self, batch: int, column: str) -> npt.NDArray[Any]:
        key = (batch, column)
        if key not in self._views:
            self._views[key] = convert.as_numpy(self._rows.batches[batch].column(column))
        return self._views[key]

    def _arrow(self, indices: Indices) -> pa.RecordBatch:
        homes = np.searchsorted(self._rows.starts, indices, side="right") - 1
        by_home = np.argsort(homes, kind="stable")
        parts = []
        for home in np.unique(homes).tolist():
            local = indices[homes == home] - self._rows.starts[home]
            parts.append(self._rows.batches[home].take(pa.array(local)))
        together = pa.concat_batches(parts)
        back = np.empty_like(by_home)
        back[by_home] = np.arange(len(by_home))
        return together if len(parts) == 1 else together.take(pa.array(back))


class _Ahead:
    """Runs an iterator in one thread, at most `limit` items ahead of whoever takes them.

    Leaving the context ends the thread; one whose reader is gone holds `limit` items and no more.
    """

    def __init__(self, items: Iterator[tuple[Any, int]], limit: int) -> None:
        self._items, self._limit = items, limit
        self._ready: deque[tuple[Any, int]] = deque()
        self._changed = threading.Condition()
        self._closed = self._done = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="polyray-stream", daemon=True)

    def __enter__(self) -> Iterator[tuple[Any, int]]:
        self._thread.start()
        return self._taken()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._ready.append(item)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed or len(self._ready) < self._limit)
                    if self._closed:
                        return
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _taken(self) -> Iterator[tuple[Any, int]]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._done)
                if not self._ready:
                    break
                item = self._ready.popleft()
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error


def stream(
    name_or_path: str | os.PathLike[str],
    batch_size: int,
    columns: Sequence[str] | None = None,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    rank: int = 0,
    world_size: int = 1,
    tail: Tail = "keep",
    as_: Form = "torch",
    prefetch: int = 2,
    writable: bool = True,
) -> Stream:
    """Return the batches of a dataset version (`digits@1`) or of Parquet files.

    `batch_size` is rows a rank gets in a step. The global order depends on the seed and the epoch alone;
    `tail` says what becomes of an incomplete last step (see `sampler.Tail`). `writable=False` hands out
    batches of neighbouring rows without a copy: numpy marks them read-only, and a torch tensor must not be
    written to, since it lies in the mapped file.

    Raises:
        Invalid: before the first batch, naming the argument, file or column and the way out.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("prefetch", prefetch, 1)):
        _check_whole(name, value, least, 2**31)
    _check_whole("rank", rank, 0, world_size - 1)
    _check_whole("seed", seed, 0, 2**63)
    _check_whole("epoch", epoch, 0, 2**31)
    _check_choice("tail", tail, ("keep", "drop", "pad"))
    _check_choice("as_", as_, ("torch", "numpy", "arrow"))
    rows = open_rows(name_or_path, columns)
    if as_ != "arrow":
        convert.check_tensors(rows.schema)
        for field in rows.schema:
            convert.check_no_nulls(field.name, sum(convert.null_count(b.column(field.name)) for b in rows.batches))
    return Stream(
        rows,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
        rank=rank,
        world_size=world_size,
        tail=tail,
        as_=as_,
        prefetch=prefetch,
        writable=writable,
    )


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Invalid(f"{value!r} is not a whole number from {least} to {most}", field=name)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Invalid(f"{value!r} is not one of {', '.join(choices)}", field=name)
