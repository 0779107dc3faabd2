"""Keeps the gateway equal to the rows: what is not in them must not be reachable."""

from __future__ import annotations

from collections.abc import Callable

from polyray.core.clock import Clock
from polyray.core.faultpoints import outside
from polyray.core.reconcile import Done
from polyray.core.settings import Settings
from polyray.serving import routes
from polyray.serving.gateway import Gateway
from polyray.store.engine import Store

#: A gateway that was restarted, or lost a map, is right again after so long at most.
RESYNC_SECONDS = 2.0


class RouteController:
    """The reconciler of kind `routes`; its one key is `all`, since maps are applied whole."""

    kind = "routes"

    def __init__(
        self,
        *,
        store: Store,
        gateway: Gateway,
        clock: Clock,
        settings: Settings,
        signing_keys: Callable[[], tuple[tuple[str, str], ...]],
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._settings = settings
        self._signing_keys = signing_keys

    def pending(self) -> list[str]:
        return ["all"]

    def reconcile(self, key: str) -> Done:
        with self._store.read() as session:
            wanted = routes.desired(
                session,
                first_port=self._settings.slice_ports_start,
                signing_keys=self._signing_keys(),
                now_ms=self._clock.now_ms(),
            )
        with outside("gateway.apply"):
            self._gateway.apply(wanted)
        return Done(again_seconds=RESYNC_SECONDS)
