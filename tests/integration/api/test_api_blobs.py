"""Bytes by content: verified, whole or not there, bounded (T27, C03)."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from polyray.store.tables import Blob
from support.api import Platform, put_blob
from support.served import served
from support.wait import until


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def left_behind(platform: Platform) -> list[Path]:
    incoming = platform.layout.tenant("vision") / "incoming"
    return list(incoming.iterdir()) if incoming.exists() else []


def test_a_blob_is_stored_under_its_content_and_found_again(platform: Platform, ada: TestClient) -> None:
    content = os.urandom(300_000)
    answer = ada.put(f"/v1/blobs/{sha(content)}", content=content)
    assert (answer.status_code, answer.json()) == (201, {"sha256": sha(content), "size_bytes": 300_000})
    head = ada.head(f"/v1/blobs/{sha(content)}")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "300000", b"")
    stored = platform.layout.blob("vision", sha(content))
    assert stored.read_bytes() == content
    assert stored.stat().st_mode & 0o222 == 0
    assert ada.put(f"/v1/blobs/{sha(content)}", content=content).status_code == 201
    assert left_behind(platform) == []


def test_bytes_that_are_not_what_their_name_says_are_refused(platform: Platform, ada: TestClient) -> None:
    answer = ada.put(f"/v1/blobs/{sha(b'right')}", content=b"wrong")
    assert (answer.status_code, answer.json()["field"]) == (422, "sha256")
    assert ada.head(f"/v1/blobs/{sha(b'right')}").status_code == 404
    assert left_behind(platform) == []


@pytest.mark.parametrize(
    "name", ["x", "A" * 64, "a" * 63, "a" * 65, "..%2f" + "a" * 59, "%00" + "a" * 63, "a" * 64 + "%0a"]
)
def test_a_name_that_is_no_digest_is_refused(shared_ada: TestClient, name: str) -> None:
    assert shared_ada.put(f"/v1/blobs/{name}", content=b"x").status_code in {404, 422}
    assert shared_ada.head(f"/v1/blobs/{name}").status_code in {404, 422}


def test_what_is_too_large_is_refused_before_and_while_it_is_sent(platform: Platform, ada: TestClient) -> None:
    limit = platform.services.max_blob_bytes
    content = b"x" * (limit + 1)
    assert ada.put(f"/v1/blobs/{sha(content)}", content=content).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(limit // 65_536 + 2):
            yield b"x" * 65_536

    answer = ada.put(f"/v1/blobs/{'0' * 64}", content=chunks())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    exact = b"y" * limit
    assert ada.put(f"/v1/blobs/{sha(exact)}", content=exact).status_code == 201
    assert left_behind(platform) == []


def test_a_client_that_leaves_in_the_middle_leaves_nothing(platform: Platform, ada: TestClient) -> None:
    content = os.urandom(500_000)
    with served(platform.app) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = (
                f"PUT /v1/blobs/{sha(content)} HTTP/1.1\r\nHost: {host}:{port}\r\n"
                f"Authorization: {ada.headers['Authorization']}\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            client.sendall(head.encode() + content[:250_000])
            until(lambda: left_behind(platform), what="the upload has begun")
        until(lambda: not left_behind(platform), what="the broken upload is gone")
    assert ada.head(f"/v1/blobs/{sha(content)}").status_code == 404


def test_a_client_that_leaves_in_the_middle_of_a_submit_has_submitted_nothing(
    platform: Platform, ada: TestClient
) -> None:
    body = b'{"kind": "job", "name": "x", "run": "true"}'
    with served(platform.app) as url:
        host, port = url.removeprefix("http://").split(":")
        for sent in (0, 1, 20, len(body) - 1):
            with socket.create_connection((host, int(port))) as client:
                head = (
                    f"POST /v1/jobs HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
                    f"Authorization: {ada.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                client.sendall(head.encode() + body[:sent])
    assert ada.get("/v1/jobs").json()["items"] == []


def test_a_blob_whose_bytes_were_lost_is_asked_for_again(platform: Platform, ada: TestClient) -> None:
    digest = put_blob(ada, b"precious")
    platform.layout.blob("vision", digest).unlink()
    assert ada.head(f"/v1/blobs/{digest}").status_code == 404
    put_blob(ada, b"precious")
    assert ada.head(f"/v1/blobs/{digest}").status_code == 200


def test_the_same_bytes_of_two_tenants_are_kept_apart(platform: Platform, ada: TestClient, bob: TestClient) -> None:
    put_blob(ada, b"same")
    assert bob.head(f"/v1/blobs/{sha(b'same')}").status_code == 404
    put_blob(bob, b"same")
    with platform.store.read() as session:
        assert session.get(Blob, ("vision", sha(b"same"))) is not None
        assert session.get(Blob, ("speech", sha(b"same"))) is not None


def test_what_a_dead_process_left_is_swept_later(platform: Platform, ada: TestClient) -> None:
    incoming = platform.layout.tenant("vision") / "incoming"
    incoming.mkdir(parents=True)
    stale, fresh = incoming / "blob-stale", incoming / "blob-fresh"
    stale.write_bytes(b"x")
    fresh.write_bytes(b"x")
    os.utime(stale, (0, 0))
    put_blob(ada, b"anything")
    assert left_behind(platform) == [fresh]
