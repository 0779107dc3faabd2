"""A log's bytes as lines (C10)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polyray.sdk.logtext import LogLines


def lines_of(*pieces: bytes, max_line: int = 64 * 1024) -> list[str]:
    lines = LogLines(max_line)
    return [line for piece in pieces for line in lines.feed(piece)] + lines.end()


def test_bad_bytes_are_replaced_and_hide_nothing_else() -> None:
    assert lines_of(b"ok\n\200\377bin\r\nend\n") == ["ok", "\ufffd\ufffdbin", "end"]


def test_a_character_cut_in_two_is_whole_again() -> None:
    assert lines_of(b"caf\xc3", b"\xa9\n") == ["café"]


def test_of_a_progress_bar_the_last_state_is_kept() -> None:
    assert lines_of(b" 10%\r 50%\r", b"100%\r\ndone\n") == ["100%", "done"]


def test_an_endless_line_comes_in_pieces() -> None:
    assert lines_of(b"x" * 25, max_line=10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_last_line_without_an_end_is_not_lost() -> None:
    assert lines_of(b"a\nb") == ["a", "b"]
    assert lines_of(b"") == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_where_the_pieces_end_makes_no_difference(content: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(content), *(min(cut, len(content)) for cut in cuts)})
    pieces = [content[start:end] for start, end in pairwise(places)]
    assert lines_of(*pieces) == lines_of(content)
