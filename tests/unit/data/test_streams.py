from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from polyray.core.errors import Invalid
from polyray.data import publish, stream
from polyray.data.sampler import EpochOrder, Share
from support.runs import make_run
from support.wait import until


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYRAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYRAY_RUN_DIR", raising=False)
    return tmp_path / "cache"


def save(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


NUMERIC = {
    pa.int8(): torch.int8,
    pa.int16(): torch.int16,
    pa.int32(): torch.int32,
    pa.int64(): torch.int64,
    pa.uint8(): torch.uint8,
    pa.uint16(): torch.uint16,
    pa.uint32(): torch.uint32,
    pa.uint64(): torch.uint64,
    pa.float16(): torch.float16,
    pa.float32(): torch.float32,
    pa.float64(): torch.float64,
    pa.bool_(): torch.bool,
}


@pytest.mark.parametrize(("arrow", "tensor"), NUMERIC.items(), ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_number_type_becomes_the_tensor_of_its_type(
    tmp_path: Path, arrow: pa.DataType, tensor: torch.dtype, shuffle: bool
) -> None:
    values = pa.array([1, 0, 1, 1, 0]).cast(arrow)
    batch = next(iter(stream(save(tmp_path / "a.parquet", pa.table({"x": values})), 5, shuffle=shuffle)))
    assert batch["x"].dtype == tensor
    assert sorted(batch["x"].to(torch.int64).tolist()) == [0, 0, 1, 1, 1]


def test_lists_of_one_length_become_matrices(tmp_path: Path) -> None:
    inner = pa.FixedSizeListArray.from_arrays(pa.array(range(24), pa.int32()), 3)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(inner, 2)})
    batches = list(stream(save(tmp_path / "a.parquet", table), 3))
    assert [tuple(b["x"].shape) for b in batches] == [(3, 2, 3), (1, 2, 3)]
    assert torch.cat([b["x"] for b in batches]).flatten().tolist() == list(range(24))


UNSUPPORTED: dict[str, pa.Array] = {
    "text": pa.array(["a"]),
    "long_text": pa.array(["a"], pa.large_string()),
    "raw": pa.array([b"a"]),
    "price": pa.array([1], pa.decimal128(10, 2)),
    "seen": pa.array([1], pa.timestamp("us", "Europe/Paris")),
    "day": pa.array([1], pa.date32()),
    "ragged": pa.array([[1.0]]),
    "point": pa.array([{"x": 1}]),
    "nothing": pa.array([None]),
}


@pytest.mark.parametrize("column", UNSUPPORTED)
def test_a_type_without_a_tensor_is_refused_before_the_first_batch_by_column_and_type(
    tmp_path: Path, column: str
) -> None:
    table = pa.table({"ok": [1], column: UNSUPPORTED[column]})
    path = save(tmp_path / "a.parquet", table)
    with pytest.raises(Invalid) as refused:
        stream(path, 1)
    assert refused.value.field == f"columns.{column}"
    kind = str(UNSUPPORTED[column].type).partition("<")[0].partition("[")[0]
    assert f"{column} ({kind}" in refused.value.message
    assert refused.value.hint
    assert next(iter(stream(path, 1, ["ok"])))["ok"].tolist() == [1]
    assert next(iter(stream(path, 1, as_="arrow"))).column(column).to_pylist() == UNSUPPORTED[column].to_pylist()


