from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from polyray.core.log import configure, redact

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJhZGEiLCJleHAiOjF9.c2lnbmF0dXJlLW9mLWl0"
KEY = "pr_9mK2vQ4x8wZ1nB7tY5cF3dR6"


@pytest.fixture(autouse=True)
def own_configuration() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def logged(capsys: pytest.CaptureFixture[str], **fields: Any) -> dict[str, Any]:
    configure(component="test")
    structlog.get_logger().info("tried", **fields)
    line: dict[str, Any] = json.loads(capsys.readouterr().err)
    return line


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"token {JWT} refused", "token [redacted] refused"),
        (f"token {JWT.rsplit('.', 1)[0]}. refused", "token [redacted] refused"),
        (f"key {KEY} refused", "key [redacted] refused"),
        (f"Authorization: Bearer {JWT}", "Authorization: [redacted]"),
        ("authorization: bearer abc.def", "authorization: [redacted]"),
        ("Authorization: Basic YWRhOmFkYQ==", "Authorization: [redacted]"),
        ("GET /v1/jobs?cursor=7&code=secret 200", "GET /v1/jobs?[redacted] 200"),
        ("http://127.0.0.1/login?abc", "http://127.0.0.1/login?[redacted]"),
        ("postgresql://ada:hunter2@db/polyray", "postgresql://[redacted]@db/polyray"),
        ("nothing to hide; is it? yes", "nothing to hide; is it? yes"),
    ],
)
def test_a_credential_in_a_text_is_not_logged(text: str, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert logged(capsys, detail=text)["detail"] == kept


@pytest.mark.parametrize(
    "name",
    ["token", "cluster_secret", "password", "Authorization", "Set-Cookie", "api_key", "credentials", "RAY_AUTH_TOKEN"],
)
@pytest.mark.parametrize("value", ["abc", b"abc", ["abc"], {"a": "abc"}], ids=["text", "bytes", "list", "mapping"])
def test_a_field_named_after_a_credential_is_not_logged(
    name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logged(capsys, **{name: value})[name] == "[redacted]"


def test_a_figure_about_tokens_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, tokens_per_second=12.5, token_expired=True)
    assert line["tokens_per_second"] == 12.5
    assert line["token_expired"] is True


def test_credentials_are_found_however_deep_they_lie(capsys: pytest.CaptureFixture[str]) -> None:
    class Opaque:
        def __repr__(self) -> str:
            return f"Opaque({KEY})"

    line = logged(
        capsys,
        request={"headers": [{"authorization": f"Bearer {JWT}"}, ("x", f"Bearer {JWT}")], "path": Path("/a")},
        opaque=Opaque(),
        raw=KEY.encode(),
    )
    text = json.dumps(line)
    assert JWT not in text
    assert KEY not in text
    assert line["request"]["headers"][0] == {"authorization": "[redacted]"}
    assert line["opaque"] == "Opaque([redacted])"


def test_a_credential_in_a_traceback_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure(component="test")
    try:
        raise ValueError(f"bad token {JWT}")
    except ValueError:
        structlog.get_logger().exception("failed")
    line = json.loads(capsys.readouterr().err)
    assert JWT not in json.dumps(line)
    assert "bad token [redacted]" in line["exception"]


def test_a_line_names_its_event_level_component_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys, job="job-1")
    assert line["event"] == "tried"
    assert line["level"] == "info"
    assert line["component"] == "test"
    assert line["timestamp"].endswith("Z")
    assert line["job"] == "job-1"


def test_redaction_leaves_plain_values_alone() -> None:
    event = {"event": "a", "n": 1, "x": 1.5, "none": None, "flag": False, "list": [1, "b"]}
    assert redact(None, "info", dict(event)) == event


def test_a_full_disk_loses_the_line_and_not_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", FullDisk())
    configure(component="test")
    structlog.get_logger().info("tried")
    structlog.get_logger().error("failed")
