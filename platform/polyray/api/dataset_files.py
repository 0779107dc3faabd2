"""A dataset version on disk: its manifest, and its files by name as links to blobs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from polyray.core.arrivals import arriving
from polyray.core.durable import sync_directory
from polyray.core.faultpoints import outside
from polyray.core.layout import Layout
from polyray.data.manifest import Manifest


def prepare(layout: Layout, tenant: str, manifest: Manifest) -> Path:
    """Return a directory of a version to come, whole, beside its place."""
    directory = arriving(layout.dataset(tenant, manifest.name, 1).parent)
    files = directory / "files"
    files.mkdir(mode=0o755)
    for file in manifest.files:
        # A hard link: readable where only this directory is mounted, and nothing to follow.
        os.link(layout.blob(tenant, file.sha256), files / file.name)
    with (directory / "manifest.json").open("wb") as out:
        out.write(manifest.canonical())
        out.flush()
        os.fsync(out.fileno())
    directory.chmod(0o755)
    sync_directory(files)
    sync_directory(directory)
    return directory


def place(layout: Layout, tenant: str, name: str, version: int, prepared: Path) -> None:
    """Move a prepared version into its place; what a crash left there is no row's and goes."""
    place_ = layout.dataset(tenant, name, version)
    with outside("file.dataset"):
        shutil.rmtree(place_, ignore_errors=True)
        prepared.rename(place_)
        sync_directory(place_.parent)
