"""Reads what a database and the store directory know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.ids import SLUG, is_id
from polyray.core.layout import Layout
from polyray.core.lifecycle import WORKLOAD
from polyray.recovery.gap import Files, Known, Version
from polyray.store.tables import ApiKey, DatasetVersion, LoginSession, ModelVersion, Node, Tenant, User, Workload


def known(session: Session) -> Known:
    ended = {state.value for state in WORKLOAD.terminal}
    workloads = session.execute(select(Workload.workload_id, Workload.state))
    return Known(
        workloads={workload_id: state in ended for workload_id, state in workloads},
        datasets=frozenset(_versions(session, DatasetVersion)),
        models=frozenset(_versions(session, ModelVersion)),
        keys=frozenset(session.scalars(select(ApiKey.key_id))),
        sessions=frozenset(session.scalars(select(LoginSession.sid))),
        nodes=frozenset(session.scalars(select(Node.node_id))),
        users=frozenset(session.scalars(select(User.name))),
        tenants=frozenset(session.scalars(select(Tenant.name))),
    )


def files(session: Session, layout: Layout) -> Files:
    """Look through the store directory; nothing in it is opened."""
    return Files(
        runs=frozenset(
            (tenant.name, run.name)
            for tenant in _tenants(layout)
            for run in _entries(tenant / "runs")
            if is_id(run.name)
        ),
        datasets=frozenset(_version_directories(layout, "datasets")),
        models=frozenset(_version_directories(layout, "models")),
        spoilt_datasets=frozenset(_spoilt_datasets(session, layout)),
        spoilt_models=frozenset(_spoilt_models(session, layout)),
    )


def _versions(session: Session, table: type[DatasetVersion] | type[ModelVersion]) -> Iterator[Version]:
    rows = session.execute(select(table.tenant, table.name, table.version))
    return ((tenant, name, version) for tenant, name, version in rows)


def _spoilt_datasets(session: Session, layout: Layout) -> Iterator[Version]:
    """A dataset's files are blobs, which its manifest names."""
    rows = session.scalars(select(DatasetVersion).execution_options(yield_per=100))
    for row in rows:
        wanted = [layout.dataset(row.tenant, row.name, row.version) / "manifest.json"]
        wanted += [layout.blob(row.tenant, str(file["sha256"])) for file in row.manifest.get("files", ())]
        if not all(path.is_file() for path in wanted):
            yield row.tenant, row.name, row.version


def _spoilt_models(session: Session, layout: Layout) -> Iterator[Version]:
    for row in session.scalars(select(ModelVersion).execution_options(yield_per=100)):
        directory = layout.model(row.tenant, row.name, row.version)
        if not all((directory / str(file["path"])).is_file() for file in row.files):
            yield row.tenant, row.name, row.version


def _version_directories(layout: Layout, kind: str) -> Iterator[Version]:
    for tenant in _tenants(layout):
        for name in _entries(tenant / kind):
            if SLUG.fullmatch(name.name):
                for version in _entries(name):
                    if version.name.isdecimal() and version.name.isascii() and len(version.name) < 10:
                        yield tenant.name, name.name, int(version.name)


def _tenants(layout: Layout) -> list[Path]:
    return [path for path in _entries(layout.root / "tenants") if SLUG.fullmatch(path.name)]


def _entries(directory: Path) -> list[Path]:
    try:
        return [path for path in sorted(directory.iterdir()) if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
