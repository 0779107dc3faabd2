from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyray.core.errors import Invalid
from polyray.data.manifest import load_manifest
from polyray.data.publishing import main, publish


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)


def ids(values: list[int | None], dtype: pa.DataType = pa.int64(), *, nullable: bool = True) -> pa.Table:
    return pa.table([pa.array(values, dtype)], schema=pa.schema([pa.field("id", dtype, nullable)]))


def test_a_version_names_its_files_by_what_they_hold(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", ids([1, 2]))
    write(tmp_path / "in" / "b.parquet", ids([3]))
    version = publish(tmp_path / "in", name="numbers", directory=tmp_path / "out")
    assert version.manifest.rows == 3
    for path, file in version.files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
        assert path.stat().st_size == file.size_bytes
    assert load_manifest((tmp_path / "out" / "manifest.json").read_bytes()) == version.manifest


def test_the_same_data_give_the_same_digest(tmp_path: Path) -> None:
    table = ids([1, 2, 3])
    first = publish(table, name="numbers", directory=tmp_path / "1")
    assert publish(table, name="numbers", directory=tmp_path / "2").manifest.digest == first.manifest.digest


def test_a_file_of_no_rows_is_data(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", ids([]))
    write(tmp_path / "in" / "b.parquet", ids([1]))
    version = publish(tmp_path / "in", name="numbers", directory=tmp_path / "out")
    assert [file.rows for file in version.manifest.files] == [0, 1]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "in" / "a.parquet", ids([1]))
    (tmp_path / "in" / "broken.parquet").write_bytes(content)
    with pytest.raises(Invalid) as refused:
        publish(tmp_path / "in", name="numbers", directory=tmp_path / "out")
    assert refused.value.field == "broken.parquet"
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_order_nullability_and_all_null_columns_unify_and_values_are_matched_by_name(tmp_path: Path) -> None:
    first = pa.table({"id": pa.array([1]), "name": pa.array(["one"])})
    write(tmp_path / "in" / "a.parquet", first)
    write(tmp_path / "in" / "b.parquet", pa.table({"name": ["two"], "id": pa.array([None], pa.null())}))
    write(tmp_path / "in" / "c.parquet", pa.table({"name": ["three"], "id": pa.array([3])}))
    version = publish(tmp_path / "in", name="numbers", directory=tmp_path / "out")
    rows = [row for path, _ in version.files for row in pq.read_table(path).to_pylist()]
    assert rows == [{"id": 1, "name": "one"}, {"id": None, "name": "two"}, {"id": 3, "name": "three"}]


@pytest.mark.parametrize(
    ("other", "column"),
    [
        (ids([1], pa.int32()), "id"),
        (pa.table({"id": [1], "extra": [2]}), "extra"),
        (pa.table({"other": [1]}), "id"),
        (pa.table({"id": ["1"]}), "id"),
    ],
)
def test_files_that_differ_are_refused_by_file_and_column(tmp_path: Path, other: pa.Table, column: str) -> None:
    write(tmp_path / "in" / "a.parquet", ids([1]))
    write(tmp_path / "in" / "b.parquet", other)
    with pytest.raises(Invalid) as refused:
        publish(tmp_path / "in", name="numbers", directory=tmp_path / "out")
    assert refused.value.field == "b.parquet"
    assert f"column {column}" in refused.value.message


def test_a_given_schema_is_cast_to_only_where_no_value_changes(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int8(), False)])
    publish(ids([1, 127]), name="numbers", directory=tmp_path / "1", schema=schema)
    for value in (128, None):
        with pytest.raises(Invalid, match="column id"):
            publish(ids([value]), name="numbers", directory=tmp_path / "2", schema=schema)
    assert not list((tmp_path / "2" / "files").iterdir())


def test_csv_becomes_typed_columns_and_a_cell_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,one\n2,\n")
    version = publish(tmp_path / "a.csv", name="numbers", directory=tmp_path / "out")
    assert [(c.name, c.type) for c in version.manifest.columns] == [("id", "int64"), ("name", "string")]
    (tmp_path / "b.csv").write_text("id\n" + "1\n" * 1_000_000 + "x\n")
    with pytest.raises(Invalid, match=r"b\.csv"):
        publish(tmp_path / "b.csv", name="numbers", directory=tmp_path / "out-b")


def test_a_file_of_another_kind_is_refused_not_skipped(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", ids([1]))
    (tmp_path / "in" / "b.pkl").write_bytes(b"x")
    with pytest.raises(Invalid, match=r"b\.pkl"):
        publish(tmp_path / "in", name="numbers", directory=tmp_path / "out")


def test_other_tools_metadata_and_dictionaries_are_left_behind(tmp_path: Path) -> None:
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table({"kind": column}).replace_schema_metadata({"pandas": "{}"})
    version = publish(table, name="kinds", directory=tmp_path / "out")
    assert version.manifest.columns[0].type == "string"
    stored = pq.read_schema(version.files[0][0])
    assert b"pandas" not in (stored.metadata or {})


def test_the_command_line_prints_the_digest_or_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in" / "a.parquet", ids([1]))
    assert main([str(tmp_path / "in"), "--name", "numbers", "--out", str(tmp_path / "out")]) == 0
    assert len(capsys.readouterr().out.strip()) == 64
    assert main([str(tmp_path / "in"), "--name", "Numbers", "--out", str(tmp_path / "out2")]) == 2
    assert "try 'numbers'" in capsys.readouterr().err
