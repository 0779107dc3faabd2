"""Every row exactly once an epoch, in one order, at any number of workers, through any number of stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyray.data.reader import Stream, stream
from polyray.data.sampler import BLOCK_ROWS, WINDOW_BLOCKS, EpochOrder, share, steps_left

ROWS = 1000


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """1,000 numbered rows in three files of unlike sizes, the middle one empty."""
    directory = tmp_path_factory.mktemp("numbers")
    for name, low, high in (("a", 0, 333), ("b", 333, 333), ("c", 333, ROWS)):
        table = pa.table({"row": np.arange(low, high)})
        pq.write_table(table, directory / f"{name}.parquet", row_group_size=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYRAY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield directory


def open_ranks(data: Path, world_size: int, batch_size: int, **options: object) -> list[Stream]:
    return [
        stream(data, batch_size, rank=rank, world_size=world_size, as_="numpy", **options)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


def read(ranks: list[Stream], steps: int | None = None) -> list[int]:
    """Return the rows that all ranks read, in global order, over so many steps (None: to the epoch's end)."""
    seen: list[int] = []
    iterators = [iter(rank) for rank in ranks]
    while steps is None or steps > 0:
        batches = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in batches):
            break
        seen += [row for batch in batches if batch is not None for row in batch["row"].tolist()]
        steps = None if steps is None else steps - 1
    for iterator in iterators:
        iterator.close()  # type: ignore[attr-defined]
    return seen


sizes = st.integers(1, 400)
seeds = st.integers(0, 2**32)


@given(world_size=st.integers(1, 3), batch_size=sizes, shuffle=st.booleans(), seed=seeds, epoch=st.integers(0, 5))
def test_an_epoch_has_every_row_once_in_the_same_global_order_at_any_world_size(
    data: Path, world_size: int, batch_size: int, shuffle: bool, seed: int, epoch: int
) -> None:
    seen = read(open_ranks(data, world_size, batch_size, shuffle=shuffle, seed=seed, epoch=epoch))
    assert sorted(seen) == list(range(ROWS))
    assert seen == EpochOrder(ROWS, shuffle=shuffle, seed=seed, epoch=epoch).rows_at(0, ROWS).tolist()


@given(
    stops=st.lists(st.tuples(st.integers(1, 3), sizes, st.integers(0, 4)), min_size=1, max_size=6),
    seed=seeds,
)
def test_a_run_that_stops_anywhere_and_goes_on_at_another_world_size_reads_every_row_once(
    data: Path, stops: list[tuple[int, int, int]], seed: int
) -> None:
    seen: list[int] = []
    state = None
    for world_size, batch_size, steps in stops:
        ranks = open_ranks(data, world_size, batch_size, shuffle=True, seed=seed)
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        left = len(ranks[0])
        seen += read(ranks, min(steps, max(left - 1, 0)))
        # Every rank that has a batch left stands at the same place.
        (state,) = {tuple(rank.state_dict().items()): rank.state_dict() for rank in ranks}.values()
    (last,) = open_ranks(data, 1, 7, shuffle=True, seed=seed)
    last.load_state_dict(state or {})
    seen += read([last])
    assert seen == EpochOrder(ROWS, shuffle=True, seed=seed, epoch=0).rows_at(0, ROWS).tolist()


@given(world_size=st.integers(1, 3), batch_size=sizes)
def test_padded_ranks_take_the_same_number_of_full_batches(data: Path, world_size: int, batch_size: int) -> None:
    ranks = open_ranks(data, world_size, batch_size, tail="pad", shuffle=True)
    expected = len(ranks[0])
    batches = [[batch["row"].tolist() for batch in rank] for rank in ranks]
    assert {len(of_rank) for of_rank in batches} == {expected}
    assert {len(batch) for of_rank in batches for batch in of_rank} == {batch_size}
    assert {row for of_rank in batches for batch in of_rank for row in batch} == set(range(ROWS))


@given(world_size=st.integers(1, 3), batch_size=sizes)
def test_dropped_tails_leave_whole_steps_only(data: Path, world_size: int, batch_size: int) -> None:
    seen = read(open_ranks(data, world_size, batch_size, tail="drop"))
    assert len(seen) == ROWS - ROWS % (batch_size * world_size)
    assert len(set(seen)) == len(seen)


@given(epochs=st.integers(1, 3), seed=seeds)
def test_epochs_follow_each_other_in_different_orders(data: Path, epochs: int, seed: int) -> None:
    (rows,) = open_ranks(data, 1, 100, shuffle=True, seed=seed)
    orders = []
    for epoch in range(epochs):
        assert rows.epoch == epoch
        orders.append(tuple(read([rows])))
    assert len(set(orders)) == epochs


@given(rows=st.integers(0, 3 * BLOCK_ROWS * WINDOW_BLOCKS), seed=seeds, cut=st.floats(0, 1))
def test_an_order_is_a_permutation_and_any_cut_of_it_is_found_directly(rows: int, seed: int, cut: float) -> None:
    whole = EpochOrder(rows, shuffle=True, seed=seed, epoch=0).rows_at(0, rows)
    assert np.array_equal(np.sort(whole), np.arange(rows))
    at = int(rows * cut)
    assert np.array_equal(EpochOrder(rows, shuffle=True, seed=seed, epoch=0).rows_at(at, rows), whole[at:])


@given(
    rows=st.integers(0, 10**6),
    offset=st.integers(0, 10**6),
    batch_size=st.integers(1, 10**4),
    world_size=st.integers(1, 64),
    tail=st.sampled_from(["keep", "drop", "pad"]),
)
def test_the_shares_of_a_step_touch_each_other_and_cover_it(
    rows: int, offset: int, batch_size: int, world_size: int, tail: str
) -> None:
    shares = [
        share(rows, offset, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]
    steps = steps_left(rows, offset, batch_size=batch_size, world_size=world_size, tail=tail)  # type: ignore[arg-type]
    if steps == 0:
        assert shares == [None] * world_size
        return
    position = offset
    for part in shares:
        assert part is not None
        assert part.start == position
        assert part.rows <= batch_size
        position = part.stop
    assert position == shares[0].next_offset  # type: ignore[union-attr]


def test_the_order_is_the_same_on_every_machine_and_release() -> None:
    order = EpochOrder(10, shuffle=True, seed=7, epoch=1).rows_at(0, 10).tolist()
    assert order == [8, 7, 1, 9, 5, 3, 4, 0, 6, 2]
