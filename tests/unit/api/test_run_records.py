"""Records as they are shown: whatever a run writes, the answer is JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polyray.api.outputs import MAX_RECORD_BYTES, parse_records


def encoded(data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(parse_records(data, offset=0, whole_file=True).encode().decode("ascii"))
    return answer


def test_bad_lines_are_skipped_and_counted() -> None:
    deep = b"[" * 20_000 + b"\n"
    long = b'{"x": "' + b"y" * MAX_RECORD_BYTES + b'"}\n'
    found = encoded(b'{"loss": 1}\nnonsense\n[1]\n\n\xff\xfe\n' + deep + long + b'{"loss": 2}\n')
    assert found["items"] == [{"loss": 1}, {"loss": 2}]
    assert found["skipped"] == 5


def test_a_last_line_without_its_end_waits_for_the_next_read() -> None:
    found = encoded(b'{"step": 1}\n{"step":')
    assert found["items"] == [{"step": 1}]
    assert found["next_offset"] == len(b'{"step": 1}\n')
    assert not found["more"]


def test_a_diverged_loss_stays_readable() -> None:
    found = encoded(b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": 12345678901234567890123}\n')
    assert found["items"] == [{"a": "NaN", "b": "-Infinity", "c": "1e999", "d": "12345678901234567890123"}]


def test_half_a_surrogate_pair_does_not_break_the_answer() -> None:
    assert encoded(rb'{"name": "\ud800"}' + b"\n")["items"] == [{"name": "\ud800"}]


@given(st.binary(max_size=400))
def test_any_bytes_give_an_answer(data: bytes) -> None:
    found = encoded(data)
    assert 0 <= found["next_offset"] <= len(data)
