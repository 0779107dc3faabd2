"""What HAProxy reads: its configuration, maps and keys, rendered from settings and routes. Pure.

Three things with three ways to change them:

1. `gateway.cfg`: the rules. A change, or a key that is not loaded, needs a reload.
2. `maps/*.map`: who is who and what goes where. Changed at run time, read from the file at a start.
3. `backends.cfg`: one server a cluster and class. Changed at run time, read from the file at a start.

A server has weight 0, so that load balancing never picks it: a request goes to the one server that is
named for its cluster, or nowhere.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from polyray.core.ids import SLUG, is_id
from polyray.core.spec import Kind
from polyray.identity.api_keys import PREFIX
from polyray.identity.jws import LEEWAY_SECONDS
from polyray.identity.tokens import AUDIENCE, ISSUER
from polyray.serving.denials import DENIALS, ERRORS, RATE_LIMITED
from polyray.serving.gateway import Backend, Routes

#: Classes of traffic; each is a HAProxy backend with one server a cluster.
CLASSES = ("grpc", "dash", "serve")
MAPS = ("kids", "keys", "revoked", "suspended", "services", "defaults", "clusters", "secrets")
#: Inference requests of one tenant in 10 s, before it gets 429.
REQUESTS_PER_10_SECONDS = 50_000
#: Stands for a tenant that is not known, and for every service.
ANY = "*"

_ENTRY = re.compile(r"[!-:=-~]+")  # printable, and neither a space nor ';', which end a command
_FIELD = re.compile(r"@\{([a-z0-9_]+)\}")
_KID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
#: What only one class needs, and how its servers speak.
_BACKEND_LINES: dict[str, tuple[str, ...]] = {
    "grpc": (),
    "dash": (),
    "serve": (
        "  retries 5",
        "  retry-on conn-failure empty-response",
        "  http-request disable-l7-retry if !{ method GET HEAD }",
    ),
}
SERVER_OPTIONS = {"grpc": "proto h2 weight 0", "dash": "weight 0", "serve": "weight 0"}

#: (class, server) -> ip:port.
Servers = Mapping[tuple[str, str], str]
#: Map name -> key -> value.
Maps = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Desired:
    """What the gateway should hold."""

    maps: Maps
    servers: Servers
    #: kid -> PEM.
    keys: Mapping[str, str]
    #: Cluster -> tenant.
    tenants: Mapping[str, str]


def desired(routes: Routes) -> Desired:
    """Return the maps, servers and keys that make these routes.

    Raises:
        ValueError: for a name, address or secret that could change the meaning of a command or a file.
    """
    maps: dict[str, dict[str, str]] = {name: {} for name in MAPS}
    servers: dict[tuple[str, str], str] = {}
    tenants: dict[str, str] = {}
    tenant_of_sid = dict(routes.sid_tenants)
    for kid, _pem in routes.signing_keys:
        maps["kids"][_matching(_KID, kid)] = pem_path(kid)
    for key in routes.keys:
        expires = key.expires_ms // 1000
        maps["keys"][key.key_hash] = f"{_slug(key.tenant)}|{key.service or ANY}|{expires}|{key.key_id}"
    for sid in routes.revoked_sids:
        maps["revoked"][sid] = tenant_of_sid.get(sid, ANY)
    for tenant in routes.suspended_tenants:
        maps["suspended"][_slug(tenant)] = "1"
    for tenant, cluster in routes.defaults:
        maps["defaults"][_slug(tenant)] = cluster
    for backend in routes.backends:
        tenants[backend.cluster_id] = _slug(backend.tenant)
        _add_backend(backend, maps, servers)
    for entries in maps.values():
        for key_, value in entries.items():
            _matching(_ENTRY, key_)
            _matching(_ENTRY, value)
    return Desired(maps, servers, dict(routes.signing_keys), tenants)


def _add_backend(backend: Backend, maps: dict[str, dict[str, str]], servers: dict[tuple[str, str], str]) -> None:
    cluster = backend.cluster_id
    if not is_id(cluster):
        raise ValueError(f"{cluster!r} is no cluster id")
    ports = {"grpc": backend.client_port, "dash": backend.dashboard_port, "serve": backend.serve_port}
    for kind, port in ports.items():
        if port:
            where = address(backend.ip, port)
            server = server_name(cluster, where)
            servers[kind, server] = where
            maps["clusters"][f"{kind}/{cluster}"] = f"{backend.tenant}|{server}"
    maps["secrets"][cluster] = backend.cluster_secret
    if backend.kind == Kind.SERVICE:
        maps["services"][f"{backend.tenant}/{_slug(backend.name)}"] = cluster


def server_name(cluster: str, where: str) -> str:
    """Return the name of a server: a cluster and an address, so that a cluster that moves gets a new server."""
    return f"{cluster}_{where.replace(':', '_')}"


def cluster_of(server: str) -> str:
    return server.partition("_")[0]


def address(ip: str, port: int) -> str:
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port")
    return f"{ipaddress.IPv4Address(ip)}:{port}"


def pem_path(kid: str) -> str:
    """Return where a public key lies, as configuration and map both name it."""
    return f"keys/{_matching(_KID, kid)}.pem"


def render_gateway(*, bind: str, kids: Iterable[str], threads: int) -> tuple[str, str]:
    """Return (`gateway.cfg`, its description). The description tells which rules and keys a worker has loaded."""
    kids = sorted(kids)
    template = files("polyray.serving").joinpath("haproxy.cfg.template").read_text()
    fields = {
        "bind": bind,
        "threads": str(threads),
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "api_key_prefix": PREFIX,
        "leeway_seconds": str(LEEWAY_SECONDS),
        "requests_per_10s": str(REQUESTS_PER_10_SECONDS),
        "errors": "\n".join(
            f"  http-error status {status} content-type application/json string {quoted(denial.body(code))}"
            for status, (code, denial) in ERRORS.items()
        ),
        "refusals": "\n".join(_refusal(code) for code in DENIALS),
        "rate_limited": quoted(RATE_LIMITED.body("rate_limited")),
    }
    digest = hashlib.sha256((template + repr(sorted(fields.items()))).encode()).hexdigest()[:12]
    description = ":".join([digest, *kids])
    loaded = "\n".join(
        f'  http-request set-var(txn.unused) str(),jwt_verify("RS256","{pem_path(kid)}") if FALSE' for kid in kids
    )
    fields |= {"description": description, "loaded_keys": loaded}
    return _FIELD.sub(lambda match: fields[match[1]], template), description


def _refusal(code: str) -> str:
    denial = DENIALS[code]
    challenge = ""
    if denial.status == 401:
        value = f'Bearer realm="polyray", error="invalid_token", error_description="{code}"'
        challenge = f" hdr WWW-Authenticate {quoted(value)}"
    return (
        f"  http-request return status {denial.status} content-type application/json hdr Cache-Control no-store"
        f"{challenge} string {quoted(denial.body(code))} if !is_grpc {{ var(txn.deny) -m str {code} }}"
    )


def render_backends(servers: Servers) -> str:
    """Return `backends.cfg`: the servers that a starting HAProxy knows at once."""
    lines = []
    for kind in CLASSES:
        lines += [f"backend {kind}", "  balance leastconn", *_BACKEND_LINES[kind]]
        lines += ["  use-server %[var(txn.server)] if TRUE"]
        lines += [
            f"  server {server} {where} {SERVER_OPTIONS[kind]}"
            for (of_kind, server), where in sorted(servers.items())
            if of_kind == kind
        ]
        lines += [""]
    return "\n".join(lines)


def render_map(entries: Mapping[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in sorted(entries.items()))


def quoted(text: str) -> str:
    """Return text as one word of a HAProxy configuration."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", text) + '"'


def _slug(text: str) -> str:
    return _matching(SLUG, text)


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        # The text itself is not shown: it may be a secret.
        raise ValueError(f"an entry of {len(text)} characters cannot be a gateway's: it must match {pattern.pattern}")
    return text
