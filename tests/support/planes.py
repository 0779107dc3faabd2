"""Several control planes on one store, core and cloud: each a process's worth of memory on the world's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from polyray.control.leadership import KEY, Leadership
from polyray.core.errors import Conflict, PolyrayError
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from support.world import World

#: The calls to the core that change it.
EFFECTS = ("grant", "release", "start_slice", "start_driver", "stop_driver")


class ControlPlane(World):
    """A control plane on another world's outside, with connections of its own. It acts while it leads."""

    def __init__(self, world: World) -> None:
        self.clock, self.settings, self.platform = world.clock, world.settings, world.platform
        self.fabric, self.cloud, self.gateway = world.fabric, world.cloud, world.gateway
        self.healthy = True
        self.database = Store(world.settings.store_url)
        self.leadership = Leadership(self.database, self.clock)
        self.store = FencedStore(self.database, KEY, self.leadership.epoch)
        self.restart()

    def round(self) -> None:
        """Renew the claim as the thread of a real one does, and look at everything once if it is held."""
        try:
            self.leadership.renew()
        except PolyrayError:
            pass
        if self.leadership.held():
            super().round()

    def close(self) -> None:
        self.database.close()


class Pauses:
    """Runs `meanwhile` right before the k-th effect of a control plane: it was stopped there, and wakes after it."""

    def __init__(self, plane: ControlPlane, k: int, meanwhile: Callable[[], None]) -> None:
        self._left = k
        self._meanwhile = meanwhile
        self.woke = False
        #: Whether the write that it slept before was refused when it woke; None if it slept before a call to the core.
        self.refused: bool | None = None
        write, fabric = plane.store.write, plane.fabric

        @contextmanager
        def paused() -> Iterator[Session]:
            if self._reached():
                self.refused = False
                try:
                    with write():
                        pass
                except Conflict:
                    self.refused = True
            with write() as session:
                yield session

        plane.store.write = paused  # type: ignore[method-assign]
        plane.fabric = _PausedFabric(fabric, self._reached)  # type: ignore[assignment]
        plane.restart()

    def _reached(self) -> bool:
        """Count an effect, and return whether this is the one that it slept before."""
        self._left -= 1
        if self._left == 0:
            self._meanwhile()
            self.woke = True
        return self._left == 0


class _PausedFabric:
    def __init__(self, fabric: Any, reached: Callable[[], bool]) -> None:
        self._fabric = fabric
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._fabric, name)
        if name not in EFFECTS:
            return call

        def counted(*arguments: Any, **named: Any) -> Any:
            self._reached()
            return call(*arguments, **named)

        return counted