def test_a_null_is_refused_before_the_first_batch_by_column(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"columns\.x.*null"):
        stream(save(tmp_path / "a.parquet", pa.table({"x": [1, None]})), 1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"columns": ["y"]}, "columns.y"),
        ({"tail": "wrap"}, "tail"),
        ({"as_": "pandas"}, "as_"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(tmp_path: Path, options: dict[str, Any], field: str) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": [1]}))
    with pytest.raises(Invalid) as refused:
        stream(path, **{"batch_size": 1, **options})
    assert refused.value.field == field


def test_writing_into_a_batch_changes_no_data(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    rows = stream(path, 2)
    for _ in range(2):
        batch = next(iter(rows))
        assert batch["x"].tolist() == [1, 2]
        batch["x"].zero_()
        rows.set_epoch(0)


def test_batches_that_are_not_to_be_written_share_the_file_s_memory(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": np.arange(10.0)}))
    first, second = (next(iter(stream(path, 4, as_="numpy", writable=False)))["x"] for _ in range(2))
    assert not first.flags.writeable
    assert not first.flags.owndata
    assert first.tolist() == second.tolist() == [0, 1, 2, 3]


def test_a_reader_that_stops_early_leaves_no_thread(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": range(1000)}))
    before = threading.active_count()
    for _ in stream(path, 10):
        break
    gc.collect()
    until(lambda: threading.active_count() <= before, what="the prefetch thread is gone")


def test_a_slow_reader_is_not_run_ahead_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": range(1000)}))
    rows = stream(path, 10, prefetch=2)
    made: list[int] = []
    make = rows._batch

    def counted(order: EpochOrder, part: Share) -> Any:
        made.append(part.start)
        return make(order, part)

    monkeypatch.setattr(rows, "_batch", counted)
    reading = iter(rows)
    next(reading)
    until(lambda: len(made) >= 3, what="two batches wait beside the one in use")
    assert len(made) <= 4
    assert rows.offset == 10, "what was prepared ahead does not count as read"


def test_two_readers_at_once_do_not_wait_for_each_other(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": range(100)}))
    stuck = iter(stream(path, 10))
    next(stuck)
    assert len(list(stream(path, 10))) == 10


def test_an_error_while_preparing_reaches_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = stream(save(tmp_path / "a.parquet", pa.table({"x": range(10)})), 5)

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(rows, "_batch", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        list(rows)


def test_a_position_of_other_data_or_another_order_is_refused(tmp_path: Path) -> None:
    here = stream(save(tmp_path / "a.parquet", pa.table({"x": range(10)})), 5)
    other = stream(save(tmp_path / "b.parquet", pa.table({"x": range(1, 11)})), 5)
    with pytest.raises(Invalid, match=r"state\.digest"):
        here.load_state_dict(other.state_dict())
    with pytest.raises(Invalid, match=r"state\.shuffle"):
        here.load_state_dict({**here.state_dict(), "shuffle": True})
    with pytest.raises(Invalid, match=r"state\.offset"):
        here.load_state_dict({**here.state_dict(), "offset": 11})


class TestDeclaredVersions:
    @pytest.fixture
    def run_dir(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A run that declared `digits@1`, two rows, as the runner leaves it."""
        run_dir = tmp_path / "run"
        source = save(tmp_path / "digits.parquet", pa.table({"x": [1, 2]}))
        env = make_run(run_dir, datasets={"digits": source})
        (run_dir / "datasets" / "digits@1").symlink_to(tmp_path / "store" / "digits" / "1")
        monkeypatch.setenv("POLYRAY_RUN_DIR", env["POLYRAY_RUN_DIR"])
        monkeypatch.setenv("POLYRAY_DATASETS_DIR", env["POLYRAY_DATASETS_DIR"])
        return run_dir

    def test_are_found_by_name(self, run_dir: Path) -> None:
        assert next(iter(stream("digits@1", 2)))["x"].tolist() == [1, 2]

    def test_others_are_refused_and_the_declared_ones_named(self, run_dir: Path) -> None:
        with pytest.raises(Invalid, match=r"did not declare faces@1.*digits@1"):
            stream("faces@1", 1)

    def test_a_changed_byte_is_refused_before_it_is_parsed(self, run_dir: Path) -> None:
        part = run_dir / "datasets" / "digits@1" / "files" / "part-00000.parquet"
        content = bytearray(part.read_bytes())
        content[100] ^= 1
        part.write_bytes(content)
        with pytest.raises(Invalid, match=r"part-00000\.parquet.*changed since it was published"):
            stream("digits@1", 1)

    def test_another_manifest_in_its_place_is_refused(self, run_dir: Path, tmp_path: Path) -> None:
        other = publish(pa.table({"x": [3]}), name="digits", directory=tmp_path / "other")
        (run_dir / "datasets" / "digits@1").unlink()
        (run_dir / "datasets" / "digits@1").symlink_to(other.directory)
        with pytest.raises(Invalid, match="manifest changed"):
            stream("digits@1", 1)


def test_parquet_is_transcoded_once(tmp_path: Path, cache: Path) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": [1]}))
    list(stream(path, 1))
    (entry,) = cache.glob("*.arrow")
    made = entry.stat().st_mtime_ns
    list(stream(path, 1))
    assert [p.stat().st_mtime_ns for p in cache.glob("*.arrow")] == [made]
    assert not list(cache.glob(".making-*"))


def test_no_rows_are_no_batches(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", pa.table({"x": pa.array([], pa.int64())}))
    for tail in ("keep", "drop", "pad"):
        assert list(stream(path, 4, tail=tail, shuffle=True)) == []
    assert publish(path, name="none", directory=tmp_path / "out").manifest.rows == 0
