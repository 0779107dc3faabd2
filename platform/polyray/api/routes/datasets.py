"""Dataset versions: immutable manifests of blobs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from polyray.api.dataset_files import place, prepare
from polyray.api.deps import Caller, Given, guarded_router, may, member_tenant
from polyray.api.idempotency import KeyHeader, Request, once
from polyray.api.paging import DEFAULT_LIMIT, CursorText, Limit
from polyray.api.versions import versions_page
from polyray.api.views import DatasetDetail, DatasetView, Page
from polyray.core.errors import Invalid, NotFound
from polyray.core.ids import parse_slug, shown
from polyray.data.manifest import Manifest, parse_manifest, parse_stage
from polyray.identity.policy import Action
from polyray.store.tables import Blob, DatasetVersion, Workload

router = guarded_router("/v1/datasets", "datasets")


class Publish(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    #: `raw` or `processed`; approval is somebody else's word, later.
    stage: str
    #: As `polyray.data.manifest` says; its files are blobs that were sent before.
    manifest: dict[str, Any]


@router.post("", status_code=201, response_model=DatasetView, **may(Action.PUBLISH_DATASET))
def publish(services: Given, caller: Caller, body: Publish, idempotency_key: KeyHeader = None) -> Response:
    """Make the next version of a dataset."""
    tenant, now_ms = member_tenant(caller), services.clock.now_ms()
    name, stage = parse_slug(body.name, field="name"), parse_stage(body.stage)
    manifest = parse_manifest(body.manifest)
    if (manifest.name, manifest.stage) != (name, stage):
        raise Invalid("it names another dataset or stage", field="manifest", hint="write the same name and stage")
    request = Request(caller, idempotency_key, "POST /v1/datasets", body.model_dump())
    with services.store.read() as session:
        _check(session, tenant, manifest)
    prepared = prepare(services.layout, tenant, manifest)
    try:
        with services.store.write() as session:

            def work() -> DatasetView:
                row = DatasetVersion(
                    tenant=tenant,
                    name=name,
                    version=_next_version(session, tenant, name),
                    stage=stage.value,
                    digest=manifest.digest,
                    manifest=manifest.as_dict(),
                    created_by=caller.subject,
                    created_ms=now_ms,
                )
                session.add(row)
                session.flush()
                place(services.layout, tenant, name, row.version, prepared)
                return DatasetView(**_fields(row))

            return once(session, request, now_ms=now_ms, status=201, work=work)
    finally:
        shutil.rmtree(prepared, ignore_errors=True)


@router.get("", **may(Action.READ_DATASET))
def listing(
    services: Given,
    caller: Caller,
    name: Annotated[str | None, Query(max_length=40)] = None,
    cursor: CursorText = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[DatasetView]:
    """List the tenant's dataset versions, by name, the newest version first."""
    tenant = member_tenant(caller)
    with services.store.read() as session:
        rows, more = versions_page(session, DatasetVersion, tenant=tenant, name=name, cursor=cursor, limit=limit)
    return Page[DatasetView](items=[DatasetView(**_fields(row)) for row in rows], next_cursor=more)


@router.get("/{name}/{version}", **may(Action.READ_DATASET))
def one(services: Given, caller: Caller, name: str, version: Annotated[int, Path(ge=1, le=10**9)]) -> DatasetDetail:
    with services.store.read() as session:
        row = session.get(DatasetVersion, (member_tenant(caller), name, version))
    if row is None:
        raise NotFound("dataset", f"{shown(name)[1:-1]}@{version}")
    return DatasetDetail(**_fields(row), manifest=row.manifest)


def _check(session: Session, tenant: str, manifest: Manifest) -> None:
    """Refuse a manifest that names bytes, versions or a job that are not there."""
    known = _sizes(session, tenant, [file.sha256 for file in manifest.files])
    for index, file in enumerate(manifest.files):
        field = f"manifest.files[{index}]"
        if file.sha256 not in known:
            hint = f"PUT them to /v1/blobs/{file.sha256} first"
            raise Invalid(f"the bytes of {file.name} were not sent", field=f"{field}.sha256", hint=hint)
        if known[file.sha256] != file.size_bytes:
            raise Invalid(f"{file.name} has {known[file.sha256]} bytes", field=f"{field}.size_bytes")
    for parent in manifest.lineage.parents:
        name, _, version = parent.partition("@")
        if session.get(DatasetVersion, (tenant, name, int(version))) is None:
            raise Invalid(f"there is no {parent}", field="manifest.lineage.parents")
    if manifest.lineage.job is not None:
        job = session.get(Workload, manifest.lineage.job)
        if job is None or job.tenant != tenant:
            raise Invalid(f"there is no {manifest.lineage.job}", field="manifest.lineage.job")


def _sizes(session: Session, tenant: str, digests: Sequence[str]) -> dict[str, int]:
    """Return digest -> bytes of the tenant's blobs among `digests`, in queries of a bounded number of names."""
    found: dict[str, int] = {}
    for start in range(0, len(digests), 1000):
        some = Blob.sha256.in_(digests[start : start + 1000])
        query = select(Blob.sha256, Blob.size_bytes).where(Blob.tenant == tenant, some)
        found |= dict(session.execute(query).all())
    return found


def _next_version(session: Session, tenant: str, name: str) -> int:
    newest = select(func.max(DatasetVersion.version)).where(
        DatasetVersion.tenant == tenant, DatasetVersion.name == name
    )
    return 1 + (session.scalar(newest) or 0)


def _fields(row: DatasetVersion) -> dict[str, Any]:
    files = row.manifest["files"]
    return {
        "name": row.name,
        "version": row.version,
        "stage": row.stage,
        "digest": row.digest,
        "rows": row.manifest["rows"],
        "size_bytes": sum(file["size_bytes"] for file in files),
        "files": len(files),
        "created_by": row.created_by,
        "created_ms": row.created_ms,
    }
