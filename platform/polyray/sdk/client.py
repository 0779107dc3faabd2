"""The platform's API, one method a route. Answers are the API's own JSON objects."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from polyray.core.errors import Code, Invalid, PolyrayError
from polyray.core.ids import SLUG, is_id, shown
from polyray.core.layout import parse_sha256
from polyray.sdk.events import Event, parse_events
from polyray.sdk.problems import error_from
from polyray.sdk.transport import FixedToken, TokenSource, Transport, checked_url, open_http

Json = dict[str, Any]

#: One read of a log.
LOG_CHUNK_BYTES = 1 << 20

#: Routes of the kinds of workload, by the prefix of their ids.
KINDS = {"job": "jobs", "ses": "sessions", "svc": "services"}


def route_of(workload_id: str) -> str:
    """Return `jobs`, `sessions` or `services`.

    Raises:
        Invalid: if it is no workload's id.
    """
    if is_id(workload_id) and (route := KINDS.get(workload_id[:3])):
        return route
    raise Invalid(
        f"{shown(workload_id)} is not a workload's id",
        field="id",
        hint="ids look like job-7k2m9q4v8x0c: see 'polyray ps', or name a session or service with its own command",
    )


class PolyrayClient:
    """A connection to one platform. Use it as a context manager, or close it.

    Raises from every method:
        PolyrayError: as the platform told it; `Unavailable` if it does not answer.
    """

    def __init__(self, api_url: str, token: str | TokenSource | None = None, **transport: Any) -> None:
        self.api_url = checked_url(api_url, field="api_url")
        self._http = open_http(self.api_url)
        source = FixedToken(token) if isinstance(token, str) else token
        self._transport = Transport(self._http, source, **transport)

    def __enter__(self) -> PolyrayClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # What there is

    def whoami(self) -> Json:
        return self._get("/v1/whoami")

    def status(self) -> Json:
        return self._get("/v1/status")

    def nodes(self) -> list[Json]:
        return list(self._all("/v1/nodes"))

    def queue(self) -> list[Json]:
        return list(self._all("/v1/queue"))

    def tenants(self) -> list[Json]:
        return list(self._all("/v1/tenants"))

    def costs(self, *, workload: str | None = None, month: str | None = None) -> Json:
        """Return what was spent by one workload, or by the tenant in a month (`2026-03`, UTC)."""
        return self._get("/v1/costs", workload=workload, month=month)

    def apply_platform(self, platform: Mapping[str, Any]) -> Json:
        """Make tenants, quotas, people and pools what the operator's file says. Idempotent."""
        return self._post("/v1/platform", dict(platform))

    def audit_events(self) -> Iterator[Json]:
        """Return all that happened on the platform, the newest first, page by page. For operators."""
        return self._all("/v1/audit")

    def verify_audit(self) -> Json:
        """Have the chain of all events verified, and return what is wrong with it. For operators."""
        return self._get("/v1/audit/verify")

    def acknowledge_audit(self) -> Json:
        """Say that the gaps in the history are known. For operators."""
        return self._post("/v1/audit/acknowledge", {})

    # Workloads; `route` is `jobs`, `sessions` or `services`, `ref` an id or a live name

    def submit(
        self, route: str, spec: Mapping[str, Any], *, dry_run: bool = False, idempotency_key: str | None = None
    ) -> Json:
        """Submit a workload, or with `dry_run` return its priced plan. A retry cannot submit it twice."""
        key = idempotency_key or str(uuid.uuid4())
        try:
            return self._post(f"/v1/{route}", dict(spec), idempotency_key=key, dry_run="true" if dry_run else None)
        except PolyrayError as error:
            if error.code is Code.TIMEOUT and not dry_run:
                error.hint = f"it may have been taken all the same: see 'polyray ps' first (its idempotency key: {key})"
            raise

    def workloads(self, route: str, **filters: Any) -> Iterator[Json]:
        """Return workloads, newest first, page by page."""
        return self._all(f"/v1/{route}", **filters)

    def workload(self, route: str, ref: str) -> Json:
        return self._get(_of(route, ref))

    def stop(self, route: str, ref: str) -> Json:
        return self._post(f"{_of(route, ref)}/stop", {})

    def why(self, route: str, ref: str) -> Json:
        return self._get(f"{_of(route, ref)}/why")

    def events(self, route: str, ref: str) -> list[Json]:
        return list(self._all(f"{_of(route, ref)}/events"))

    def records(self, route: str, ref: str) -> list[Json]:
        """Return what the run wrote about itself: metrics, checkpoints, its model."""
        items: list[Json] = []
        offset = 0
        while True:
            answer = self._get(f"{_of(route, ref)}/records", offset=offset)
            items.extend(answer["items"])
            if not answer.get("more"):
                return items
            offset = answer["next_offset"]

    def logs(self, route: str, ref: str, offset: int = 0, limit: int = LOG_CHUNK_BYTES) -> tuple[bytes, int]:
        """Return raw bytes of the log from `offset`, and the offset to go on from."""
        answer = self._transport.call("GET", f"{_of(route, ref)}/logs", params={"offset": offset, "limit": limit})
        following = answer.headers.get("x-next-offset", "")
        return answer.content, int(following) if following.isdigit() else offset + len(answer.content)

    def follow_logs(self, route: str, ref: str, offset: int = 0) -> Iterator[Event]:
        """Yield `log` (whole lines), `progress` (the unfinished line) and, last, `end` (the workload's state).

        A broken stream is taken up where it ended, also across a restart of the control plane.
        """
        position = str(offset)
        while True:
            before = position
            with self._transport.stream(
                f"{_of(route, ref)}/logs", params={"follow": "true"}, headers={"last-event-id": position}
            ) as lines:
                for event in parse_events(lines):
                    position = event.id or position
                    if event.name == "error":
                        raise _told_error(event.data)
                    yield event
                    if event.name == "end":
                        return
            if position == before:
                self._transport.pause()

    def kill_worker(self, job_id: str, rank: int) -> Json:
        """Kill one worker of a running job with -9, as a crash would. Never repeated: it would kill its successor."""
        return _object(self._transport.call("POST", f"{_of('jobs', job_id)}/kill-worker", json={"rank": rank}).json())

    # Artefacts

    def put_blob(self, path: Path, sha256: str) -> bool:
        """Store a file under its SHA-256; return whether its bytes had to be sent."""
        url = f"/v1/blobs/{parse_sha256(sha256, field='sha256')}"
        try:
            self._transport.call("HEAD", url)
        except PolyrayError as error:
            if error.code is not Code.NOT_FOUND:
                raise
        else:
            return False
        size = os.stat(path).st_size
        headers = {"content-type": "application/octet-stream", "content-length": str(size)}
        self._transport.call("PUT", url, headers=headers, body=lambda: _chunks(path))
        return True

    def publish_dataset(self, name: str, stage: str, manifest: Mapping[str, Any]) -> Json:
        return self._post("/v1/datasets", {"name": name, "stage": stage, "manifest": dict(manifest)})

    def datasets(self) -> list[Json]:
        return list(self._all("/v1/datasets"))

    def dataset(self, name: str, version: int) -> Json:
        return self._get(f"{_of('datasets', name)}/{version:d}")

    def register_model(self, name: str, job_id: str, path: str) -> Json:
        """Make a model version of what a job wrote at `path` (relative to its artefacts)."""
        return self._post("/v1/models", {"name": name, "job_id": job_id, "path": path})

    def models(self) -> list[Json]:
        return list(self._all("/v1/models"))

    def model(self, name: str, version: int) -> Json:
        return self._get(f"{_of('models', name)}/{version:d}")

    # API keys

    def create_key(self, name: str, *, service: str | None = None, ttl_days: int | None = None) -> Json:
        """Make an API key; its text is in this answer and never again."""
        given = {"name": name, "service": service, "ttl_days": ttl_days}
        return self._post("/v1/keys", {key: value for key, value in given.items() if value is not None})

    def keys(self) -> list[Json]:
        return list(self._all("/v1/keys"))

    def revoke_key(self, key_id: str) -> None:
        self._transport.call("DELETE", _of("keys", key_id))

    def _get(self, path: str, **params: Any) -> Json:
        return _object(self._transport.call("GET", path, params=params).json())

    def _post(self, path: str, body: Any, *, idempotency_key: str | None = None, **params: Any) -> Json:
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer = self._transport.call("POST", path, params=params, json=body, headers=headers)
        return _object(answer.json()) if answer.content else {}

    def _all(self, path: str, **params: Any) -> Iterator[Json]:
        cursor: str | None = None
        while True:
            page = self._transport.call("GET", path, params={**params, "cursor": cursor}).json()
            yield from page if isinstance(page, list) else page.get("items", ())
            cursor = page.get("next_cursor") if isinstance(page, dict) else None
            if not cursor:
                return


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of(route: str, ref: str) -> str:
    """Return the path of one thing. What is neither an id nor a name cannot reach a URL."""
    if not (is_id(ref) or SLUG.fullmatch(ref)):
        raise Invalid(f"{shown(ref)} is neither an id nor a name", field="id", hint="list what there is with 'ls'")
    return f"/v1/{route}/{quote(ref, safe='')}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def _told_error(data: Any) -> PolyrayError:
    """Return the reason for which the platform ended a stream."""
    return error_from(500, data if isinstance(data, dict) else None)


def _object(decoded: Any) -> Json:
    return decoded if isinstance(decoded, dict) else {"items": decoded}
