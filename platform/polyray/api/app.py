"""The HTTP API, put together from its routes; everything it works with is passed in."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from polyray.api.deps import GuardedRoute, Services, public
from polyray.api.docs import POLICY, page
from polyray.api.figures import Figures
from polyray.api.following import Followers
from polyray.api.gate import Gate, GateMiddleware
from polyray.api.hosts import host_allowed
from polyray.api.problems import install
from polyray.api.routes import audit, blobs, costs, datasets, identity, keys, models, queue, status, tenants
from polyray.api.routes.workloads import workload_router
from polyray.core.spec import Kind

#: What needs no credential: to log in, to be watched, to be read about. `/issuer` is the built-in issuer.
PUBLIC_PATHS = frozenset(
    {
        "/v1/token",
        "/.well-known/oauth-protected-resource",
        "/healthz",
        "/readyz",
        "/metrics",
        "/docs",
        "/openapi.json",
    }
)
PUBLIC_PREFIXES = frozenset({"/issuer"})

KIB = 2**10
#: Bytes of a body, where not the first that fits says otherwise.
BODY_LIMIT = 256 * KIB
BODY_LIMITS = {"/v1/token": 64 * KIB, "/v1/datasets": 9 * KIB * KIB, "/v1/platform": KIB * KIB}
BLOBS = "/v1/blobs/"


def create_app(services: Services) -> FastAPI:
    app = FastAPI(
        title="Polyray",
        summary="One pool of machines, many isolated Ray clusters.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    figures = Figures(services.store)
    app.state.services, app.state.figures, app.state.followers = services, figures, Followers()
    install(app)
    for kind in Kind:
        app.include_router(workload_router(kind))
    for routes in (blobs, datasets, models, keys, queue, costs, tenants, audit, identity, status):
        app.include_router(routes.router)

    def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers={"Content-Security-Policy": POLICY})

    app.router.routes.append(GuardedRoute("/docs", docs, include_in_schema=False, **public()))
    app.add_middleware(
        GateMiddleware,
        gate=Gate(
            authenticate=services.tokens.verify,
            allowed_host=lambda header: host_allowed(header, _names(services)),
            observe=figures.observe,
            public_paths=PUBLIC_PATHS,
            public_prefixes=PUBLIC_PREFIXES,
            body_limit=body_limit,
        ),
    )
    return app


def body_limit(method: str, path: str) -> int | None:
    """Return the bytes a body may have; None where the route reads a stream and bounds it itself."""
    if method == "PUT" and path.startswith(BLOBS):
        return None
    return BODY_LIMITS.get(path, BODY_LIMIT)


def _names(services: Services) -> frozenset[str]:
    """Return the names that this API answers to beside loopback: as configured."""
    named = urlsplit(services.endpoints().api_url).hostname
    return services.host_names | {services.settings.host.lower()} | ({named.lower()} if named else set())
