from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from polyray.core.clock import VirtualClock
from polyray.core.errors import Forbidden, Invalid, NotFound, PolyrayError, Unauthenticated
from polyray.identity.keys import SigningKeys
from polyray.identity.tokens import PlatformTokens, revoked_sids
from polyray.store.engine import Store
from polyray.store.tables import Cluster, Tenant, Workload
from support.tokens import make_keys, make_store, make_tokens, sign

CLUSTER = "clu-000000000001"


class World:
    def __init__(self, directory: Path) -> None:
        self.clock = VirtualClock()
        self.store: Store = make_store(directory, "vision", "speech")
        self.keys: SigningKeys = make_keys(directory, self.clock)
        self.tokens: PlatformTokens = make_tokens(self.store, self.keys, self.clock)

    def reason(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as caught:
            self.tokens.verify(token)
        return caught.value.reason

    def add_cluster(self, state: str = "ready") -> None:
        with self.store.write() as session:
            session.add(
                Workload(
                    workload_id="ses-000000000001",
                    kind="session",
                    tenant="vision",
                    project="default",
                    name="default",
                    live_name="default",
                    submitted_by="ada",
                    spec={},
                    state="running",
                    cluster_id=CLUSTER,
                    created_ms=0,
                    queued_ms=0,
                )
            )
            session.flush()
            session.add(
                Cluster(
                    cluster_id=CLUSTER,
                    workload_id="ses-000000000001",
                    tenant="vision",
                    attempt=1,
                    state=state,
                    secret="s",
                    created_ms=0,
                )
            )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


def test_who_has_one_tenant_need_not_name_it(world: World) -> None:
    principal = world.tokens.verify(world.tokens.exchange("ada").token)
    assert (principal.subject, principal.tenant, principal.role) == ("ada", "vision", "admin")
    assert not principal.operator


def test_who_has_several_must_choose_and_gets_that_ones_role(world: World) -> None:
    with pytest.raises(Invalid, match=r"tenant.*speech, vision"):
        world.tokens.exchange("eve")
    assert world.tokens.exchange("eve", tenant="speech").principal.role == "viewer"
    assert world.tokens.exchange("eve", tenant="vision").principal.role == "member"


def test_a_foreign_tenant_and_an_absent_one_are_refused_alike(world: World) -> None:
    refusals = set()
    for tenant in ("speech", "no-such-tenant", "../x"):
        with pytest.raises(Forbidden) as caught:
            world.tokens.exchange("ada", tenant=tenant)
        refusals.add(str(caught.value))
    assert len(refusals) == 1


def test_an_operators_token_names_no_tenant(world: World) -> None:
    principal = world.tokens.verify(world.tokens.exchange("olga").token)
    assert principal.operator
    assert principal.tenant is None


def test_an_operator_gets_no_role_in_a_tenant_by_that(world: World) -> None:
    with pytest.raises(Forbidden):
        world.tokens.exchange("olga", tenant="vision")


def test_who_has_no_role_is_refused(world: World) -> None:
    with pytest.raises(Forbidden, match="no role"):
        world.tokens.exchange("zoe")


@pytest.mark.parametrize("ttl_seconds", [0, -1, 9, 12 * 3600 + 1])
def test_a_lifetime_out_of_bounds_is_refused_with_the_bounds(world: World, ttl_seconds: int) -> None:
    with pytest.raises(Invalid, match=r"ttl_seconds.*10 to 43200"):
        world.tokens.exchange("ada", ttl_seconds=ttl_seconds)


def test_a_token_dies_at_its_expiry_to_the_second(world: World) -> None:
    token = world.tokens.exchange("ada", ttl_seconds=60).token
    world.clock.advance(59)
    world.tokens.verify(token)
    world.clock.advance(1)
    assert world.reason(token) == "token_expired"


def test_a_clock_set_back_by_more_than_the_leeway_makes_a_token_not_yet_valid(world: World) -> None:
    token = world.tokens.exchange("ada").token
    world.clock.step_wall(-10)
    world.tokens.verify(token)
    world.clock.step_wall(-1)
    assert world.reason(token) == "token_not_yet_valid"


def test_a_revoked_session_is_dead_at_once_and_stays_so(world: World) -> None:
    one, other = world.tokens.exchange("ada"), world.tokens.exchange("ada")
    world.tokens.revoke(one.principal.sid)
    world.tokens.revoke(one.principal.sid)
    world.tokens.revoke("sid-000000000000")
    assert world.reason(one.token) == "token_revoked"
    world.tokens.verify(other.token)
    world.tokens.revoke_subject("ada")
    assert world.reason(other.token) == "token_revoked"


def test_the_gateway_is_told_of_revoked_sessions_until_they_would_have_expired(world: World) -> None:
    issued = world.tokens.exchange("ada", ttl_seconds=60)
    world.tokens.exchange("bob")
    world.tokens.revoke(issued.principal.sid)
    with world.store.read() as session:
        assert revoked_sids(session, world.clock.now_ms()) == ((issued.principal.sid, "vision"),)
        assert revoked_sids(session, world.clock.now_ms() + 60_000) == ()


def test_a_suspended_tenant_gets_no_token_and_its_tokens_stop(world: World) -> None:
    token = world.tokens.exchange("ada").token
    with world.store.write() as session:
        session.get_one(Tenant, "vision").suspended = True
    assert world.reason(token) == "tenant_suspended"
    with pytest.raises(Forbidden, match="suspended"):
        world.tokens.exchange("ada")


def test_a_token_may_name_a_living_cluster_of_its_tenant_only(world: World) -> None:
    world.add_cluster()
    assert world.tokens.exchange("ada", cluster=CLUSTER).principal.cluster == CLUSTER
    refusals = []
    for who, cluster in (("bob", CLUSTER), ("bob", "clu-000000000002")):
        with pytest.raises(NotFound) as caught:
            world.tokens.exchange(who, cluster=cluster)
        refusals.append(str(caught.value).replace(cluster, "X"))
    assert refusals[0] == refusals[1]


def test_a_cluster_that_is_gone_cannot_be_named(world: World) -> None:
    world.add_cluster(state="gone")
    with pytest.raises(NotFound):
        world.tokens.exchange("ada", cluster=CLUSTER)


def test_a_token_of_a_session_that_nobody_opened_is_dead(world: World) -> None:
    """A signature alone opens nothing: the session must be a row."""
    claims = jwt.decode(world.tokens.exchange("ada").token, options={"verify_signature": False})
    assert world.reason(sign(world.keys, claims | {"sid": "sid-zzzzzzzzzzzz"})) == "token_revoked"


def test_a_failed_exchange_leaves_no_session_behind(world: World) -> None:
    with pytest.raises(PolyrayError):
        world.tokens.exchange("ada", cluster="clu-000000000009")
    with world.store.read() as session:
        from polyray.store.tables import LoginSession

        assert session.query(LoginSession).count() == 0


def test_secrets_are_in_no_repr(world: World) -> None:
    issued = world.tokens.exchange("ada")
    assert issued.token not in repr(issued)
    assert "private" not in repr(world.keys.signing())
