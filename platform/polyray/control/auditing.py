"""Keeps the anchors of the chain of events, and says whether the history is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from polyray.core.clock import Clock
from polyray.core.errors import PolyrayError
from polyray.store import audit, chain
from polyray.store.anchors import Anchor, Anchors
from polyray.store.audit import Audit
from polyray.store.chain import Head
from polyray.store.engine import Store

log = structlog.get_logger(__name__)

ANCHOR_SECONDS = 60.0
#: Between two pages of a walk at the start: requests go first.
PAUSE_SECONDS = 0.01


class Auditor:
    """`leads` tells whether this process may write: the leader alone anchors and tells of what it found.

    Whatever fails in here is told, tried again a minute later, and keeps nothing else.
    """

    def __init__(self, store: Store, anchors: Anchors, clock: Clock, leads: Callable[[], bool]) -> None:
        self._store = store
        self._anchors = anchors
        self._clock = clock
        self._leads = leads
        self._last: Audit | None = None
        #: Why the last anchor could not be written; empty if it was.
        self._failure = ""
        self._anchored = chain.EMPTY
        self._told = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="auditor", daemon=True)

    def begin(self) -> None:
        """Tell, before anything else is written, that the end of the history is lost, if it is.

        Raises:
            Unavailable: if the database or the anchors cannot be read or written.
        """
        newest = self._anchors.newest()  # before the database: what is anchored was committed
        if newest is None:
            return
        with self._store.write() as session:
            lost = audit.tell_of_lost_end(session, newest, now_ms=self._clock.now_ms())
        if lost is not None:
            log.error("history_lost", told=lost)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Anchor what was written last, if this process leads."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self.look()

    def look(self) -> None:
        """Tell of what was found, and anchor what is new. A failure is kept for `said`."""
        if not self._leads():
            return
        try:
            self._tell()
            self._anchor()
        except PolyrayError as error:
            if not self._failure:
                log.warning("not_anchored", error=str(error))
            self._failure = str(error)
        except Exception as error:
            log.exception("audit_failed")
            self._failure = f"a defect of the audit: {type(error).__name__}"
        else:
            self._failure = ""

    def verify(self) -> Audit:
        """Walk the whole chain and hold it against its anchors.

        Raises:
            Unavailable: if the database or the anchors cannot be read.
        """
        found = audit.verify(self._store, self._anchors.read())
        if found.findings and not (self._last and self._last.findings == found.findings):
            log.error("history_not_whole", findings=found.findings)
            self._told = False
        self._last = found
        return found

    def acknowledge(self, by: str) -> Audit:
        """Take it that somebody knows of the gaps there are."""
        gaps = self.verify().open_gaps
        with self._store.write() as session:
            audit.acknowledge(session, gaps, by=by, now_ms=self._clock.now_ms())
        return self.verify()

    def said(self) -> tuple[bool, str]:
        """Return whether all is well, and what there is to say of it."""
        last, told = self._last, [self._failure] if self._failure else []
        if last is not None and not last.ok:
            told += [*last.findings, *(gap.reason for gap in last.open_gaps)]
        if told:
            return False, f"{'; '.join(told[:3])}; see 'polyray audit verify'"
        if last is None:
            return True, "the chain of events is being verified"
        gaps = "".join(f", events {gap.first} to {gap.last} are lost" for gap in last.gaps)
        return True, f"{last.events} events verified{gaps}"

    def _tell(self) -> None:
        if self._told or self._last is None:
            return
        if self._last.findings:
            with self._store.write() as session:
                audit.tell_of_findings(session, self._last.findings, now_ms=self._clock.now_ms())
        self._told = True

    def _anchor(self) -> None:
        with self._store.read() as session:
            newest, agrees = chain.head(session), audit.agrees(session, self._anchored)
        if not agrees:
            newest = self._was_put_back()
        if newest != self._anchored and newest != chain.EMPTY:
            self._anchors.append(Anchor(newest.event_id, newest.chain, self._clock.now_ms()))
            self._anchored = newest

    def _was_put_back(self) -> Head:
        """Tell that the database lost its end while this process ran, as a standby may have; return its head."""
        self.begin()
        self.verify()
        self._tell()
        with self._store.read() as session:
            return chain.head(session)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._last is None:
                self._verify_at_start()
            self.look()
            # The claim to lead is had a moment after the start.
            self._stopping.wait(ANCHOR_SECONDS if self._leads() else 1.0)

    def _verify_at_start(self) -> None:
        try:
            self._last = audit.verify(self._store, self._anchors.read(), pause=self._breathe)
        except PolyrayError as error:
            log.warning("history_not_verified", error=str(error))
            return
        except Exception:
            log.exception("history_not_verified")
            return
        if not self._last.ok:
            log.error("history_not_whole", findings=self._last.findings)

    def _breathe(self) -> None:
        self._stopping.wait(PAUSE_SECONDS)
