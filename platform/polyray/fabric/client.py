"""The fabric as the control plane sees it: `Fabric` over its unix socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from polyray.core.errors import Code, Conflict, Invalid, NotFound, PolyrayError, Unavailable
from polyray.tenants.slices import DriverSpec, FabricNode, Gang, GangStatus, SliceSpec, SliceStatus

#: More than the fabric's own limit for a call, so that its word comes first.
TIMEOUT_SECONDS = 10.0

_CLASSES: dict[Code, type[PolyrayError]] = {
    Code.CONFLICT: Conflict,
    Code.INVALID: Invalid,
    Code.NOT_FOUND: NotFound,
    Code.UNAVAILABLE: Unavailable,
}
_NODES = TypeAdapter(tuple[FabricNode, ...])
_GANGS = TypeAdapter(tuple[GangStatus, ...])
_SLICES = TypeAdapter(tuple[SliceStatus, ...])
Answer = TypeVar("Answer")


class FabricClient:
    """Implements `polyray.tenants.slices.Fabric`. Thread-safe; connects anew when the fabric was restarted."""

    def __init__(self, socket_path: Path, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._http = httpx.Client(
            base_url="http://fabric",
            transport=httpx.HTTPTransport(uds=str(socket_path), retries=0),
            timeout=httpx.Timeout(timeout_seconds, connect=1.0),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def nodes(self) -> tuple[FabricNode, ...]:
        return self._call(_NODES, "GET", "/nodes")

    def grant(self, gang: Gang) -> GangStatus:
        return self._call(TypeAdapter(GangStatus), "POST", "/gangs", gang)

    def release(self, cluster_id: str) -> GangStatus:
        return self._call(TypeAdapter(GangStatus), "DELETE", f"/gangs/{cluster_id}")

    def gangs(self) -> tuple[GangStatus, ...]:
        return self._call(_GANGS, "GET", "/gangs")

    def slices(self) -> tuple[SliceStatus, ...]:
        return self._call(_SLICES, "GET", "/slices")

    def start_slice(self, spec: SliceSpec) -> None:
        self._request("POST", "/slices", spec)

    def kill_slice(self, lease_id: str) -> None:
        self._request("DELETE", f"/slices/{lease_id}")

    def start_driver(self, lease_id: str, spec: DriverSpec) -> None:
        self._request("POST", f"/slices/{lease_id}/driver", spec)

    def stop_driver(self, lease_id: str, driver_id: str, grace_seconds: float) -> None:
        self._request("DELETE", f"/slices/{lease_id}/driver/{driver_id}", grace_seconds=grace_seconds)

    def _call(self, shape: TypeAdapter[Answer], method: str, path: str, body: BaseModel | None = None) -> Answer:
        try:
            return shape.validate_json(self._request(method, path, body).content)
        except ValidationError as error:
            raise Unavailable(f"the fabric answered {path} in a form that is not known") from error

    def _request(self, method: str, path: str, body: BaseModel | None = None, **query: float) -> httpx.Response:
        try:
            response = self._http.request(
                method, path, content=body.model_dump_json() if body is not None else None, params=query
            )
        except httpx.TransportError as error:
            raise Unavailable(
                f"the fabric does not answer: {type(error).__name__}", hint="see 'polyray status'"
            ) from error
        if response.is_error:
            raise _error(response)
        return response


def _error(response: httpx.Response) -> PolyrayError:
    """Return the error that the fabric raised, as the class it was."""
    try:
        body: dict[str, Any] = response.json()
        code = Code(body["code"])
        parts = (str(body["message"]), str(body["hint"]), str(body["field"]), bool(body["retryable"]))
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"the fabric answered {response.status_code}")
    error = PolyrayError(code, *parts)
    error.__class__ = _CLASSES.get(code, PolyrayError)
    return error
