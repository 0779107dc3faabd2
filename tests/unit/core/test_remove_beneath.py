from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from polyray.core.beneath import list_beneath, remove_beneath
from polyray.core.errors import Conflict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store's root with one run, and a precious file beside it."""
    (tmp_path / "root" / "runs" / "job" / "logs").mkdir(parents=True)
    (tmp_path / "root" / "runs" / "job" / "logs" / "driver.log").write_bytes(b"hello\n")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"precious")
    return tmp_path / "root"


def precious_is_there(root: Path) -> bool:
    return (root.parent / "precious" / "file").read_bytes() == b"precious"


def test_a_directory_goes_with_all_in_it_and_again_is_no_error(root: Path) -> None:
    remove_beneath(root, "runs/job")
    assert list((root / "runs").iterdir()) == []
    remove_beneath(root, "runs/job")
    remove_beneath(root, "none/job")


def test_links_go_and_what_they_name_stays(root: Path) -> None:
    run = root / "runs" / "job"
    (run / "link").symlink_to(root.parent / "precious")
    (run / "file-link").symlink_to(root.parent / "precious" / "file")
    (run / "broken").symlink_to("nowhere")
    (run / "loop").symlink_to("loop")
    os.link(root.parent / "precious" / "file", run / "hard")
    os.mkfifo(run / "fifo")
    remove_beneath(root, "runs/job")
    assert not run.exists()
    assert precious_is_there(root)


@pytest.mark.parametrize("place", ["runs/job", "runs"])
def test_a_link_in_place_of_the_directory_or_of_one_above_is_refused(root: Path, place: str) -> None:
    (root / place).rename(root / "away")
    target = root.parent / "precious"
    (target / "job").mkdir()
    (root / place).symlink_to(target)
    with pytest.raises(Conflict):
        remove_beneath(root, "runs/job")
    assert precious_is_there(root)
    assert (target / "job").exists()


def test_a_file_in_place_of_the_directory_is_refused(root: Path) -> None:
    (root / "runs" / "file").write_bytes(b"")
    with pytest.raises(Conflict):
        remove_beneath(root, "runs/file")


def test_depth_costs_nothing_and_modes_do_not_matter(root: Path) -> None:
    directory = os.open(root / "runs" / "job", os.O_RDONLY)
    for _ in range(3000):  # deeper than any path may be long
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    closed = root / "runs" / "job" / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner" / "file").write_bytes(b"x")
    (closed / "inner").chmod(0o000)
    closed.chmod(0o500)
    remove_beneath(root, "runs/job")
    assert not (root / "runs" / "job").exists()


@pytest.mark.parametrize("call", ["unlink", "rmdir", "rename"])
def test_what_another_removes_meanwhile_keeps_nothing_else_from_going(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run = root / "runs" / "job"
    (run / "logs" / "deep" / "deeper").mkdir(parents=True)
    (run / "a").write_bytes(b"a")
    does, times = getattr(os, call), []

    def overtaken(name: str, *given: Any, **named: Any) -> None:
        does(name, *given, **named)
        times.append(name)
        if len(times) == 1 and name != "job":
            raise FileNotFoundError(name)

    monkeypatch.setattr(os, call, overtaken)
    remove_beneath(root, "runs/job")
    assert times
    assert not run.exists()


@pytest.mark.parametrize("path", ["", "/runs", "../precious", "runs/../..", "runs//job"])
def test_what_is_no_path_beneath_the_root_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ValueError, match="path beneath"):
        remove_beneath(root, path)
    assert precious_is_there(root)


def test_a_listing_has_sizes_and_shows_links_as_themselves(root: Path) -> None:
    (root / "runs" / "job" / "logs" / "link").symlink_to(root.parent / "precious" / "file")
    assert dict(list_beneath(root, "runs/job/logs")) == {
        "driver.log": 6,
        "link": len(str(root.parent / "precious/file")),
    }
    with pytest.raises(FileNotFoundError):
        list_beneath(root, "runs/none")
    with pytest.raises(Conflict):
        list_beneath(root, "runs/job/logs/link")
