"""What is made beside its place: swept later if a crash left it, and never while it may still be on its way."""

from __future__ import annotations

import time
from pathlib import Path

from polyray.core.arrivals import STALE_SECONDS, arriving


def test_what_a_crash_left_goes_a_day_later_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    left = arriving(tmp_path)
    (left / "weights").write_bytes(b"half")
    assert left.exists()
    assert left != arriving(tmp_path)
    arriving(tmp_path, now=lambda: time.time() + STALE_SECONDS + 1)
    assert not left.exists()
    assert (tmp_path / "1").exists()


def test_a_link_of_that_name_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    beside = tmp_path / "versions"
    beside.mkdir()
    (beside / ".arriving-x").symlink_to(kept)
    arriving(beside, now=lambda: time.time() + STALE_SECONDS + 1)
    assert (kept / "file").exists()
