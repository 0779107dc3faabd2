from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from pathlib import Path

import pytest

from polyray.core import code_archive
from polyray.core.code_archive import unpack_code
from polyray.core.errors import Invalid


def pack(path: Path, *entries: tuple[str, bytes, int]) -> str:
    """Write a zip of (name, content, mode) and return its SHA-256."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


FILE = stat.S_IFREG | 0o644


def test_code_is_unpacked_with_its_folders_and_executable_bits(tmp_path: Path) -> None:
    sha256 = pack(tmp_path / "z", ("train.py", b"print(1)", FILE), ("bin/go", b"#!", stat.S_IFREG | 0o755))
    unpack_code(tmp_path / "z", sha256, tmp_path / "code")
    assert (tmp_path / "code" / "train.py").read_text() == "print(1)"
    assert (tmp_path / "code" / "bin" / "go").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "code" / "train.py").stat().st_mode & stat.S_IXUSR


def test_a_later_attempt_finds_what_the_first_wrote_beside_its_code(tmp_path: Path) -> None:
    sha256 = pack(tmp_path / "z", ("a.py", b"", FILE))
    unpack_code(tmp_path / "z", sha256, tmp_path / "code")
    (tmp_path / "code" / "notes").write_text("mine")
    unpack_code(tmp_path / "z", sha256, tmp_path / "code")
    assert (tmp_path / "code" / "notes").read_text() == "mine"


def test_other_code_replaces_it_whole(tmp_path: Path) -> None:
    unpack_code(tmp_path / "1", pack(tmp_path / "1", ("a.py", b"", FILE)), tmp_path / "code")
    unpack_code(tmp_path / "2", pack(tmp_path / "2", ("b.py", b"", FILE)), tmp_path / "code")
    assert [p.name for p in (tmp_path / "code").iterdir()] == ["b.py"]


def test_no_code_is_an_empty_directory(tmp_path: Path) -> None:
    unpack_code(None, None, tmp_path / "code")
    assert list((tmp_path / "code").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("/etc/cron.d/x", FILE),
        ("../outside", FILE),
        ("a/../../outside", FILE),
        ("a//b", FILE),
        ("./a", FILE),
        ("a\\b", FILE),
        ("C:/x", FILE),
        ("link", stat.S_IFLNK | 0o777),
        ("pipe", stat.S_IFIFO | 0o644),
        ("device", stat.S_IFCHR | 0o644),
    ],
)
def test_an_entry_that_could_reach_outside_is_refused_and_nothing_is_left(tmp_path: Path, name: str, mode: int) -> None:
    sha256 = pack(tmp_path / "z", ("ok.py", b"", FILE), (name, b"/etc/passwd", mode))
    with pytest.raises(Invalid):
        unpack_code(tmp_path / "z", sha256, tmp_path / "code")
    assert [p.name for p in tmp_path.iterdir()] == ["z"]


def test_a_file_that_is_also_a_folder_or_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="twice"):
        unpack_code(tmp_path / "1", pack(tmp_path / "1", ("a", b"", FILE), ("a/b", b"", FILE)), tmp_path / "code")
    with pytest.warns(UserWarning, match="Duplicate"):
        sha256 = pack(tmp_path / "2", ("a", b"1", FILE), ("a", b"2", FILE))
    with pytest.raises(Invalid, match="twice"):
        unpack_code(tmp_path / "2", sha256, tmp_path / "code")


def test_a_bomb_is_stopped_by_what_it_unpacks_not_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_archive, "MAX_UNPACKED_BYTES", 2**20)
    sha256 = pack(tmp_path / "z", ("zeros", b"\0" * 2**22, FILE))
    with pytest.raises(Invalid, match="1 MiB unpacked"):
        unpack_code(tmp_path / "z", sha256, tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_changed_bytes_are_refused(tmp_path: Path) -> None:
    pack(tmp_path / "z", ("a.py", b"", FILE))
    with pytest.raises(Invalid, match="changed since it was sent"):
        unpack_code(tmp_path / "z", "0" * 64, tmp_path / "code")


def test_what_is_no_zip_or_a_torn_one_is_refused(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", "x = 1\n" * 1000)
    torn = bytearray(whole.getvalue())
    torn[40] ^= 0xFF
    for content in (b"", b"PK", bytes(torn)):
        (tmp_path / "z").write_bytes(content)
        with pytest.raises(Invalid):
            unpack_code(tmp_path / "z", hashlib.sha256(content).hexdigest(), tmp_path / "code")
