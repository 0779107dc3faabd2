"""What the supervisor decides."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from polyray.supervise.plan import (
    FAILING_AFTER,
    HEALTHY_SECONDS,
    MAX_BACKOFF_SECONDS,
    Action,
    Component,
    Memory,
    Observed,
    Verb,
    all_ended,
    plan,
)
from polyray.supervise.processes import ProcessRef

CORE = Component("core", ("core",), stop_order=2)
FABRIC = Component("fabric", ("fabric",), stop_order=1)
SERVER = Component("server", ("server",), stop_order=0, grace_seconds=90)
ALL = (CORE, FABRIC, SERVER)


def alive(component: Component, *, digest: str = "") -> Observed:
    return Observed(ProcessRef(7, 7, "boot"), digest or component.digest)


REST = Observed(rest=(ProcessRef(8, 8, "boot"),))
GONE = Observed()


def planned(
    observed: Mapping[str, Observed],
    memory: Mapping[str, Memory] | None = None,
    *,
    stopping: bool = False,
    hurried: bool = False,
    now: float = 1000.0,
) -> dict[str, Verb]:
    actions = plan(ALL, observed, memory or {}, stopping=stopping, hurried=hurried, now=now)
    assert len({action.component for action in actions}) == len(actions)
    return {action.component: action.verb for action in actions}


def test_what_is_not_there_is_started_and_what_is_there_is_left_alone() -> None:
    assert planned({"core": alive(CORE)}) == {"fabric": Verb.START, "server": Verb.START}


def test_what_failed_is_not_started_before_its_time() -> None:
    memory = {"server": Memory(failures=2, retry_at=1001.0)}
    seen = {"core": alive(CORE), "fabric": alive(FABRIC)}
    assert planned(seen, memory) == {}
    assert planned(seen, memory, now=1001.0) == {"server": Verb.START}


def test_the_rest_of_a_session_ends_before_its_component_is_started_again() -> None:
    assert planned({"core": REST, "fabric": alive(FABRIC), "server": alive(SERVER)}) == {"core": Verb.SWEEP}


def test_a_process_of_another_command_is_asked_to_end_and_killed_after_its_grace() -> None:
    seen = {"core": alive(CORE), "fabric": alive(FABRIC), "server": alive(SERVER, digest="older")}
    assert planned(seen) == {"server": Verb.ASK}
    assert planned(seen, {"server": Memory(asked_at=911.0)}) == {}
    assert planned(seen, {"server": Memory(asked_at=910.0)}) == {"server": Verb.KILL}


def test_stopping_asks_one_order_after_the_other() -> None:
    seen = {component.name: alive(component) for component in ALL}
    assert planned(seen, stopping=True) == {"server": Verb.ASK}
    assert planned({**seen, "server": GONE}, stopping=True) == {"fabric": Verb.ASK}
    assert planned({**seen, "server": GONE, "fabric": REST}, stopping=True) == {"fabric": Verb.SWEEP}
    assert planned({**seen, "server": GONE, "fabric": GONE}, stopping=True) == {"core": Verb.ASK}
    assert planned(dict.fromkeys(seen, GONE), stopping=True) == {}


def test_what_the_draining_server_needs_is_started_again() -> None:
    seen = {"core": GONE, "fabric": alive(FABRIC), "server": alive(SERVER)}
    assert planned(seen, {"server": Memory(asked_at=999.0)}, stopping=True) == {"core": Verb.START}


def test_in_a_hurry_nothing_is_started_and_nothing_is_asked() -> None:
    seen = {"core": GONE, "fabric": alive(FABRIC), "server": alive(SERVER)}
    assert planned(seen, stopping=True, hurried=True) == {"server": Verb.KILL}


def test_back_off_doubles_to_its_limit_and_a_long_life_forgives() -> None:
    memory, now, waits = Memory(), 0.0, []
    for _ in range(9):
        memory = memory.after_start(now).after_exit(now + 1, "exit code 1")
        waits.append(memory.retry_at - now - 1)
        now += 1
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert waits[-1] == MAX_BACKOFF_SECONDS
    assert memory.failing
    healed = memory.after_start(now).after_exit(now + HEALTHY_SECONDS, "SIGKILL")
    assert (healed.failures, healed.failing) == (1, False)
    assert not Memory(failures=FAILING_AFTER - 1).failing


OBSERVED = st.sampled_from([GONE, REST, *(alive(c) for c in ALL), alive(CORE, digest="older")])
MEMORY = st.builds(Memory, st.integers(0, 20), st.floats(900, 1100), st.none(), st.none() | st.floats(800, 1000))


@given(
    st.fixed_dictionaries({c.name: OBSERVED for c in ALL}),
    st.fixed_dictionaries({c.name: MEMORY for c in ALL}),
    st.booleans(),
    st.booleans(),
)
def test_no_plan_ever_starts_what_is_alive_or_signals_what_is_not(
    observed: dict[str, Observed], memory: dict[str, Memory], stopping: bool, hurried: bool
) -> None:
    for action in plan(ALL, observed, memory, stopping=stopping, hurried=hurried, now=1000.0):
        seen = observed[action.component]
        match action.verb:
            case Verb.START:
                assert seen == GONE
                assert memory[action.component].retry_at <= 1000.0
            case Verb.ASK | Verb.KILL:
                assert seen.process is not None
            case Verb.SWEEP:
                assert seen.process is None
                assert seen.rest


@given(st.fixed_dictionaries({c.name: OBSERVED for c in ALL}))
def test_stopping_ends_whatever_is_there(observed: dict[str, Observed]) -> None:
    """Each asked component ends, and what it left is swept: then nothing is left in a bounded number of plans."""
    for _ in range(12):
        if all_ended(observed):
            return
        for action in plan(ALL, observed, {}, stopping=True, now=1000.0):
            observed[action.component] = _after(action)
    raise AssertionError(observed)


def _after(action: Action) -> Observed:
    if action.verb is Verb.START:
        return alive(next(c for c in ALL if c.name == action.component))
    return REST if action.verb is Verb.ASK else GONE
