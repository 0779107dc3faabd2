"""Packing a working directory (C09)."""

from __future__ import annotations

import os
import socket
import stat
import zipfile
from pathlib import Path

import pytest

from polyray.core.errors import Code, Invalid, PolyrayError
from polyray.sdk import package
from polyray.sdk.package import Package, pack


@pytest.fixture
def top(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "train.py").write_text("print('hello')\n")
    return directory


def packed(top: Path, name: str = "code.zip") -> Package:
    return pack(top, top.parent / name)


def refusal(top: Path) -> str:
    with pytest.raises(Invalid) as caught:
        packed(top)
    assert caught.value.field == "working_dir"
    assert ".polyrayignore" in caught.value.hint
    return caught.value.message


def test_the_same_content_gives_the_same_digest_whatever_its_times_and_order(top: Path, tmp_path: Path) -> None:
    (top / "b").mkdir()
    (top / "b" / "x").write_text("x")
    (top / "a").write_text("a")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("a", "train.py"):
        (other / name).write_bytes((top / name).read_bytes())
        os.utime(other / name, (0, 0))
    (other / "b").mkdir(mode=0o700)
    (other / "b" / "x").write_text("x")
    (other / "b" / "x").chmod(0o600)
    assert packed(top).sha256 == packed(other, "other.zip").sha256


def test_another_byte_another_name_and_another_executable_bit_give_another_digest(top: Path) -> None:
    digests = {packed(top).sha256}
    (top / "train.py").write_text("print('hallo')\n")
    digests.add(packed(top).sha256)
    (top / "train.py").chmod(0o755)
    digests.add(packed(top).sha256)
    (top / "train.py").rename(top / "Train.py")
    digests.add(packed(top).sha256)
    assert len(digests) == 4


def test_names_come_through_byte_for_byte(top: Path) -> None:
    names = ["naïve 文件.py", "nai\u0308ve.py", "n" * 255, "a b", "a\\b", "tab\tname", "e\u0301/é"]
    for name in names:
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(name)
    result = packed(top)
    assert set(result.names) == {*names, "train.py"}
    with zipfile.ZipFile(result.path) as archive:
        assert {info.filename for info in archive.infolist()} == {*names, "train.py"}
        for name in names:
            assert archive.read(name).decode() == name


def test_a_name_that_is_not_utf8_is_refused_by_name(top: Path) -> None:
    with open(os.fsencode(top) + b"/b\xffd.py", "w"):
        pass
    assert "'b\\udcffd.py': its name is not UTF-8" in refusal(top)


def test_a_link_that_leads_out_is_refused_by_name(top: Path) -> None:
    (top / "sub").mkdir()
    (top / "sub" / "passwd").symlink_to("/etc/passwd")
    assert "'sub/passwd': the link leads out" in refusal(top)


@pytest.mark.parametrize("target", ["..", "../work2", "/", "sub/../../work2/secret"])
def test_no_way_of_writing_a_link_leads_out(top: Path, target: str) -> None:
    (top.parent / "work2").mkdir()
    (top.parent / "work2" / "secret").write_text("secret")
    (top / "sub").mkdir()
    (top / "link").symlink_to(target)
    assert "'link': the link leads out" in refusal(top)


def test_links_inside_are_stored_as_what_they_lead_to(top: Path) -> None:
    (top / "lib").mkdir()
    (top / "lib" / "mod.py").write_text("x = 1")
    (top / "again.py").symlink_to("train.py")
    (top / "lib2").symlink_to("lib")
    (top / "chain").symlink_to("lib2")
    result = packed(top)
    assert set(result.names) == {"train.py", "again.py", "lib/mod.py", "lib2/mod.py", "chain/mod.py"}
    with zipfile.ZipFile(result.path) as archive:
        assert archive.read("chain/mod.py") == b"x = 1"
        assert all(stat.S_ISREG(info.external_attr >> 16) for info in archive.infolist())


def test_links_in_a_circle_and_links_to_nowhere_are_refused_by_name(top: Path) -> None:
    (top / "a").symlink_to("b")
    (top / "b").symlink_to("a")
    assert "'a': the link leads nowhere, or in a circle" in refusal(top)
    (top / "a").unlink()
    (top / "b").unlink()
    (top / "broken").symlink_to("missing")
    assert "'broken': the link leads nowhere, or in a circle" in refusal(top)


def test_a_link_back_to_a_directory_above_ends(top: Path) -> None:
    (top / "sub").mkdir()
    (top / "sub" / "up").symlink_to("..")
    assert "'sub/up': the link leads back" in refusal(top)


def test_links_that_multiply_without_a_file_end_too(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_FILES", 200)
    for depth in range(10):
        (top / f"d{depth}").mkdir()
        for copy in range(3):
            (top / f"d{depth}" / f"c{copy}").symlink_to(f"../d{depth + 1}")
    (top / "d10").mkdir()
    assert "more than 200 directories" in refusal(top)


def test_pipes_and_sockets_are_refused_by_name_and_never_read(top: Path) -> None:
    os.mkfifo(top / "pipe")
    assert "'pipe': not a regular file" in refusal(top)
    (top / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "sock"))
        assert "'sock': not a regular file" in refusal(top)


def test_what_never_belongs_in_a_package_is_left_out(top: Path) -> None:
    for name in (".git", "__pycache__", ".venv", "sub/__pycache__", "env"):
        (top / name).mkdir(parents=True)
        (top / name / "x").write_text("x")
    (top / "env" / "pyvenv.cfg").write_text("")
    (top / "mod.pyc").write_text("")
    (top / ".env.example").write_text("kept")
    assert set(packed(top).names) == {"train.py", ".env.example"}


def test_an_ignore_file_leaves_out_names_and_paths(top: Path) -> None:
    (top / ".polyrayignore").write_text("# big things\n*.bin\n/data/raw\noutputs/\n")
    for name in ("a.bin", "sub/b.bin", "data/raw/x", "data/kept", "outputs/x"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")
    (top / "outside").symlink_to("/etc/passwd")
    with (top / ".polyrayignore").open("a") as file:
        file.write("outside\n")
    assert set(packed(top).names) == {"train.py", ".polyrayignore", "data/kept"}


def test_too_much_is_refused_with_the_largest_file_named(top: Path) -> None:
    (top / "model.bin").write_bytes(b"\0" * 4096)
    with pytest.raises(PolyrayError) as caught:
        pack(top, top.parent / "code.zip", max_bytes=2048)
    assert caught.value.code is Code.TOO_LARGE
    assert "model.bin" in caught.value.message


def test_what_is_no_directory_is_refused(top: Path) -> None:
    with pytest.raises(Invalid, match="not a directory"):
        packed(top / "train.py")


def test_a_package_is_private_to_nobody_and_has_no_owner(top: Path) -> None:
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o4777)
    with zipfile.ZipFile(packed(top).path) as archive:
        modes = {info.filename: (info.external_attr >> 16) & 0o7777 for info in archive.infolist()}
    assert modes == {"run.sh": 0o755, "train.py": 0o644}
