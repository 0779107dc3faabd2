from __future__ import annotations

import threading

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from polyray.core.errors import Conflict
from polyray.store import claims
from polyray.store.engine import Store
from polyray.store.tables import Claim

TTL_MS = 10_000


def take(store: Store, owner: str, now_ms: int) -> int | None:
    with store.write() as session:
        return claims.take(session, "leader", owner, now_ms=now_ms, ttl_ms=TTL_MS)


def may_act(store: Store, epoch: int) -> bool:
    try:
        with store.write() as session:
            claims.require(session, "leader", epoch)
    except Conflict:
        return False
    return True


def test_the_first_to_come_holds_the_claim_and_renews_it_under_the_same_epoch(store: Store) -> None:
    assert take(store, "a", 0) == 1
    assert take(store, "a", 5_000) == 1
    assert take(store, "b", 14_999) is None
    assert take(store, "b", 15_000) == 2


def test_taking_twice_in_one_transaction_is_taking_once(store: Store) -> None:
    with store.write() as session:
        assert claims.take(session, "leader", "a", now_ms=0, ttl_ms=TTL_MS) == 1
        assert claims.take(session, "leader", "a", now_ms=1, ttl_ms=TTL_MS) == 1
        assert claims.take(session, "leader", "b", now_ms=2, ttl_ms=TTL_MS) is None
        claims.require(session, "leader", 1)


def test_a_holder_that_slept_past_its_claim_does_no_harm_when_it_wakes(store: Store) -> None:
    assert take(store, "a", 0) == 1
    assert take(store, "b", TTL_MS) == 2
    assert not may_act(store, 1)
    assert may_act(store, 2)
    assert take(store, "a", TTL_MS + 1) is None


def test_a_claim_that_was_given_up_need_not_be_waited_for(store: Store) -> None:
    assert take(store, "a", 0) == 1
    with store.write() as session:
        claims.release(session, "leader", "b", now_ms=1)
    assert take(store, "b", 1) is None
    with store.write() as session:
        claims.release(session, "leader", "a", now_ms=1)
        claims.release(session, "unknown", "a", now_ms=1)
    assert take(store, "b", 1) == 2


def test_nobody_acts_on_a_claim_that_was_never_taken(store: Store) -> None:
    assert not may_act(store, 1)


def test_of_two_owners_that_race_one_wins(store: Store) -> None:
    for n in range(10):
        won: list[str] = []
        start = threading.Barrier(4)

        def race(owner: str, n: int = n, won: list[str] = won, start: threading.Barrier = start) -> None:
            start.wait()
            if take(store, owner, n * TTL_MS) is not None:
                won.append(owner)

        threads = [threading.Thread(target=race, args=(f"owner-{n}-{k}",)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


@given(
    calls=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 7_000), st.booleans()), max_size=30),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_there_is_one_holder_at_any_time_and_every_new_one_has_a_higher_epoch(
    calls: list[tuple[str, int, bool]], store: Store
) -> None:
    with store.write() as session:
        session.execute(delete(Claim))
    now, holder, epoch, expires = 0, "", 0, 0
    for owner, passed, gives_up in calls:
        now += passed
        got = take(store, owner, now)
        if owner == holder or now >= expires:
            epoch += owner != holder
            assert got == epoch
            holder, expires = owner, now + TTL_MS
            if gives_up:
                with store.write() as session:
                    claims.release(session, "leader", owner, now_ms=now)
                expires = now
        else:
            assert got is None
        assert may_act(store, epoch)
        assert not may_act(store, epoch - 1)
