from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from polyray import train
from polyray.core.errors import Invalid
from polyray.core.run_records import MAX_LINE_BYTES, append_record, parse_records
from support.runs import records


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYRAY_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("POLYRAY_ATTEMPT", "2")
    return tmp_path


def test_metrics_are_recorded_with_their_attempt(run_dir: Path) -> None:
    train.record(epoch=1, loss=torch.tensor(0.5), best=True, note="warm")
    (record,) = records(run_dir, "metrics")
    assert record["attempt"] == 2
    assert record["metrics"] == {"epoch": 1, "loss": 0.5, "best": True, "note": "warm"}


def test_nan_and_infinity_stay_readable_json(run_dir: Path) -> None:
    train.record(loss=math.nan, gain=-math.inf)
    line = (run_dir / "records.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail)["metrics"] == {"loss": "NaN", "gain": "-Infinity"}


def test_a_metric_that_is_no_number_is_refused_by_name(run_dir: Path) -> None:
    with pytest.raises(Invalid, match="weights"):
        train.record(weights=torch.ones(2))
    with pytest.raises(Invalid, match="model"):
        train.record(model=object())
    with pytest.raises(Invalid, match=str(MAX_LINE_BYTES)):
        train.record(text="x" * MAX_LINE_BYTES)
    assert not (run_dir / "records.jsonl").exists()


def test_a_reader_passes_over_torn_and_foreign_lines(tmp_path: Path) -> None:
    append_record(tmp_path, "metrics", {"metrics": {"a": 1}}, attempt=1, now_ms=5)
    good = (tmp_path / "records.jsonl").read_bytes()
    content = b"\xff\xfe\n" + b"[" * 5000 + b"\n[1]\n" + b'"x"\n{"type": 3}\n' + good + good[:20]
    assert list(parse_records(content)) == [{"at_ms": 5, "attempt": 1, "type": "metrics", "metrics": {"a": 1}}]


def test_outside_a_run_the_way_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYRAY_RUN_DIR", raising=False)
    with pytest.raises(Invalid, match="polyray job submit"):
        train.context()


def test_a_saved_model_replaces_the_last_one_whole_and_is_recorded_by_digest(run_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.mkdir()
    for content, name in ((b"1", "a.pt"), (b"2", "b.pt")):
        for old in source.iterdir():
            old.unlink()
        (source / name).write_bytes(content)
        train.save_model(source)
    assert [p.name for p in (run_dir / "artifacts" / "model").iterdir()] == ["b.pt"]
    assert [p.name for p in (run_dir / "artifacts").iterdir()] == ["model"]
    first, second = records(run_dir, "model")
    assert first["digest"] != second["digest"]
    assert second["path"] == "artifacts/model"


def test_links_and_empty_directories_are_no_model(run_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.mkdir()
    with pytest.raises(Invalid, match="no files"):
        train.save_model(source)
    (source / "model.pt").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match="plain files"):
        train.save_model(source)
