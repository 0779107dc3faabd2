from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from polyray.core.errors import Code, Conflict, Invalid, NotFound, PolyrayError
from polyray.core.layout import Layout
from polyray.core.run_records import append_record
from polyray.registry import plain_files, versions
from polyray.registry.versions import register, verify
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import DatasetVersion, ModelVersion, Tenant, Workload

CODE = "c" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"sqlite:///{tmp_path}/db")
    migrate(store)
    with store.write() as session:
        session.add(Tenant(name="vision", display_name="Vision", uid=20001, created_ms=1))
        session.flush()
        session.add(
            DatasetVersion(
                tenant="vision",
                name="digits",
                version=1,
                stage="raw",
                digest="d" * 64,
                manifest={},
                created_by="ada",
                created_ms=1,
            )
        )
    return store


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "store")


@pytest.fixture
def job() -> Workload:
    spec = {"kind": "job", "name": "train", "run": "true", "datasets": ["digits@1"], "working_dir": CODE}
    return Workload(workload_id="job-000000000001", kind="job", tenant="vision", spec=spec, attempt=2)


@pytest.fixture
def run_dir(layout: Layout, job: Workload) -> Path:
    run_dir = layout.run("vision", job.workload_id)
    (run_dir / "artifacts" / "model" / "parts").mkdir(parents=True)
    (run_dir / "artifacts" / "model" / "model.pt").write_bytes(b"weights")
    (run_dir / "artifacts" / "model" / "parts" / "1").write_bytes(b"more")
    return run_dir


def make(
    store: Store, layout: Layout, job: Workload, path: str = "artifacts/model", name: str = "digits"
) -> ModelVersion:
    return register(store, layout, tenant="vision", name=name, job=job, path=path, created_by="ada", now_ms=9)


def test_a_model_version_tells_where_it_came_from(store: Store, layout: Layout, job: Workload, run_dir: Path) -> None:
    for accuracy in (0.5, 0.97):
        append_record(run_dir, "metrics", {"metrics": {"accuracy": accuracy}}, attempt=2, now_ms=1)
    append_record(run_dir, "model", {"path": "artifacts/model"}, attempt=2, now_ms=2)
    made = make(store, layout, job)
    assert made.version == 1
    assert made.lineage == {
        "job": "job-000000000001",
        "attempt": 2,
        "path": "artifacts/model",
        "code_sha256": CODE,
        "datasets": [{"name": "digits", "version": 1, "digest": "d" * 64}],
        "metrics": {"accuracy": 0.97},
    }
    assert [file["path"] for file in made.files] == ["model.pt", "parts/1"]
    with store.read() as session:
        assert session.get_one(ModelVersion, ("vision", "digits", 1)).digest == made.digest


def test_what_the_run_does_to_its_files_later_does_not_reach_the_version(
    store: Store, layout: Layout, job: Workload, run_dir: Path
) -> None:
    made = make(store, layout, job)
    (run_dir / "artifacts" / "model" / "model.pt").write_bytes(b"poison")
    assert (layout.model("vision", "digits", 1) / "model.pt").read_bytes() == b"weights"
    verify(layout, made)


def test_the_same_files_have_the_same_digest_and_versions_count_up(
    store: Store, layout: Layout, job: Workload, run_dir: Path
) -> None:
    first, second = make(store, layout, job), make(store, layout, job)
    assert (first.version, second.version) == (1, 2)
    assert first.digest == second.digest
    assert make(store, layout, job, name="other").version == 1


def test_calls_at_once_make_one_version_each(store: Store, layout: Layout, job: Workload, run_dir: Path) -> None:
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(make(store, layout, job).version)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [1, 2, 3, 4]
    assert sorted(p.name for p in layout.model("vision", "digits", 1).parent.iterdir()) == ["1", "2", "3", "4"]


def test_a_single_file_is_a_model_too(store: Store, layout: Layout, job: Workload, run_dir: Path) -> None:
    assert [f["path"] for f in make(store, layout, job, "artifacts/model/model.pt").files] == ["model.pt"]


