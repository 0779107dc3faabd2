"""What is told of a slice that ended: its last words, not the noise before them."""

from __future__ import annotations

from polyray.tenants.sandboxes.process import last_lines

_RAYS = """\
\x1b[32m2026-12-01 03:13:32,001\tINFO scripts.py:1250 -- Local node IP: 127.77.0.2\x1b[39m
[2026-12-01 03:13:32,469 I 3 3] (gcs_server) gcs_server.cc:1359: Metrics exporter initialized with port 24006

2026-12-01 03:13:35,024\tERR scripts.py:128 -- \x1b[31m----- END gcs_server.out tail (exit code=-9) -----\x1b[39m
"""


def test_the_last_words_of_a_slice_are_without_colours_and_without_what_went_well() -> None:
    assert last_lines(_RAYS) == (
        "2026-12-01 03:13:35,024 ERR scripts.py:128 -- ----- END gcs_server.out tail (exit code=-9) -----"
    )


def test_a_slice_that_said_nothing_bad_is_told_by_what_it_said() -> None:
    assert last_lines("[2026-12-01 03:13:32,469 I 3 3] (raylet) all is well\n") == (
        "[2026-12-01 03:13:32,469 I 3 3] (raylet) all is well"
    )
    assert last_lines("") == ""


def test_whole_lines_are_told_as_far_as_there_is_room_and_of_a_long_one_its_end() -> None:
    assert last_lines("one\ntwo\nthree\n", limit=12) == "two | three"
    assert last_lines("x" * 50 + "end", limit=5) == "xxend"
