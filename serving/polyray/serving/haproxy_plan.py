"""Which commands bring a running HAProxy worker to what is desired. Pure, total, idempotent.

Order is what keeps tenants apart. Rights are taken before they are given, and an entry exists only
while its server does:

1. revoked sessions and suspended tenants are entered;
2. entries that are gone are deleted, so that no new request takes an old way;
3. streams of removed servers are cut, and the servers put into maintenance for good;
4. new servers are added, then the entries that lead to them.

No server is deleted while HAProxy runs: 2.8 keeps pointers to it in client connections, and crashes, or
worse, takes a later server in the same memory for it. A server's name holds its address, so that a retired
one is never used again; a reload forgets them.

A worker that was replaced by a reload gets the same, but takes no new servers; its servers cannot be
commanded any more, so its streams are cut one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polyray.serving.haproxy_config import ANY, CLASSES, MAPS, SERVER_OPTIONS, Desired, cluster_of

#: A reload forgets the servers of clusters that are gone once there are more.
MAX_RETIRED_SERVERS = 300
#: Maps whose entries take rights away.
_REFUSING = ("revoked", "suspended")
_GRANTING = tuple(name for name in MAPS if name not in _REFUSING)
#: Classes whose streams carry a person's token all along.
_PERSONAL = ("grpc", "dash")


@dataclass(frozen=True)
class ServerState:
    maintenance: bool


@dataclass(frozen=True)
class Stream:
    pointer: str
    kind: str
    server: str


@dataclass(frozen=True)
class WorkerState:
    """What was seen of one worker."""

    pid: int
    current: bool
    description: str
    maps: Mapping[str, Mapping[str, str]]
    servers: Mapping[tuple[str, str], ServerState]
    #: Of an old worker only.
    streams: tuple[Stream, ...] = ()


def plan(worker: WorkerState, desired: Desired) -> tuple[str, ...]:
    """Return the commands, in order. Nothing to do is an empty plan."""
    return (
        *_refuse(worker, desired),
        *(command for name in _GRANTING for command in _take(name, worker, desired)),
        *(_cut_streams(worker, desired) if not worker.current else _cut_servers(worker, desired)),
        *(_add_servers(worker, desired) if worker.current else ()),
        *(command for name in _GRANTING for command in _give(name, worker, desired)),
        *(command for name in _REFUSING for command in _take(name, worker, desired)),
    )


def needs_reload(worker: WorkerState, description: str) -> bool:
    """Say whether a worker lacks the rules or a key of this description (a key too many does no harm).

    So does one that has gathered many servers of clusters that are gone.
    """
    if sum(state.maintenance for state in worker.servers.values()) > MAX_RETIRED_SERVERS:
        return True
    has_rules, *has_kids = worker.description.split(":")
    rules, *kids = description.split(":")
    return has_rules != rules or not set(kids) <= set(has_kids)


def _refuse(worker: WorkerState, desired: Desired) -> Iterator[str]:
    for name in _REFUSING:
        yield from _give(name, worker, desired)


def _take(name: str, worker: WorkerState, desired: Desired) -> Iterator[str]:
    for key in sorted(worker.maps[name].keys() - desired.maps[name].keys()):
        yield f"del map maps/{name}.map {key}"


def _give(name: str, worker: WorkerState, desired: Desired) -> Iterator[str]:
    has = worker.maps[name]
    for key, value in sorted(desired.maps[name].items()):
        if key not in has:
            # HAProxy takes a second entry of one key without a word, so none is added that is there.
            yield f"add map maps/{name}.map {key} {value}"
        elif has[key] != value:
            yield f"set map maps/{name}.map {key} {value}"


def _cut_servers(worker: WorkerState, desired: Desired) -> Iterator[str]:
    for (kind, server), state in sorted(worker.servers.items()):
        gone = (kind, server) not in desired.servers
        if (gone and not state.maintenance) or _revoked(kind, server, worker, desired):
            yield f"shutdown sessions server {kind}/{server}"
        if gone and not state.maintenance:
            yield f"set server {kind}/{server} state maint"


def _cut_streams(worker: WorkerState, desired: Desired) -> Iterator[str]:
    for stream in worker.streams:
        if stream.kind in CLASSES and stream.server not in ("", "<none>"):
            gone = (stream.kind, stream.server) not in desired.servers
            if gone or _revoked(stream.kind, stream.server, worker, desired):
                yield f"shutdown session {stream.pointer}"


def _add_servers(worker: WorkerState, desired: Desired) -> Iterator[str]:
    for (kind, server), where in sorted(desired.servers.items()):
        state = worker.servers.get((kind, server))
        if state is None:
            yield f"add server {kind}/{server} {where} {SERVER_OPTIONS[kind]}"
        if state is None or state.maintenance:
            yield f"set server {kind}/{server} state ready"


def _revoked(kind: str, server: str, worker: WorkerState, desired: Desired) -> bool:
    """Say whether somebody who may have streams there lost the right since this worker was last told.

    HAProxy cannot tell whose stream is whose within a cluster, so all of them are cut: a Ray client that
    still has the right comes back by itself and keeps its state.
    """
    tenant = desired.tenants.get(cluster_of(server))
    if tenant in desired.maps["suspended"] and tenant not in worker.maps["suspended"]:
        return True
    new = desired.maps["revoked"].keys() - worker.maps["revoked"].keys()
    return kind in _PERSONAL and any(desired.maps["revoked"][sid] in (tenant, ANY) for sid in new)
