"""The store as whoever holds a claim may write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from polyray.core.errors import Conflict
from polyray.store import claims
from polyray.store.engine import Store


class FencedStore(Store):
    """Reads as `store` does; writes only while `epoch()` is the newest epoch of the claim on `key`.

    The epoch is checked inside each write transaction, so a holder that was paused in the middle of anything
    writes nothing once it has been succeeded. It shares the connections of `store`.
    """

    def __init__(self, store: Store, key: str, epoch: Callable[[], int | None]) -> None:
        self.engine = store.engine
        self._sessions = store._sessions
        self._writing = store._writing
        self._key = key
        self._epoch = epoch

    @contextmanager
    def write(self) -> Iterator[Session]:
        """The one writer, if it holds the claim.

        Raises:
            Conflict: if it does not, or not any more.
            Unavailable: as `Store.write`.
        """
        with super().write() as session:
            epoch = self._epoch()
            if epoch is None:
                hint = "nothing was written; the one that leads goes on"
                raise Conflict(f"this control plane does not hold the claim {self._key}", hint=hint)
            claims.require(session, self._key, epoch)
            yield session
