from __future__ import annotations

from pathlib import Path

from polyray.control.disk import LOW_BYTES, look, told
from support.small_disk import SmallDisk, on_small_disk


def test_a_disk_with_room_says_how_much() -> None:
    assert told(LOW_BYTES, read_only=False) == (True, "0.2 GiB free where the state directory is")


def test_a_disk_that_fills_up_or_takes_no_writes_is_not_ok_and_the_way_out_is_told() -> None:
    ok, detail = told(LOW_BYTES - 1, read_only=False)
    assert not ok
    assert detail == "255 MiB free where the state directory is: make room, since without it nothing can be written"
    assert told(2**40, read_only=True) == (False, "the state directory is on a disk that is read-only")


def test_it_is_looked_at_where_the_directory_is(tmp_path: Path) -> None:
    def body(disk: SmallDisk) -> None:
        disk.fill(free_pages=0)
        assert look(disk.root)[1].startswith("0 MiB free")

    on_small_disk(tmp_path / "disk", body)
