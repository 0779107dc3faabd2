"""Calls to the outside that arrive late, or twice. Those that never arrive, or whose answer is lost, fail at points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyray.core.errors import PolyrayError, Unavailable

#: Verb -> what changes something outside: by whom it is offered.
FABRIC = ("grant", "release", "start_slice", "start_driver", "stop_driver", "kill_slice")
CLOUD = ("launch", "terminate")
GATEWAY = ("apply",)

#: Return how a call fares: "late", "twice", or "" for well.
Fate = Callable[[], str]
#: Have a call made some time later, whatever became of its caller.
Later = Callable[[str, Callable[[], object]], None]


class Wire:
    """One control plane's way to a part of the outside."""

    def __init__(self, target: Any, verbs: tuple[str, ...], fate: Fate, later: Later) -> None:
        self._target, self._verbs = target, verbs
        self._fate, self._later = fate, later

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._target, name)
        if name not in self._verbs:
            return call

        def sent(*arguments: Any, **named: Any) -> Any:
            def arrives() -> None:
                try:
                    call(*arguments, **named)
                except PolyrayError:
                    pass

            fate = self._fate()
            if fate:
                self._later(f"{name} {fate}", arrives)
            if fate == "late":
                raise Unavailable(f"no answer to {name}")
            return call(*arguments, **named)

        return sent
