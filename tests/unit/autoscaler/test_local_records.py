"""What a crash of the machine may leave of the local provider's records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from polyray.autoscaler.provider import InstanceState
from polyray.autoscaler.providers.local import LocalProvider
from polyray.core.settings import Settings

RECORD = {
    "offering": "cloud",
    "boot_seconds": 0,
    "block": 0,
    "launched_ms": 1_000,
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state")


def launched(settings: Settings, node_id: str, **files: str) -> None:
    directory = settings.state_dir / "nodes" / node_id
    directory.mkdir(parents=True)
    record = {**RECORD, "intent_id": node_id, "temp_dir": str(settings.state_dir / f"temp-{node_id}")}
    (directory / "instance.json").write_text(json.dumps(record))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(content)


@pytest.mark.parametrize("torn", ["", "{", "[]"])
def test_a_record_that_a_crash_tore_hides_its_own_node_and_no_other(settings: Settings, torn: str) -> None:
    launched(settings, "nod-aaaaaaaaaaaa", instance=torn)
    launched(settings, "nod-bbbbbbbbbbbb", process=torn)
    (listed,) = LocalProvider(settings, offerings=tuple).list()
    assert listed.intent_id == "nod-bbbbbbbbbbbb"
    assert listed.state is InstanceState.TERMINATED


def test_a_node_that_died_with_the_machine_is_billed_until_then_and_not_until_somebody_looked(
    settings: Settings,
) -> None:
    launched(settings, "nod-aaaaaaaaaaaa", process=json.dumps({"pid": 2**22 + 1, "start_ticks": 1}))
    died_ms = 7_200_000
    os.utime(settings.state_dir / "nodes" / "nod-aaaaaaaaaaaa" / "process.json", (died_ms / 1000, died_ms / 1000))
    provider = LocalProvider(settings, offerings=tuple)
    for _ in range(2):  # it stays listed, so that whoever bills sees it
        (listed,) = provider.list()
        assert (listed.billed_from_ms, listed.billed_to_ms) == (RECORD["launched_ms"], died_ms)
