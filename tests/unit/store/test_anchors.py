from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyray.core.errors import Unavailable
from polyray.store import anchors as files
from polyray.store.anchors import Anchor, Anchors

ONE, TWO = Anchor(7, "a" * 64, 1), Anchor(9, "b" * 64, 2)


@pytest.fixture
def anchors(tmp_path: Path) -> Anchors:
    return Anchors(tmp_path)


def test_what_was_anchored_is_read_in_its_order_and_by_nobody_else(anchors: Anchors) -> None:
    assert anchors.read() == ()
    assert anchors.newest() is None
    anchors.append(ONE)
    anchors.append(TWO)
    assert anchors.read() == (ONE, TWO)
    assert anchors.newest() == TWO
    assert anchors.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "torn",
    [
        b'{"event_id":9,"chain":"bb',
        b"\xff\xfe",
        b'{"event_id":-1,"chain":"x","at_ms":1}',
        b'{"event_id":%d,"chain":"%s","at_ms":1}' % (2**63, b"c" * 64),
        b'{"event_id":9,"chain":"%s","at_ms":%d}' % (b"c" * 64, 10**18),
        b'{"event_id":9,"chain":"%s","at_ms":1e400}' % (b"c" * 64),
        b"[" * 100_000,
        b"[]",
    ],
)
def test_a_line_that_a_crash_tore_is_passed_over_and_spoils_no_other(anchors: Anchors, torn: bytes) -> None:
    anchors.append(ONE)
    with anchors.path.open("ab") as file:
        file.write(torn)
    assert anchors.read() == (ONE,)
    anchors.append(TWO)
    assert anchors.read() == (ONE, TWO)


def test_the_file_is_bounded_and_the_newest_anchors_stay(anchors: Anchors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    made = [Anchor(n, "c" * 64, n) for n in range(1, 100)]
    for anchor in made:
        anchors.append(anchor)
    assert sum(path.stat().st_size for path in anchors.path.parent.iterdir()) <= 2000
    kept = anchors.read()
    assert len(kept) >= 8
    assert list(kept) == made[-len(kept) :]


def test_a_full_disk_is_told_and_the_next_anchor_is_whole(anchors: Anchors, monkeypatch: pytest.MonkeyPatch) -> None:
    anchors.append(ONE)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, line: write(file, line[:5]))
        with pytest.raises(Unavailable, match="disk is full") as told:
            anchors.append(TWO)
    assert str(anchors.path) in told.value.hint
    anchors.append(TWO)
    assert anchors.read() == (ONE, TWO)
