"""The order of commands is what keeps tenants apart: rights are taken before they are given."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyray.serving.gateway import Key, Routes
from polyray.serving.haproxy_config import MAPS, Desired, desired, quoted, render_backends, render_gateway
from polyray.serving.haproxy_plan import MAX_RETIRED_SERVERS, ServerState, Stream, WorkerState, needs_reload, plan
from support.gateway import service_backend, session_backend

A = session_backend("clu-aaaaaaaaaaaa", "vision", client_port=10001, dashboard_port=8265)
B = session_backend("clu-bbbbbbbbbbbb", "speech", dashboard_port=8266)
S = service_backend("clu-cccccccccccc", "vision", "digits", serve_port=8000)
ROUTES = Routes(backends=(A, B, S), defaults=(("vision", A.cluster_id), ("speech", B.cluster_id)))
PEM = "-----BEGIN PUBLIC KEY-----"


def after(wanted: Desired, *, current: bool = True, streams: tuple[Stream, ...] = ()) -> WorkerState:
    """Return a worker that holds exactly this."""
    servers = {key: ServerState(maintenance=False) for key in wanted.servers}
    return WorkerState(1, current, "rules", wanted.maps, servers, streams)


def run(worker: WorkerState, commands: tuple[str, ...]) -> WorkerState:
    """Return the worker as it is after HAProxy did the commands."""
    maps = {name: dict(entries) for name, entries in worker.maps.items()}
    servers = dict(worker.servers)
    for command in commands:
        verb, what, *words = command.split()
        if what == "map":
            name = words[0].removeprefix("maps/").removesuffix(".map")
            if verb == "del":
                del maps[name][words[1]]
            else:
                assert (words[1] in maps[name]) == (verb == "set"), command
                maps[name][words[1]] = words[2]
        elif verb == "add":
            kind, server = words[0].split("/")
            assert (kind, server) not in servers, command
            servers[kind, server] = ServerState(maintenance=True)
        elif verb == "set":
            kind, server = words[0].split("/")
            servers[kind, server] = ServerState(maintenance=words[2] == "maint")
    return replace(worker, maps=maps, servers=servers)


EMPTY = after(desired(Routes()))


def test_nothing_is_done_where_nothing_differs() -> None:
    assert plan(after(desired(ROUTES)), desired(ROUTES)) == ()


def test_a_removed_cluster_loses_its_entries_then_its_streams_then_its_servers() -> None:
    commands = plan(after(desired(ROUTES)), desired(replace(ROUTES, backends=(B, S))))
    entry = commands.index(f"del map maps/clusters.map dash/{A.cluster_id}")
    server = f"dash/{A.cluster_id}_127.0.0.1_8265"
    assert (
        entry
        < commands.index(f"shutdown sessions server {server}")
        < commands.index(f"set server {server} state maint")
    )
    assert not any(B.cluster_id in command for command in commands)


def test_a_new_cluster_gets_its_server_before_any_entry_leads_there() -> None:
    commands = plan(EMPTY, desired(ROUTES))
    server = f"dash/{A.cluster_id}_127.0.0.1_8265"
    added = next(i for i, command in enumerate(commands) if command.startswith(f"add server {server} "))
    ready = commands.index(f"set server {server} state ready")
    entry = next(i for i, c in enumerate(commands) if c.startswith(f"add map maps/clusters.map dash/{A.cluster_id} "))
    assert added < ready < entry
    assert all(command.endswith("weight 0") for command in commands if command.startswith("add server"))


def test_an_address_is_taken_from_its_old_cluster_before_it_is_given_to_a_new_one() -> None:
    heir = session_backend("clu-hhhhhhhhhhhh", "speech", dashboard_port=8265)
    commands = plan(after(desired(ROUTES)), desired(replace(ROUTES, backends=(B, S, heir))))
    cut = max(i for i, command in enumerate(commands) if A.cluster_id in command and "server" in command)
    given_to = min(i for i, command in enumerate(commands) if heir.cluster_id in command)
    assert cut < given_to


def test_a_cluster_that_moves_gets_a_new_server_and_the_old_one_is_never_ready_again() -> None:
    wanted = desired(replace(ROUTES, backends=(replace(A, dashboard_port=9999), B, S)))
    worker = run(after(desired(ROUTES)), plan(after(desired(ROUTES)), wanted))
    assert worker.servers["dash", f"{A.cluster_id}_127.0.0.1_8265"].maintenance
    assert not worker.servers["dash", f"{A.cluster_id}_127.0.0.1_9999"].maintenance
    assert plan(worker, wanted) == ()


def test_revocation_comes_first_and_pardon_last() -> None:
    worker = after(desired(replace(ROUTES, revoked_sids=("sid-000000000001",))))
    commands = plan(worker, desired(replace(ROUTES, backends=(A, B), revoked_sids=("sid-000000000002",))))
    assert commands[0] == "add map maps/revoked.map sid-000000000002 *"
    assert commands[-1] == "del map maps/revoked.map sid-000000000001"


def test_a_revoked_session_cuts_the_streams_of_its_own_tenant_and_spares_inference() -> None:
    sid = "sid-000000000001"
    wanted = desired(replace(ROUTES, revoked_sids=(sid,), sid_tenants=((sid, "vision"),)))
    commands = plan(after(desired(ROUTES)), wanted)
    cut = [command for command in commands if command.startswith("shutdown")]
    assert [command.split()[-1].split("/")[0] for command in cut] == ["dash", "grpc"]
    assert all(A.cluster_id in command for command in cut)


def test_an_old_worker_takes_no_servers_and_has_its_streams_cut_one_by_one() -> None:
    servers = {
        "a": f"{A.cluster_id}_127.0.0.1_8265",
        "b": f"{B.cluster_id}_127.0.0.1_8266",
    }
    streams = (
        Stream("0x1", "dash", servers["a"]),
        Stream("0x2", "dash", servers["b"]),
        Stream("0x3", "dash", "<none>"),
        Stream("0x4", "gateway", ""),
    )
    worker = after(desired(ROUTES), current=False, streams=streams)
    heir = session_backend("clu-hhhhhhhhhhhh", "speech", dashboard_port=8265)
    commands = plan(worker, desired(replace(ROUTES, backends=(B, S, heir))))
    assert [command for command in commands if "server" in command] == []
    assert [command for command in commands if command.startswith("shutdown")] == ["shutdown session 0x1"]
    assert f"add map maps/secrets.map {heir.cluster_id} {heir.cluster_secret}" in commands


def test_a_missing_key_or_other_rules_need_a_reload_and_a_key_too_many_does_not() -> None:
    worker = replace(EMPTY, description="rules:k1:k2")
    assert not needs_reload(worker, "rules:k1:k2")
    assert not needs_reload(worker, "rules:k2")
    assert needs_reload(worker, "rules:k2:k3")
    assert needs_reload(worker, "others:k1:k2")
    assert needs_reload(replace(EMPTY, description=""), "rules")


def test_many_retired_servers_need_a_reload() -> None:
    retired = {("dash", f"clu-{number}"): ServerState(maintenance=True) for number in range(MAX_RETIRED_SERVERS + 1)}
    assert needs_reload(replace(EMPTY, servers=retired), "rules")


_CLUSTERS = [f"clu-{number:012d}" for number in range(6)]


@st.composite
def routes(draw: st.DrawFn) -> Routes:
    tenants = st.sampled_from(["vision", "speech"])
    ports = st.sampled_from([0, 1000, 1001])
    backends = tuple(
        replace(session_backend(cluster, draw(tenants)), client_port=draw(ports), dashboard_port=draw(ports))
        for cluster in draw(st.lists(st.sampled_from(_CLUSTERS), unique=True))
    )
    sids = draw(st.lists(st.sampled_from(["sid-000000000001", "sid-000000000002"]), unique=True))
    return Routes(
        backends=backends,
        revoked_sids=tuple(sids),
        suspended_tenants=tuple(draw(st.lists(tenants, unique=True))),
        defaults=tuple({b.tenant: b.cluster_id for b in backends}.items()),
    )


@given(routes(), routes(), routes())
def test_from_any_state_one_plan_leads_to_what_is_desired_and_a_second_is_empty(
    first: Routes, second: Routes, third: Routes
) -> None:
    worker = EMPTY
    for wanted in (desired(first), desired(second), desired(third)):
        worker = run(worker, plan(worker, wanted))
        assert worker.maps == wanted.maps
        assert {key for key, state in worker.servers.items() if not state.maintenance} == set(wanted.servers)
        assert plan(worker, wanted) == ()


@pytest.mark.parametrize(
    "bad",
    [
        replace(A, cluster_id="clu-a\nb"),
        replace(A, cluster_id="x;y"),
        replace(A, tenant="Vision"),
        replace(A, tenant="a b"),
        replace(A, cluster_secret="a b"),
        replace(A, cluster_secret="a;b"),
        replace(A, cluster_secret="a\nb"),
        replace(A, ip="127.0.0.1 proto"),
        replace(A, ip="localhost"),
        replace(A, dashboard_port=70000),
        replace(S, name="x/y"),
    ],
)
def test_what_could_change_a_commands_meaning_is_refused_and_not_shown(bad: object) -> None:
    with pytest.raises(ValueError) as caught:
        desired(Routes(backends=(bad,)))  # type: ignore[arg-type]
    assert "secret-of" not in str(caught.value)
    assert "a b" not in str(caught.value)


@pytest.mark.parametrize("kid", ["../x", "", "a b", "-x", "x/y", "x" * 65])
def test_a_kid_that_is_a_path_is_refused(kid: str) -> None:
    with pytest.raises(ValueError):
        desired(Routes(signing_keys=((kid, PEM),)))


def test_a_key_is_kept_with_what_it_opens_and_in_seconds() -> None:
    wanted = desired(Routes(keys=(Key("AB", "key-000000000001", "vision", "", 1_999_999),)))
    assert wanted.maps["keys"] == {"AB": "vision|*|1999|key-000000000001"}


def test_every_map_of_the_rules_is_one_that_is_kept() -> None:
    text, description = render_gateway(bind="127.0.0.1:1", kids=["k2", "k1"], threads=2)
    assert set(re.findall(r"maps/([a-z]+)\.map", text)) == set(MAPS)
    assert description.split(":")[1:] == ["k1", "k2"]
    assert "@{" not in text


def test_a_server_is_never_balanced_to() -> None:
    lines = [line for line in render_backends(desired(ROUTES).servers).splitlines() if "  server " in line]
    assert len(lines) == 4
    assert all(line.endswith("weight 0") for line in lines)


def test_text_is_quoted_for_haproxy() -> None:
    assert quoted('a "b" $(c) \\') == r'"a \"b\" \$(c) \\"'
