"""How the platform is: for people (`status`), for a load balancer (`healthz`, `readyz`), for Prometheus (`metrics`)."""

from __future__ import annotations

import platform
from importlib.metadata import version

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from starlette.responses import Response

from polyray.api.deps import Given, Probe, Services, guarded_router, may, public
from polyray.api.views import ComponentView, StatusView
from polyray.core.errors import PolyrayError
from polyray.identity.policy import Action
from polyray.store.tables import Node, Workload

router = guarded_router("", "status")

#: Without these nobody is served.
NEEDED = ("store", "fabric", "gateway")


class Health(BaseModel):
    ok: bool
    components: list[ComponentView] = []


@router.get("/v1/status", **may(Action.READ_STATUS))
def status(services: Given) -> StatusView:
    """Say what runs, in which isolation grade, and what that means."""
    components = _probed(services)
    grade, means = services.grade
    endpoints = services.endpoints()
    with services.store.read() as session:
        workloads, nodes = counts(session)
    return StatusView(
        components=components,
        grade=grade,
        grade_means=means,
        api_url=endpoints.api_url,
        gateway_url=endpoints.gateway_url,
        versions={"polyray": version("polyray"), "ray": version("ray"), "python": platform.python_version()},
        workloads=workloads,
        nodes=nodes,
    )


@router.get("/healthz", **public())
async def healthz() -> Health:
    """Answer if the process does, whatever its threads wait for."""
    return Health(ok=True)


@router.get("/readyz", responses={503: {"model": Health}}, **public())
def readyz(services: Given) -> Response:
    """Answer 200 if store, fabric and gateway answer, else 503 and which does not."""
    components = [c for c in _probed(services) if c.name in NEEDED]
    missing = set(NEEDED) - {c.name for c in components}
    ok = not missing and all(c.ok for c in components)
    # What exactly is the matter is for those who may read the status.
    bare = [ComponentView(name=c.name, ok=c.ok, detail="") for c in components]
    return JSONResponse(Health(ok=ok, components=bare).model_dump(), 200 if ok else 503)


@router.get("/metrics", response_class=Response, **public())
def metrics(request: Request) -> Response:
    """Figures of the API and of the queue in Prometheus text; no tenant is named."""
    content, media_type = request.app.state.figures.render()
    return Response(content, media_type=media_type)


def counts(session: Session) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many workloads and nodes there are by state."""
    return _by_state(session, Workload.state), _by_state(session, Node.state)


def _by_state(session: Session, column: InstrumentedAttribute[str]) -> dict[str, int]:
    return dict(session.execute(select(column, func.count()).group_by(column)).all())


def _probed(services: Services) -> list[ComponentView]:
    views = []
    for name, probe in services.probes.items():
        try:
            found = probe()
        except PolyrayError as error:
            found = Probe(False, str(error))
        views.append(ComponentView(name=name, ok=found.ok, detail=found.detail))
    return views
