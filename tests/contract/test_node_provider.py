"""What every node provider promises; run on the cloud in memory and on the embedded one.

The embedded one's nodes boot for a minute here, so no raylet is started: joining is tested with a real core.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyray.autoscaler.provider import Instance, InstanceState, InsufficientCapacity, NodeNotFound, NodeProvider
from polyray.autoscaler.providers.local import LocalProvider
from polyray.core.ids import new_id
from polyray.core.settings import load_settings
from polyray.fabric.core_head import core_head_command
from support.providers import FakeProvider
from support.real_core import offering
from support.wait import until

SLOW_BOOT = offering("slow", boot_seconds=60, max_nodes=2)
OTHER = offering("other", boot_seconds=60, max_nodes=1)

#: Makes the provider anew, as after a restart of the control plane.
Restart = Callable[[], NodeProvider]


@pytest.fixture(params=["fake", "local"])
def restart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restart]:
    if request.param == "fake":
        fake = FakeProvider((SLOW_BOOT, OTHER))
        yield lambda: fake
        return
    settings = load_settings(state_dir=tmp_path / "s")
    core_head_command(settings)
    local = LocalProvider(settings, lambda: (SLOW_BOOT, OTHER))
    yield lambda: LocalProvider(settings, lambda: (SLOW_BOOT, OTHER))
    for instance in local.list():
        end(local, instance.intent_id)
    assert list(settings.ray_dir.iterdir()) == [], "a terminated node left something"
    shutil.rmtree(settings.ray_dir)


@pytest.fixture
def provider(restart: Restart) -> NodeProvider:
    return restart()


def end(provider: NodeProvider, intent_id: str) -> Instance:
    until(
        lambda: provider.terminate(intent_id).state is InstanceState.TERMINATED, seconds=20, every=0.05, what="its end"
    )
    return find(provider, intent_id)


def find(provider: NodeProvider, intent_id: str) -> Instance:
    return next(instance for instance in provider.list() if instance.intent_id == intent_id)


def test_it_offers_what_it_was_given(provider: NodeProvider) -> None:
    assert provider.offerings() == (SLOW_BOOT, OTHER)


def test_a_launched_node_is_listed_by_its_intent_and_billed_from_the_call(provider: NodeProvider) -> None:
    intent = new_id("node")
    launched = provider.launch(intent, SLOW_BOOT)
    assert launched.intent_id == intent
    assert launched.offering == "slow"
    assert launched.state is InstanceState.PENDING
    assert launched.billed_from_ms is not None
    assert launched.billed_to_ms is None
    assert provider.list() == (launched,)


def test_launching_an_intent_twice_makes_one_node(provider: NodeProvider) -> None:
    intent = new_id("node")
    assert provider.launch(intent, SLOW_BOOT) == provider.launch(intent, SLOW_BOOT)
    assert len(provider.list()) == 1


def test_a_terminated_node_is_billed_to_its_end_and_still_listed(provider: NodeProvider) -> None:
    intent = new_id("node")
    provider.launch(intent, SLOW_BOOT)
    ended = end(provider, intent)
    assert ended.billed_from_ms is not None
    assert ended.billed_to_ms is not None
    assert ended.billed_from_ms <= ended.billed_to_ms


def test_terminating_twice_changes_nothing(provider: NodeProvider) -> None:
    intent = new_id("node")
    provider.launch(intent, SLOW_BOOT)
    ended = end(provider, intent)
    assert provider.terminate(intent) == ended


def test_an_intent_whose_node_has_ended_is_not_launched_again(provider: NodeProvider) -> None:
    intent = new_id("node")
    provider.launch(intent, SLOW_BOOT)
    end(provider, intent)
    assert provider.launch(intent, SLOW_BOOT).state is InstanceState.TERMINATED


def test_terminating_an_unknown_node_says_so(provider: NodeProvider) -> None:
    with pytest.raises(NodeNotFound):
        provider.terminate(new_id("node"))


def test_an_offering_has_its_limit_and_an_ended_node_makes_room(provider: NodeProvider) -> None:
    first, second, third = (new_id("node") for _ in range(3))
    provider.launch(first, SLOW_BOOT)
    provider.launch(second, SLOW_BOOT)
    with pytest.raises(InsufficientCapacity, match="has no slow now"):
        provider.launch(third, SLOW_BOOT)
    provider.launch(new_id("node"), OTHER)
    end(provider, first)
    assert provider.launch(third, SLOW_BOOT).state is InstanceState.PENDING


def test_nodes_outlive_the_control_plane(provider: NodeProvider, restart: Restart) -> None:
    intent = new_id("node")
    launched = provider.launch(intent, SLOW_BOOT)
    assert restart().list() == (launched,)
    assert restart().launch(intent, SLOW_BOOT) == launched
    end(restart(), intent)
