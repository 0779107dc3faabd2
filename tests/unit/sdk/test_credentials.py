"""Where a login is kept (T12)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.sdk.credentials import Credentials, Login

LOGIN = Login("http://127.0.0.1:8470", "http://127.0.0.1:8470/issuer", "polyray-cli", "ACCESS", 1, "REFRESH")


def test_files_are_the_owners_alone_and_so_are_their_directories(tmp_path: Path) -> None:
    os.umask(0)
    credentials = Credentials(tmp_path / "config", LOGIN.api_url)
    credentials.save(LOGIN)
    credentials.save_token("vision", "TOKEN")
    credentials.save_cluster_token("clu-000000000001", "TOKEN")
    os.umask(0o022)
    for path in (tmp_path / "config").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_login_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path, LOGIN.api_url)
    assert credentials.login() is None
    credentials.save(LOGIN)
    credentials.choose("vision")
    assert credentials.login() == replace(LOGIN, tenant="vision")


def test_platforms_and_tenants_do_not_share_tokens(tmp_path: Path) -> None:
    first, second = (Credentials(tmp_path, f"http://127.0.0.1:{port}") for port in (8470, 8480))
    first.save_token("vision", "FIRST")
    assert second.token("vision") is None
    assert first.token("speech") is None


def test_a_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path, LOGIN.api_url)
    credentials.save(LOGIN)
    (credentials.directory / "login.json").chmod(0o640)
    with pytest.raises(Invalid, match="others can read"):
        credentials.login()


def test_a_damaged_login_says_the_way_out(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path, LOGIN.api_url)
    credentials.save(LOGIN)
    (credentials.directory / "login.json").write_text("{")
    with pytest.raises(Invalid) as caught:
        credentials.login()
    assert "polyray login" in caught.value.hint


def test_a_name_that_is_none_reaches_no_path(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        Credentials(tmp_path, LOGIN.api_url).save_token("../x", "TOKEN")


def test_tokens_do_not_show_in_a_logins_text() -> None:
    assert "ACCESS" not in repr(LOGIN)
    assert "REFRESH" not in repr(LOGIN)
