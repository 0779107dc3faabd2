"""Lines of text from a program's bytes (C10)."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from polyray.api.lines import MAX_LINE_BYTES, Lines


def read_all(*chunks: bytes) -> list[str]:
    lines = Lines()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.flush()


def test_bytes_that_are_no_utf8_are_replaced_and_the_rest_stays() -> None:
    assert read_all(b"ok\n\200\377bin\r\nend\n") == ["ok", "\ufffd\ufffdbin", "end"]


def test_a_character_cut_by_a_read_is_whole_in_the_line() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    lines = Lines()
    assert lines.feed(b"caf" + first) == []
    assert lines.partial() == "caf"
    assert lines.feed(second + b"\n") == ["café"]


def test_a_progress_bar_shows_its_last_state_only() -> None:
    lines = Lines()
    assert lines.feed(b"\r 10%\r 20%") == []
    assert lines.partial() == " 20%"
    assert lines.feed(b"\r100%\ndone\n") == ["100%", "done"]


def test_a_windows_line_end_cut_in_two_ends_one_line() -> None:
    assert read_all(b"one\r", b"\ntwo\r\r\n") == ["one", "two"]


def test_a_line_of_ten_megabytes_is_cut_at_a_bound_and_says_so() -> None:
    lines = Lines()
    for _ in range(160):
        assert lines.feed(b"x" * 65_536) == []
    (line,) = lines.feed(b"\n")
    assert line == "x" * MAX_LINE_BYTES + f"… [{160 * 65_536 - MAX_LINE_BYTES} bytes more]"
    assert lines.feed(b"next\n") == ["next"]


def test_reading_on_after_a_break_starts_at_the_line_that_was_not_complete() -> None:
    lines = Lines()
    lines.feed(b"one\ntw")
    assert lines.complete_bytes == 4
    lines.feed(b"o\n")
    assert lines.complete_bytes == 8


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_where_reads_end_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(places)]
    assert read_all(*chunks) == read_all(data)


@given(st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=100))
def test_any_text_comes_out_as_it_went_in(text: str) -> None:
    assert read_all(text.encode() + b"\n") == [text]
