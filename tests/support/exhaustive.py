"""Runs a story once, and from each fault point that it passes another history, in a process forked right there.

A forked child *is* the crash: it never returns into what was interrupted, so that no `finally` and no rollback
runs; it goes on with a copy of the files, with the outside world as it was, and with nothing in memory. Nothing
is run again to get to a point, which is what makes trying all of them cheap.

Between two points at which neither the database, nor a file, nor the outside world changed there is but one
crash to try: it is tried once and counted for both.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from polyray.core import faultpoints

#: Set to what a failure's text says, it runs that one history alone.
SETTING = "CRASH_AT"
#: A history that takes longer hangs; the slowest takes a few seconds on a busy machine.
LIMIT_SECONDS = 120
#: Modules that pass points on behalf of their callers.
_SEAMS = ("faultpoints", "contextlib", "polyray.store.engine", "polyray.store.fenced", "support.exhaustive")
#: Histories at once.
_AT_ONCE = max(os.cpu_count() or 1, 2)


class Play(Protocol):
    """What an `Explorer` needs of a story under way."""

    def begin_anew(self) -> None:
        """In a forked child: take the copied files of the working directory for one's own."""

    def moment(self) -> object:
        """Return all that a crash leaves behind: two equal moments have the same future after one."""

    def strike(self) -> bool:
        """Let happen what this exploration is about, and return whether the interrupted frames go on."""

    def strikes_here(self, name: str) -> bool:
        """Return whether it may happen at this point."""

    def play(self) -> None:
        """Play what is left of the story, and assert that it ends as it should."""


@dataclass
class Tally:
    """What was explored."""

    #: Points passed by the story itself, their names, and the functions they were passed in.
    passed: int = 0
    names: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    #: Histories run, by how many crashes there were in them: one, two.
    runs: list[int] = field(default_factory=lambda: [0, 0])
    #: Points of the story at which a crash is the same as one before.
    same: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, told: dict[str, Any]) -> None:
        """Take over what a history saw."""
        self.names |= set(told["names"])
        self.places |= set(told["places"])
        self.runs = [mine + theirs for mine, theirs in zip(self.runs, told["runs"], strict=True)]
        self.failures += told["failures"]

    def as_json(self) -> bytes:
        return json.dumps(asdict(self), default=sorted).encode()


class Explorer:
    """Explores one play. `strides[d]` says that of the moments at depth d only each so-and-so-many-th is tried."""

    def __init__(self, name: str, play: Play, directory: Path, *, strides: tuple[int, ...], seed: int = 0) -> None:
        self.tally = Tally()
        self._play = play
        self._directory = directory
        self._strides = strides
        self._seed = seed
        self._label = name
        self._only = _asked(name)
        self._depth = 0
        self._count = 0
        self._moments = 0
        self._seen: set[object] = set()
        self._watching = False
        #: Where a child's parent reads its report; None in the process that all began with.
        self._report: int | None = None
        self._children: dict[int, tuple[int, str]] = {}
        self._selector = selectors.DefaultSelector()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What is done inside is the control plane's: its points are explored."""
        before, self._watching = self._watching, True
        try:
            yield
        finally:
            self._watching = before

    def explore(self) -> Tally:
        """Play the story to its end, and all other histories beside it."""
        gc.freeze()
        try:
            with faultpoints.striking(self._reached):
                self._play.play()
        except Exception:
            self._fail(traceback.format_exc(limit=-12))
        if self._report is not None:  # a child whose interrupted frames went on
            self._end()
        self._collect(0)
        gc.unfreeze()
        return self.tally

    def _reached(self, name: str) -> None:
        if not self._watching:
            return
        self._count += 1
        if self._depth == 0:
            self.tally.passed += 1
        self.tally.names.add(name)
        self.tally.places.add(f"{name} in {_caller()}")
        if self._depth < len(self._strides) and self._play.strikes_here(name) and self._is_due():
            self._branch(name)

    def _is_due(self) -> bool:
        if self._only is not None:
            return self._depth < len(self._only) and self._count == self._only[self._depth]
        moment = self._play.moment()
        if moment in self._seen:
            self.tally.same += self._depth == 0
            return False
        self._seen.add(moment)
        self._moments += 1
        # Of many only some are taken: others in each history, and the same ones in each run.
        offset = zlib.crc32(f"{self._seed} {self._label}".encode())
        return (self._moments + offset) % self._strides[self._depth] == 0

    def _branch(self, name: str) -> None:
        self._collect(_AT_ONCE - 1 if self._depth == 0 else 0)
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            self._become(theirs, name)
            return
        os.close(theirs)
        os.read(ours, 1)  # its copy of the files is made
        self._children[ours] = (pid, f"{self._label}:{self._count} ({name})")
        self._selector.register(ours, selectors.EVENT_READ)
        if self._depth:
            self._collect(0)

    def _become(self, report: int, name: str) -> None:
        """Be another history: one that crashes here never returns from this."""
        gc.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_SECONDS)
        self._report, self._children, self._selector = report, {}, selectors.DefaultSelector()
        self._label += f":{self._count}"
        self._depth, self._count, self._moments, self._seen = self._depth + 1, 0, 0, set()
        self._watching = False
        self.tally = Tally()
        self.tally.runs[self._depth - 1] = 1
        try:
            home = Path(tempfile.mkdtemp(dir=self._directory))
            shutil.copytree(".", home, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-shm"))
            os.chdir(home)
            os.write(report, b".")
            self._play.begin_anew()
            if self._play.strike():
                self._watching = True
                return
            self._play.play()
        except BaseException:
            self._fail(f"struck at {name}\n{traceback.format_exc(limit=-12)}")
        self._end()

    def _fail(self, told: str) -> None:
        file = "tests/faults/test_a_crash_at_every_point.py"
        self.tally.failures.append(f"POLYRAY_SEED={self._seed} {SETTING}={self._label} pytest {file}\n{told}")

    def _end(self) -> None:
        self._collect(0)
        assert self._report is not None
        told = memoryview(self.tally.as_json())
        while told:
            told = told[os.write(self._report, told) :]
        shutil.rmtree(os.getcwd(), ignore_errors=True)
        os._exit(0)

    def _collect(self, most: int) -> None:
        """Wait until at most so many histories are under way, and take over what the others told."""
        while len(self._children) > most:
            for key, _ in self._selector.select():
                descriptor = key.fd
                self._selector.unregister(descriptor)
                pid, label = self._children.pop(descriptor)
                with os.fdopen(descriptor, "rb") as pipe:
                    told = pipe.read().lstrip(b".")
                _, status = os.waitpid(pid, 0)
                if told:
                    self.tally.add(json.loads(told))
                else:
                    self.tally.failures.append(f"{label}: the history died ({os.waitstatus_to_exitcode(status)})")


def _asked(name: str) -> tuple[int, ...] | None:
    """Return the points that `CRASH_AT` names of this story, () if it names another; None if it is not set."""
    told = os.environ.get(SETTING, "")
    if not told:
        return None
    story, *points = told.split(":")
    return tuple(int(point) for point in points) if story == name else ()


def _caller() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].endswith(_SEAMS):
        frame = frame.f_back
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