@pytest.mark.parametrize("path", ["", "/", "..", "artifacts/../../x", "a\0b", "a/./b", "x" * 2000])
def test_a_path_that_is_none_is_refused(store: Store, layout: Layout, job: Workload, run_dir: Path, path: str) -> None:
    with pytest.raises(Invalid, match="path"):
        make(store, layout, job, path)


def test_an_absent_path_and_an_empty_one_are_told_apart(
    store: Store, layout: Layout, job: Workload, run_dir: Path
) -> None:
    (run_dir / "artifacts" / "empty").mkdir()
    with pytest.raises(Invalid, match="the run has no"):
        make(store, layout, job, "artifacts/nothing")
    with pytest.raises(Invalid, match="no files"):
        make(store, layout, job, "artifacts/empty")


def test_another_tenant_s_job_does_not_exist(store: Store, layout: Layout, job: Workload, run_dir: Path) -> None:
    job.tenant = "speech"
    with pytest.raises(NotFound):
        make(store, layout, job)


@pytest.mark.parametrize("kind", ["file link", "directory link", "parent link", "fifo", "hard link"])
def test_nothing_outside_the_run_is_read_through_links_or_special_files(
    store: Store, layout: Layout, job: Workload, run_dir: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.pem").write_bytes(b"secret")
    model = run_dir / "artifacts" / "model"
    path = "artifacts/model"
    match kind:
        case "file link":
            (model / "x").symlink_to(tmp_path / "secret" / "key.pem")
        case "directory link":
            (model / "x").symlink_to(tmp_path / "secret")
        case "parent link":
            (run_dir / "artifacts" / "x").symlink_to(tmp_path / "secret")
            path = "artifacts/x"
        case "fifo":
            os.mkfifo(model / "x")
        case "hard link":
            (model / "x").hardlink_to(tmp_path / "secret" / "key.pem")
    with pytest.raises(Conflict):
        make(store, layout, job, path)
    assert not list(layout.model("vision", "digits", 1).parent.iterdir())


def test_too_many_or_too_large_files_are_refused(
    store: Store, layout: Layout, job: Workload, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MAX_MODEL_BYTES", 8)
    with pytest.raises(PolyrayError) as refused:
        make(store, layout, job)
    assert refused.value.code is Code.TOO_LARGE
    monkeypatch.setattr(plain_files, "MAX_FILES", 1)
    with pytest.raises(Invalid, match="more than 1 files"):
        make(store, layout, job)


def test_a_hostile_pickle_is_copied_and_never_loaded(
    store: Store, layout: Layout, job: Workload, run_dir: Path, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    (run_dir / "artifacts" / "model" / "model.pt").write_bytes(f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode())
    verify(layout, make(store, layout, job))
    assert not canary.exists()


def test_hostile_records_leave_the_version_without_metrics(
    store: Store, layout: Layout, job: Workload, run_dir: Path
) -> None:
    (run_dir / "records.jsonl").symlink_to("/etc/passwd")
    assert make(store, layout, job).lineage["metrics"] == {}


@pytest.mark.parametrize("change", ["byte", "extra", "missing", "gone", "row"])
def test_a_changed_version_is_noticed(store: Store, layout: Layout, job: Workload, run_dir: Path, change: str) -> None:
    made = make(store, layout, job)
    directory = layout.model("vision", "digits", 1)
    match change:
        case "byte":
            (directory / "model.pt").chmod(0o600)
            (directory / "model.pt").write_bytes(b"weightz")
        case "extra":
            (directory / "extra").write_bytes(b"")
        case "missing":
            (directory / "parts" / "1").unlink()
        case "gone":
            directory.rename(directory.parent / "elsewhere")
        case "row":
            made.digest = "0" * 64
    with pytest.raises(Conflict, match="digits@1"):
        verify(layout, made)


def test_what_a_crash_left_under_the_next_number_is_replaced(
    store: Store, layout: Layout, job: Workload, run_dir: Path
) -> None:
    left = layout.model("vision", "digits", 1)
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"")
    made = make(store, layout, job)
    verify(layout, made)
    assert json.dumps(made.files)
