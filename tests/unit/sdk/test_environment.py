from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.sdk.environment import as_shell, ray_environment


def test_stock_ray_gets_both_addresses_and_the_tokens_file_never_the_token() -> None:
    assert ray_environment("http://127.0.0.1:8471/", Path("/home/a b/t.jwt")) == {
        "RAY_ADDRESS": "ray://127.0.0.1:8471",
        "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8471",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/home/a b/t.jwt",
    }


def test_the_shells_lines_are_quoted() -> None:
    assert as_shell({"A": "x y'z", "B": "$(rm)"}) == "export A='x y'\"'\"'z'\nexport B='$(rm)'"


def test_a_gateway_that_would_carry_tokens_in_clear_text_is_refused() -> None:
    with pytest.raises(Invalid, match="clear text"):
        ray_environment("http://gateway.example.org", Path("/t"))
