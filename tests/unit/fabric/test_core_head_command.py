"""The core's head: one place for life, and nothing secret in sight."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyray.core.errors import Invalid, Unavailable
from polyray.core.settings import Settings, load_settings
from polyray.fabric.core_head import (
    CORE_PORTS,
    PORTS_PER_NODE,
    NodePlace,
    core_head_command,
    core_place,
    core_token_path,
)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = load_settings(state_dir=tmp_path / "state")
    yield settings
    if settings.ray_dir.exists():
        settings.ray_dir.rmdir()


def test_the_head_comes_back_at_its_old_place(settings: Settings) -> None:
    first, second = core_head_command(settings), core_head_command(settings)
    assert first == second
    assert f"--port={core_place(settings).gcs_port}" in first[0]


def test_the_head_moves_where_somebody_else_is_at_its_old_place_for_good(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    core_head_command(settings)
    old = core_place(settings)
    monkeypatch.setattr("polyray.fabric.core_head.PLACE_WAIT_SECONDS", 0.3)
    with socket.create_server((old.ip, old.gcs_port)):
        core_head_command(settings)
        assert core_place(settings) != old


def test_a_driver_that_waits_for_the_head_does_not_drive_it_from_its_place(settings: Settings) -> None:
    core_head_command(settings)
    old = core_place(settings)
    with socket.create_server((old.ip, old.first_port + 10)):
        core_head_command(settings)
    assert core_place(settings) == old


def test_a_damaged_record_of_the_place_is_replaced(settings: Settings) -> None:
    core_head_command(settings)
    (settings.state_dir / "run" / "core.json").write_text("")
    core_head_command(settings)
    assert core_place(settings).first_port


def test_a_core_that_was_never_started_has_no_place(settings: Settings) -> None:
    with pytest.raises(Unavailable, match=r"never started.*polyray up"):
        core_place(settings)


def test_the_head_carries_no_leases_and_keeps_its_state_on_disk(settings: Settings) -> None:
    argv, environment = core_head_command(settings)
    assert {"--head", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"} <= set(argv)
    assert environment["RAY_gcs_storage"] == "rocksdb"
    assert Path(environment["RAY_gcs_storage_path"]).parent == settings.state_dir


def test_its_token_is_a_private_file_and_in_no_argument(settings: Settings) -> None:
    argv, environment = core_head_command(settings)
    token = core_token_path(settings)
    assert stat.S_IMODE(token.stat().st_mode) == 0o400
    assert environment["RAY_AUTH_MODE"] == "token"
    assert token.read_text() not in " ".join((*argv, *environment.values()))


def test_rays_directory_is_private(settings: Settings) -> None:
    core_head_command(settings)
    assert stat.S_IMODE(settings.ray_dir.stat().st_mode) == 0o700


def test_a_ray_directory_that_somebody_else_put_there_is_refused(settings: Settings, tmp_path: Path) -> None:
    settings.ray_dir.symlink_to(tmp_path)
    try:
        with pytest.raises(Invalid, match="not a directory of this user"):
            core_head_command(settings)
    finally:
        settings.ray_dir.unlink()


def test_blocks_of_core_ports_neither_overlap_nor_leave_their_range() -> None:
    places = [NodePlace.of_block(i) for i in range(len(CORE_PORTS) // PORTS_PER_NODE)]
    assert len({place.ip for place in places}) == len(places)
    assert all(place.first_port in CORE_PORTS for place in places)
    assert places[-1].first_port + PORTS_PER_NODE <= CORE_PORTS.stop
    assert "127.0.0.1" not in {place.ip for place in places}
