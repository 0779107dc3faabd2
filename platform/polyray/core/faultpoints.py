"""Named points at which a fault may strike: around each commit, each call to the outside, each file put in place.

In a platform that serves nobody looks at them, and passing one costs a comparison. A test installs what
happens there (`striking`); a process of its own is told by its environment:

    POLYRAY_FAULT="fabric.grant.after@2=exit"   end like kill -9 when that point is passed for the second time
    POLYRAY_FAULT="store.commit.before=fail"    raise `Unavailable`, the first time
    POLYRAY_FAULT="gateway.command.before@3=pause"   stop as by SIGSTOP
    POLYRAY_FAULT="record=PATH"                 append the name of every point passed to a file
    POLYRAY_FAULT="file=PATH"                   do what that file says (such as fabric.grant.after=exit), whenever
                                                there is one; it is taken away at the stroke, which so comes once

A point is `AREA.VERB.before` or `AREA.VERB.after`; `after` means that the effect is there and nobody knows yet.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polyray.core.errors import Invalid, Unavailable

SETTING = "POLYRAY_FAULT"
#: How a process ends that was killed with -9, as its parent sees it in a shell.
KILLED = 137

Strike = Callable[[str], None]
_FAULT = re.compile(r"(?P<name>[a-z_]+(\.[a-z_]+)*)(@(?P<nth>[1-9][0-9]{0,8}))?=(?P<mode>exit|fail|pause)")
_strike: Strike | None = None


def reach(name: str) -> None:
    """Pass a point."""
    if _strike is not None:
        _strike(name)


@contextmanager
def outside(effect: str) -> Iterator[None]:
    """Surround an effect that no transaction undoes: points `EFFECT.before`, and `EFFECT.after` if it succeeded."""
    reach(f"{effect}.before")
    yield
    reach(f"{effect}.after")


@contextmanager
def striking(strike: Strike) -> Iterator[None]:
    """Call `strike` with the name of each point that this process passes meanwhile, in any thread."""
    global _strike
    before, _strike = _strike, strike
    try:
        yield
    finally:
        _strike = before


def arm(environment: Mapping[str, str] = os.environ) -> None:
    """Let a process strike itself as its environment says; without `POLYRAY_FAULT` nothing is armed.

    Raises:
        Invalid: if the setting cannot be read.
    """
    global _strike
    told = environment.get(SETTING, "")
    if told.startswith("record="):
        _strike = _recorder(Path(told.removeprefix("record=")))
    elif told.startswith("file="):
        _strike = _Asked(Path(told.removeprefix("file=")))
    elif told:
        _strike = _Countdown.parse(told)


@dataclass
class _Countdown:
    """Strikes once, when the point called `name` is passed for the `left`-th time."""

    name: str
    left: int
    mode: str
    _lock: threading.Lock
    #: Where it was asked for, if in a file.
    asked_in: Path | None = None

    @classmethod
    def parse(cls, told: str, asked_in: Path | None = None) -> _Countdown:
        if (match := _FAULT.fullmatch(told)) is None:
            raise Invalid(
                "it is no fault", field=SETTING, hint="such as fabric.grant.after@2=exit; exit, fail or pause"
            )
        return cls(match["name"], int(match["nth"] or 1), match["mode"], threading.Lock(), asked_in)

    def __call__(self, name: str) -> None:
        if name != self.name:
            return
        with self._lock:
            self.left -= 1
            strikes = self.left == 0
            if strikes and self.asked_in is not None:
                self.asked_in.unlink(missing_ok=True)
        if not strikes:
            return
        match self.mode:
            case "exit":
                os._exit(KILLED)
            case "pause":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                raise Unavailable(f"a fault strikes at {name}", hint=f"{SETTING} asked for it")


class _Asked:
    """Strikes as a file asks for the time being. A process that is started in a struck one's place is spared."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""
        self._fault: _Countdown | None = None
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            try:
                told = self._path.read_text().strip()
            except FileNotFoundError:
                told = ""
            if told != self._told:
                self._fault = _Countdown.parse(told, self._path) if told else None
                self._told = told
            fault = self._fault
        if fault is not None:
            fault(name)


def _recorder(path: Path) -> Strike:
    # One short write to a file opened for appending is whole, whichever thread or process makes it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def record(name: str) -> None:
        os.write(descriptor, f"{name}\n".encode())

    return record
