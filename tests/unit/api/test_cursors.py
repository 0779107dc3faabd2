from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyray.api.paging import Cursor, parse_cursor
from polyray.core.errors import Invalid


@given(st.integers(-(2**61), 2**61), st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-", max_size=40))
def test_a_cursor_comes_back_as_it_was_given(order: int, identity: str) -> None:
    assert parse_cursor(Cursor(order, identity).encode()) == Cursor(order, identity)


@given(st.text(max_size=80))
def test_what_no_list_gave_out_is_refused_by_name(text: str) -> None:
    try:
        parse_cursor(text)
    except Invalid as error:
        assert error.field == "cursor"


@pytest.mark.parametrize("text", ["", "%%%", "bnVsbA", "WzFd", "e30", "W251bGwsIm51bGwiXQ", "é"])
def test_these_are_no_cursors(text: str) -> None:
    with pytest.raises(Invalid):
        parse_cursor(text)
