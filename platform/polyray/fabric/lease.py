"""What a lease does with its slice: start, watch, replace, end. Knows nothing of the core that holds it."""

from __future__ import annotations

import fcntl
import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from polyray.core.errors import Conflict, PolyrayError
from polyray.tenants.sandbox import RunningSlice, Sandbox
from polyray.tenants.slices import Address, DriverSpec, DriverStatus, SliceSpec, SliceState, SliceStatus

log = structlog.get_logger(__name__)

#: A start that is not ready by then is ended; Ray itself gives up after 30 s, or after 16 s without its agent.
START_LIMIT_SECONDS = 60.0
START_ATTEMPTS = 2
_POLL_SECONDS = 0.1


class Lease:
    """One lease's slice. Calls return at once; one thread of its own, as long-lived as the lease, does the work."""

    def __init__(
        self,
        lease_id: str,
        cluster_id: str,
        node_id: str,
        epoch: int,
        sandbox: Sandbox,
        *,
        starts_dir: Path,
        concurrent_starts: int,
        answers: Callable[[Address], bool] | None = None,
    ) -> None:
        self._answers = answers or agent_answers
        self._lease_id, self._cluster_id, self._node_id, self._epoch = lease_id, cluster_id, node_id, epoch
        self._sandbox, self._starts_dir, self._concurrent_starts = sandbox, starts_dir, concurrent_starts
        self._changed = threading.Condition()
        self._spec: SliceSpec | None = None
        self._generation = 0
        self._state, self._detail = SliceState.EMPTY, ""
        self._slice: RunningSlice | None = None
        #: Of `_slice`; an older one is on its way out and tells nothing any more.
        self._slice_generation = 0
        self._driver: DriverStatus | None = None
        #: Why the present slice must end, if it must.
        self._kill_reason = ""
        self._ending = False
        self.ended = threading.Event()
        # The parent-death signals of slices are tied to this thread.
        threading.Thread(target=self._run, name=f"lease-{lease_id}", daemon=True).start()

    def start_slice(self, spec: SliceSpec) -> None:
        with self._changed:
            if spec.epoch != self._epoch:
                raise Conflict(f"lease {self._lease_id} has epoch {self._epoch}, not {spec.epoch}")
            if self._ending:
                raise Conflict(f"lease {self._lease_id} is ending")
            if spec.generation <= self._generation:
                return
            self._spec, self._generation, self._kill_reason = spec, spec.generation, ""
            self._state, self._detail, self._driver = SliceState.STARTING, "", None
            self._changed.notify()

    def kill_slice(self, reason: str = "killed") -> None:
        with self._changed:
            if self._state in {SliceState.STARTING, SliceState.READY}:
                self._kill_reason = reason
                if self._slice is not None:
                    self._slice.kill(reason)

    def end(self) -> None:
        """End the slice for good; `ended` is set when nothing is left of it."""
        with self._changed:
            self._ending = True
            self._kill_reason = "released"
            if self._slice is not None:
                self._slice.kill("released")
            self._changed.notify()

    def start_driver(self, spec: DriverSpec) -> None:
        with self._changed:
            if self._driver is not None and self._driver.driver_id == spec.driver_id:
                return
            self._refresh()
            if self._state is not SliceState.READY or self._slice is None:
                raise Conflict(
                    f"the slice of lease {self._lease_id} is {self._state}", hint="start it when it is ready"
                )
            if self._driver is not None and self._driver.running:
                raise Conflict(f"lease {self._lease_id} runs driver {self._driver.driver_id}", hint="stop it first")
            self._slice.start_driver(spec)
            self._refresh()

    def stop_driver(self, driver_id: str, grace_seconds: float) -> None:
        with self._changed:
            if self._slice is not None:
                self._slice.stop_driver(driver_id, grace_seconds)

    def status(self) -> SliceStatus:
        with self._changed:
            memory_bytes = self._refresh()
            return SliceStatus(
                lease_id=self._lease_id,
                cluster_id=self._cluster_id,
                node_id=self._node_id,
                epoch=self._epoch,
                generation=self._generation,
                state=self._state,
                detail=self._detail,
                driver=self._driver,
                memory_bytes=memory_bytes,
            )

    def _refresh(self) -> int:
        """Take over what the slice shows and return the memory it holds, in bytes."""
        if self._slice is None or self._slice_generation != self._generation:
            return 0
        probe = self._slice.probe()
        self._driver = probe.driver
        if probe.gone and self._state is SliceState.READY:
            self._state, self._detail = SliceState.EXITED, probe.detail
        return probe.memory_bytes

    # The thread.

    def _run(self) -> None:
        done = 0
        while True:
            with self._changed:
                while self._generation == done and not self._ending:
                    self._changed.wait()
                spec, ending, running = self._spec, self._ending, self._slice
            if running is not None:
                running.kill("replaced by a newer generation")
                _wait_gone(running)
                with self._changed:
                    self._slice = None
            if ending:
                with self._changed:
                    self._state, self._detail = SliceState.EXITED, self._detail or "released"
                self.ended.set()
                return
            assert spec is not None
            done = spec.generation
            self._start(spec)

    def _start(self, spec: SliceSpec) -> None:
        with self._start_slot(spec):
            for attempt in range(1, START_ATTEMPTS + 1):
                if self._unwanted(spec):
                    break
                if self._attempt(spec):
                    return
                log.warning("slice_start_failed", lease=self._lease_id, attempt=attempt, detail=self._detail)
                if "port_in_use" in self._detail or self._kill_reason:
                    break
        with self._changed:
            if self._generation == spec.generation:
                self._state = SliceState.EXITED
                self._detail = self._kill_reason or self._detail

    def _attempt(self, spec: SliceSpec) -> bool:
        """Start once and wait until ready; on failure leave nothing behind and the reason in `_detail`."""
        began = time.monotonic()
        try:
            running = self._sandbox.start(spec)
        except (PolyrayError, OSError) as error:
            self._tell(spec, str(error))
            return False
        with self._changed:
            self._slice, self._slice_generation = running, spec.generation
        while not (probe := running.probe()).gone and not self._unwanted(spec):
            if probe.runtime_started and self._answers(spec.address):
                with self._changed:
                    if self._generation == spec.generation and not self._kill_reason:
                        self._state = SliceState.READY
                log.info("slice_ready", lease=self._lease_id, seconds=round(time.monotonic() - began, 1))
                return True
            if time.monotonic() - began > START_LIMIT_SECONDS:
                running.kill(f"not ready in {START_LIMIT_SECONDS:.0f} s")
                break
            time.sleep(_POLL_SECONDS)
        running.kill("not wanted any more")
        _wait_gone(running)
        self._tell(spec, running.probe().detail)
        with self._changed:
            self._slice = None
        return False

    def _tell(self, spec: SliceSpec, detail: str) -> None:
        with self._changed:
            if self._generation == spec.generation:
                self._detail = detail

    def _unwanted(self, spec: SliceSpec) -> bool:
        with self._changed:
            return self._ending or bool(self._kill_reason) or self._generation != spec.generation

    @contextmanager
    def _start_slot(self, spec: SliceSpec) -> Iterator[None]:
        """Hold one of the machine's few places for starting: a start is bound by the CPU, and a starved one fails.

        The places are locked files, so that a holder that dies gives its place back.
        """
        self._starts_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = [
            os.open(self._starts_dir / str(n), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            for n in range(self._concurrent_starts)
        ]
        try:
            while not self._unwanted(spec) and not any(_locked(file) for file in files):
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            for file in files:
                os.close(file)


def agent_answers(address: Address) -> bool:
    """Return whether the node's agent says that its raylet is well: connecting earlier gave errors."""
    connection = http.client.HTTPConnection(address.ip, address.agent_port, timeout=1.0)
    try:
        connection.request("GET", "/api/local_raylet_healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_gone(running: RunningSlice) -> None:
    while not running.probe().gone:
        time.sleep(0.05)
