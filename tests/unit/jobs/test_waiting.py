"""The queue as the broker reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.lifecycle import WorkloadState
from polyray.core.spec import load_workload
from polyray.jobs import waiting
from polyray.jobs.waiting import WaitingRows
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.steps import step
from polyray.store.tables import Workload
from support.rows import NOW_MS, add_tenant, add_workload


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"sqlite:///{tmp_path / 'polyray.db'}")
    migrate(store)
    with store.write() as session:
        add_tenant(session)
    return store


def submit(store: Store, name: str, memory_mib: int) -> None:
    told = f"kind: job\nname: a\nrun: x\nresources: {{cpu: 1, memory: {memory_mib}MiB}}\n"
    spec = load_workload(told).model_dump(mode="json")
    with store.write() as session:
        add_workload(session, name, spec=spec, queued_ms=NOW_MS, created_ms=NOW_MS)


def stop(store: Store, name: str) -> None:
    with store.write() as session:
        step(session, session.get_one(Workload, name), WorkloadState.STOPPED, now_ms=NOW_MS)


def test_a_queue_that_is_never_empty_remembers_no_request_that_waits_no_more(store: Store) -> None:
    rows = WaitingRows()
    submit(store, "job-stays", 100)
    for n in range(200):
        submit(store, f"job-{n}", 200 + n)
        with store.read() as session:
            assert {each.workload_id for each in rows.read(session, NOW_MS)} == {"job-stays", f"job-{n}"}
        stop(store, f"job-{n}")
    assert len(rows._bundles) <= 2 * 2 + waiting.SPARE


def test_like_requests_share_one_object(store: Store) -> None:
    rows = WaitingRows()
    for n in range(3):
        submit(store, f"job-{n}", 100)
    with store.read() as session:
        assert len({id(each.bundles) for each in rows.read(session, NOW_MS)}) == 1
