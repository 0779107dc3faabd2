"""Bytes by content: packed code and dataset files."""

from __future__ import annotations

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from polyray.api.blob_files import Incoming, too_large
from polyray.api.deps import Caller, Given, Services, guarded_router, may, member_tenant
from polyray.api.views import BlobView
from polyray.core.errors import NotFound
from polyray.core.layout import parse_sha256
from polyray.identity.policy import Action
from polyray.store.tables import Blob

router = guarded_router("/v1/blobs", "blobs")

#: Handed to a thread at once.
_CHUNK_BYTES = 2**20


@router.head("/{sha256}", **may(Action.READ_BLOB))
def have(services: Given, caller: Caller, sha256: str) -> Response:
    """Say whether the tenant has these bytes; `Content-Length` is their size."""
    tenant = member_tenant(caller)
    with services.store.read() as session:
        row = _present(session, services, tenant, parse_sha256(sha256, field="sha256"))
    if row is None:
        raise NotFound("blob", sha256)
    return Response(headers={"Content-Length": str(row.size_bytes)}, media_type="application/octet-stream")


@router.put("/{sha256}", status_code=201, response_model=BlobView, **may(Action.WRITE_BLOB))
async def put(services: Given, caller: Caller, request: Request, sha256: str) -> BlobView:
    """Store a body under its SHA-256. Sending it again changes nothing; a broken upload leaves nothing."""
    tenant = member_tenant(caller)
    digest = parse_sha256(sha256, field="sha256")
    limit = services.max_blob_bytes
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise too_large(limit)
    incoming = Incoming(services.layout, tenant, digest, limit)
    await run_in_threadpool(incoming.open)
    try:
        pending = bytearray()
        async for chunk in request.stream():
            pending += chunk
            if len(pending) >= _CHUNK_BYTES:
                await run_in_threadpool(incoming.write, bytes(pending))
                pending.clear()
        await run_in_threadpool(incoming.write, bytes(pending))
        await run_in_threadpool(incoming.commit)
    finally:
        incoming.close()
    return await run_in_threadpool(_record, services, tenant, digest, incoming.size_bytes)


def _present(session: Session, services: Services, tenant: str, sha256: str) -> Blob | None:
    """Return the row of a blob whose bytes are there: a row without them (a lost disk) makes the client send again."""
    row = session.get(Blob, (tenant, sha256))
    return row if row is not None and services.layout.blob(tenant, sha256).is_file() else None


def _record(services: Services, tenant: str, sha256: str, size_bytes: int) -> BlobView:
    with services.store.write() as session:
        if session.get(Blob, (tenant, sha256)) is None:
            session.add(Blob(tenant=tenant, sha256=sha256, size_bytes=size_bytes, created_ms=services.clock.now_ms()))
    return BlobView(sha256=sha256, size_bytes=size_bytes)
