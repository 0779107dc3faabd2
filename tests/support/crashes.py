"""Dying at a chosen moment: right after a write was committed, or after a call to the core or the cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from support.world import World

OUTSIDE = {
    "fabric": ("grant", "release", "start_slice", "start_driver", "stop_driver"),
    "cloud": ("launch", "terminate"),
}


class Crash(BaseException):
    """The process is no more: nothing catches this but the test."""


class Crashes:
    """Counts a world's effects, and dies right after the one that `after` counts down to."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self.after: int | None = None
        for part, verbs in OUTSIDE.items():
            for verb in verbs:
                setattr(getattr(world, part), verb, self._counted(getattr(getattr(world, part), verb)))
        write = world.store.write

        @contextmanager
        def counted() -> Iterator[Session]:
            with write() as session:
                yield session
            self._reached()

        world.store.write = counted  # type: ignore[method-assign]

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            answer = call(*arguments)
            self._reached()
            return answer

        return counted

    def _reached(self) -> None:
        self.count += 1
        if self.after is not None:
            self.after -= 1
            if self.after <= 0:
                self.after = None
                raise Crash
