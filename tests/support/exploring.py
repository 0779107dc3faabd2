"""Explores one story in a process of its own: `python -m support.exploring STORY DIRECTORY SEED STRIDE...`.

A process that has had threads, or libraries with fork handlers of their own (gRPC), is no place to fork histories
from: this one has neither. `STORY-stopped` explores the stops that may come to STORY. The tally is JSON on standard
output.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from support.exhaustive import Explorer, Tally

_STOPPED = "-stopped"


def explored(directory: Path, name: str, seed: int, *strides: int) -> Tally:
    """Explore a story from the empty `directory` in a new process, and return what was found.

    Raises:
        RuntimeError: with what it said, if the process did not end well.
    """
    arguments = [name, str(directory), str(seed), *map(str, strides)]
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "support.exploring", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exploring {name} ended with {done.returncode}:\n{done.stderr[-8000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return Tally(**{**told, "names": set(told["names"]), "places": set(told["places"])})


def main(name: str, directory: Path, seed: int, strides: tuple[int, ...]) -> None:
    import structlog

    from polyray.core import ids
    from support.stage import Stage
    from support.stopping import StopOnStage
    from support.stories import STORIES

    ids.secrets = SimpleNamespace(choice=random.Random(seed).choice)  # type: ignore[assignment, attr-defined]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for part in ("golden", "forked"):
        (directory / part).mkdir()
    os.chdir(directory / "golden")
    (story,) = (story for story in STORIES if story.name == name.removesuffix(_STOPPED))
    stage = StopOnStage(story, "job") if name.endswith(_STOPPED) else Stage(story)
    explorer = Explorer(name, stage, directory / "forked", strides=strides, seed=seed)
    stage.watching = explorer.watching
    sys.stdout.buffer.write(explorer.explore().as_json() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), tuple(map(int, sys.argv[4:])))
