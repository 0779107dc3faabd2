"""Files that a tenant's code may have replaced (T19)."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from polyray.core.beneath import open_beneath, read_beneath
from polyray.core.errors import Conflict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "driver.log").write_bytes(b"hello\n")
    (tmp_path / "secret").write_bytes(b"canary")
    return tmp_path / "run"


def test_a_plain_file_is_read(root: Path) -> None:
    assert read_beneath(root, "logs/driver.log", offset=1, limit=3) == (b"ell", 6)


def test_what_is_not_there_says_so(root: Path) -> None:
    for path in ("logs/other.log", "none/driver.log"):
        with pytest.raises(FileNotFoundError):
            open_beneath(root, path)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../secret", "logs/../../secret", "./logs", "logs//x", "logs/\0", "logs/"]
)
def test_a_path_that_leaves_or_is_no_path_is_a_defect(root: Path, path: str) -> None:
    with pytest.raises(ValueError):
        open_beneath(root, path)


def test_links_are_not_followed_wherever_they_are(root: Path) -> None:
    (root / "logs" / "link.log").symlink_to(root.parent / "secret")
    (root / "out").symlink_to(root.parent)
    os.link(root.parent / "secret", root / "logs" / "hard.log")
    for path in ("logs/link.log", "out/secret", "logs/hard.log"):
        with pytest.raises(Conflict):
            open_beneath(root, path)


def test_a_fifo_a_socket_and_a_directory_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for path in ("fifo", "socket", "logs"):
            with pytest.raises(Conflict):
                open_beneath(root, path)


def test_a_swap_between_file_and_link_never_shows_the_other_file(root: Path) -> None:
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in (root.parent / "secret", None):
                new = root / "logs" / "new"
                new.unlink(missing_ok=True)
                if target is None:
                    new.write_bytes(b"hello\n")
                else:
                    new.symlink_to(target)
                new.rename(root / "logs" / "driver.log")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(20_000):
            try:
                content, _ = read_beneath(root, "logs/driver.log", offset=0, limit=100)
            except Conflict:
                continue
            assert content in {b"hello\n", b""}
    finally:
        stop.set()
        thread.join()


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "out").symlink_to(root.parent)
    before = len(os.listdir("/proc/self/fd"))
    for path in ("logs/driver.log", "out/secret", "none/x", "logs"):
        try:
            read_beneath(root, path, offset=0, limit=1)
        except (Conflict, FileNotFoundError):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
