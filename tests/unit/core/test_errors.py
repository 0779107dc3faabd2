from __future__ import annotations

import pickle

import pytest

from polyray.core.errors import (
    OUTCOMES,
    Code,
    Conflict,
    Forbidden,
    Infeasible,
    Invalid,
    NotFound,
    PolyrayError,
    Unauthenticated,
    Unavailable,
)
from polyray.core.explain import Explanation

ERRORS: list[PolyrayError] = [
    Invalid("m", field="f", hint="h"),
    NotFound("job", "job-1"),
    Conflict("m", hint="h", field="f"),
    Infeasible("m", hint="h", field="f"),
    Forbidden("m", hint="h"),
    Unauthenticated("token_expired", "m", hint="h"),
    Unavailable("m", hint="h"),
    PolyrayError(Code.TIMEOUT, "m", "h", "f", True),
]


def test_every_code_has_an_http_status_and_an_exit_code() -> None:
    assert set(OUTCOMES) == set(Code)
    for outcome in OUTCOMES.values():
        assert 400 <= outcome.http_status < 600
        assert 1 <= outcome.exit_code <= 6


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_survives_the_way_between_two_processes(error: PolyrayError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_an_error_reads_field_message_way_out() -> None:
    assert str(Invalid("-1 is negative", field="resources.gpu", hint="ask for 0 or more")) == (
        "resources.gpu: -1 is negative (ask for 0 or more)"
    )
    assert str(Forbidden("no")) == "no"


def test_only_what_may_pass_by_itself_is_retryable() -> None:
    assert [type(error) for error in ERRORS if error.retryable] == [Unavailable, PolyrayError]


def test_an_explanation_is_data() -> None:
    explanation = Explanation("quota", "h100 is used up", "2 h100 released", {"ahead": ["job-1"]})
    assert explanation.as_dict() == {
        "code": "quota",
        "cause": "h100 is used up",
        "unblocks": "2 h100 released",
        "facts": {"ahead": ["job-1"]},
    }
