"""Holding the claim to act, while the process lives and the store answers."""

from __future__ import annotations

import os
import threading

import structlog

from polyray.core.clock import Clock
from polyray.core.errors import PolyrayError, Unavailable
from polyray.core.ids import new_id
from polyray.core.owners import machine as _machine
from polyray.store import claims
from polyray.store.engine import Store

log = structlog.get_logger(__name__)

KEY = "leader"
TTL_SECONDS = 15.0
RENEW_SECONDS = 4.0


class Leadership:
    """Takes and renews the claim `leader` in a thread of its own; whoever holds it runs the reconcilers.

    A successor on the same machine need not wait for a dead predecessor's claim: the owner's name holds
    its pid and start, and the claim of an owner that is seen to be dead is taken at once. Another machine's
    claim that is not renewed for as long as it lasts is taken too, whatever that machine's clock says.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._owner = f"{_machine()}/{os.getpid()}/{new_id('request')}"
        self._epoch: int | None = None
        self._held_until = float("-inf")
        #: The last claim of another that was seen, and since when it has not changed (monotonic seconds).
        self._seen: tuple[claims.Held, float] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def held(self) -> bool:
        """Return whether this process leads: false as soon as the claim may have passed to another."""
        return self._epoch is not None and self._clock.monotonic() < self._held_until

    def epoch(self) -> int | None:
        """Return the fencing number under which to write."""
        return self._epoch

    def give_up(self) -> None:
        """Stop renewing, and let a successor have the claim at once."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._held_until = float("-inf")
        try:
            with self._store.write() as session:
                claims.release(session, KEY, self._owner, now_ms=self._clock.now_ms())
        except Unavailable as error:
            log.warning("claim_left_to_expire", error=str(error))

    def renew(self) -> None:
        asked = self._clock.monotonic()
        with self._store.write() as session:
            now_ms = self._clock.now_ms()
            held = claims.held(session, KEY)
            if held is not None and held.owner != self._owner and (_dead_here(held.owner) or self._is_stale(held)):
                claims.release(session, KEY, held.owner, now_ms=now_ms)
            epoch = claims.take(session, KEY, self._owner, now_ms=now_ms, ttl_ms=round(TTL_SECONDS * 1000))
        if epoch != self._epoch:
            log.info("leadership", leads=epoch is not None, epoch=epoch)
        self._epoch = epoch
        self._held_until = asked + TTL_SECONDS if epoch is not None else float("-inf")

    def _is_stale(self, held: claims.Held) -> bool:
        """Return whether another's claim has not been renewed while this process watched it for its whole life."""
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != held:
            self._seen = (held, now)
        return now - self._seen[1] > TTL_SECONDS

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.renew()
            except PolyrayError as error:
                log.warning("claim_not_renewed", error=str(error))
            self._stopping.wait(RENEW_SECONDS if self.held() else 1.0)


def _dead_here(owner: str) -> bool:
    """Return whether `owner` was a process of this machine that is no more."""
    host, _, rest = owner.partition("/")
    pid = rest.partition("/")[0]
    if host != _machine() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
