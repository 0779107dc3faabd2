"""Model versions: a run's files, copied out of its reach, named by digest, with where they came from.

The run directory belongs to the tenant's code, which may still run, so what counts is the copy. Nothing is
unpickled, and nothing is parsed but the run's records.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from polyray.core.arrivals import arriving
from polyray.core.beneath import read_beneath
from polyray.core.durable import sync_directory
from polyray.core.errors import Conflict, Invalid, NotFound
from polyray.core.faultpoints import outside
from polyray.core.file_set import FileEntry, files_digest
from polyray.core.ids import parse_slug, shown
from polyray.core.layout import Layout
from polyray.core.run_records import RECORDS_NAME, parse_records
from polyray.core.spec import WorkloadSpec
from polyray.registry.plain_files import hash_entry, plain_files
from polyray.store.engine import Store
from polyray.store.tables import DatasetVersion, ModelVersion, Workload

MAX_MODEL_BYTES = 64 * 2**30
#: The last metrics are looked for in so much of the end of a run's records.
_RECORDS_TAIL_BYTES = 2**20


def register(
    store: Store,
    layout: Layout,
    *,
    tenant: str,
    name: str,
    job: Workload,
    path: str,
    created_by: str,
    now_ms: int,
    registered: Callable[[Session, ModelVersion], None] = lambda session, row: None,
) -> ModelVersion:
    """Make the next version of model `name` from `path` (a file or directory) in the job's run directory.

    The files are whole on disk before the row exists. Two calls make two versions. `registered` is called in
    the transaction that writes the row.

    Raises:
        Invalid: if the name or path is none, or holds no or too many files.
        Invalid: if the run has no such path.
        NotFound: if the job is another tenant's.
        Conflict: if something there is a link or special file.
        PolyrayError: code `too_large`.
    """
    parse_slug(name, field="name")
    if job.tenant != tenant:
        raise NotFound("job", job.workload_id)
    run_dir = layout.run(tenant, job.workload_id)
    models = layout.model(tenant, name, 1).parent
    copy = arriving(models)
    try:
        entries = _copied(run_dir, _checked(path), copy)
        metrics = _last_metrics(run_dir)
        with store.write() as session:
            row = ModelVersion(
                tenant=tenant,
                name=name,
                version=_next_version(session, tenant, name),
                digest=files_digest(entries),
                files=[entry.as_dict() for entry in entries],
                lineage=_lineage(session, job, path, metrics),
                created_by=created_by,
                created_ms=now_ms,
            )
            target = layout.model(tenant, name, row.version)
            # No row names what may be there: a crash between the rename and the commit left it.
            with outside("file.model"):
                shutil.rmtree(target, ignore_errors=True)
                copy.rename(target)
                sync_directory(models)
            session.add(row)
            registered(session, row)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return row


def verify(layout: Layout, version: ModelVersion) -> None:
    """Check that a version's files are the ones that were registered, byte for byte, and that there are no others.

    Raises:
        Conflict: naming the first file that differs.
    """
    directory = layout.model(version.tenant, version.name, version.version)
    wanted = {str(file["path"]): file for file in version.files}
    entries: list[FileEntry] = []
    try:
        for path, file in plain_files(directory.parent, directory.name):
            entries.append(hash_entry(path, file))
            if wanted.pop(path, None) != entries[-1].as_dict():
                raise _changed(version, path)
    except FileNotFoundError:
        raise _changed(version, "its directory") from None
    if wanted or files_digest(entries) != version.digest:
        raise _changed(version, min(wanted, default="its list of files"))


def _changed(version: ModelVersion, what: str) -> Conflict:
    return Conflict(
        f"{version.name}@{version.version}: {what} is not what was registered", hint="register the model again"
    )


def _checked(path: object) -> str:
    parts = path.strip("/").split("/") if isinstance(path, str) and len(path) <= 1024 else [""]
    if any(part in {"", ".", ".."} or not part.isprintable() for part in parts):
        raise Invalid(f"{shown(path)} is not a path in a run", field="path", hint="such as artifacts/model")
    return "/".join(parts)


def _copied(run_dir: Path, path: str, into: Path) -> list[FileEntry]:
    entries, room = [], MAX_MODEL_BYTES
    try:
        for name, file in plain_files(run_dir, path):
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as copy:
                entries.append(hash_entry(name, file, copy, limit=room))
                copy.flush()
                os.fsync(copy.fileno())
            target.chmod(0o444)
            room -= entries[-1].size_bytes
    except FileNotFoundError:
        raise Invalid(
            f"the run has no {shown(path)}",
            field="path",
            hint="models are saved in artifacts/model, unless the job says otherwise",
        ) from None
    if not entries:
        raise Invalid("no files in it", field="path", hint="save the model there first")
    for directory, _, _ in os.walk(into):
        sync_directory(Path(directory))
    return entries


def _next_version(session: Session, tenant: str, name: str) -> int:
    latest = session.scalar(
        select(func.max(ModelVersion.version)).where(ModelVersion.tenant == tenant, ModelVersion.name == name)
    )
    return (latest or 0) + 1


def _lineage(session: Session, job: Workload, path: str, metrics: dict[str, Any]) -> dict[str, Any]:
    spec = WorkloadSpec.model_validate(job.spec)
    datasets = []
    for ref in spec.dataset_refs:
        row = session.get(DatasetVersion, (job.tenant, ref.name, ref.version))
        datasets.append({"name": ref.name, "version": ref.version, "digest": row.digest if row else None})
    return {
        "job": job.workload_id,
        "attempt": job.attempt,
        "path": path,
        "code_sha256": spec.working_dir,
        "datasets": datasets,
        "metrics": metrics,
    }


def _last_metrics(run_dir: Path) -> dict[str, Any]:
    """Return the run's last metrics; empty where it recorded none, or its records cannot be read."""
    try:
        size = read_beneath(run_dir, RECORDS_NAME, offset=0, limit=0)[1]
        start = max(size - _RECORDS_TAIL_BYTES, 0)
        content = read_beneath(run_dir, RECORDS_NAME, offset=start, limit=_RECORDS_TAIL_BYTES)[0]
    except (FileNotFoundError, Conflict):
        return {}
    found: dict[str, Any] = {}
    for record in parse_records(content):
        if record["type"] == "metrics" and isinstance(record.get("metrics"), dict):
            found = record["metrics"]
    return found
