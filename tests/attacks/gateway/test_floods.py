"""T15: one tenant's flood of requests is answered with 429, and another tenant does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyray.serving import haproxy_config
from support.front import open_front
from support.raw_http import exchange, status_of
from support.tokens import sign


def test_a_flood_of_one_tenant_is_limited_and_another_tenant_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy_config, "REQUESTS_PER_10_SECONDS", 5)
    with open_front(tmp_path) as front:
        answers = [front.get("/serve/digits/", front.api_keys["all"]) for _ in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 5
        assert answers[-1].json()["code"] == "rate_limited"
        assert answers[-1].headers["retry-after"] == "1"
        assert front.get("/serve/digits/", front.api_keys["speech"]).status_code == 200
        assert front.get("/api/version", sign(front.keys, front.claims())).status_code == 200

        oversized = exchange(front.running.port, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000 + b"\r\n\r\n")
        assert status_of(oversized) == 400
        many = b"".join(b"X-%d: a\r\n" % number for number in range(200))
        assert status_of(exchange(front.running.port, b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n")) == 400
