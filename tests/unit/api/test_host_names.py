"""The names the API answers to (T10)."""

from __future__ import annotations

import pytest

from polyray.api.hosts import host_allowed

NAMES = frozenset({"polyray.example.org"})


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "LOCALHOST:8470",
        "127.0.0.1:8470",
        "127.77.1.2",
        "[::1]:8470",
        "polyray.example.org",
        "Polyray.Example.org:443",
    ],
)
def test_loopback_and_configured_names_are_answered(header: str) -> None:
    assert host_allowed(header, NAMES)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "evil.example:8470",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0.0.0.0",
        "192.168.1.7:8470",
        "localhost@evil.example",
        "localhost:8470:8471",
        "polyray.example.org.",
        "127.0.0.1\r\nX: y",
        "[::ffff:10.0.0.1]",
        "2130706433",
    ],
)
def test_any_other_name_is_not(header: str) -> None:
    assert not host_allowed(header, NAMES)
