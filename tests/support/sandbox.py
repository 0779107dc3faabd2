"""Slices that are only pretended, and fail as told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from polyray.core.errors import Unavailable
from polyray.tenants.sandbox import Grade, Probe
from polyray.tenants.slices import DriverSpec, DriverStatus, SliceSpec


@dataclass
class FakeSlice:
    spec: SliceSpec
    runtime_started: bool = True
    gone: bool = False
    detail: str = ""
    driver: DriverStatus | None = None

    def probe(self) -> Probe:
        return Probe(self.runtime_started, self.gone, self.detail, self.driver, memory_bytes=0 if self.gone else 1000)

    def start_driver(self, spec: DriverSpec) -> None:
        self.driver = DriverStatus(driver_id=spec.driver_id, running=True)

    def stop_driver(self, driver_id: str, grace_seconds: float) -> None:
        self.driver = DriverStatus(driver_id=driver_id, running=False, exit_code=-15)

    def kill(self, reason: str) -> None:
        if not self.gone:
            self.gone, self.detail = True, reason

    def exit(self, detail: str) -> None:
        self.gone, self.detail = True, detail


@dataclass
class FakeSandbox:
    """`failures` are taken one a start: the slice is gone at once with this detail, or `port_in_use` refuses it."""

    failures: list[str] = field(default_factory=list)
    #: Slices that never say that their runtime started.
    hang: bool = False
    started: list[FakeSlice] = field(default_factory=list)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    @property
    def grade(self) -> Grade:
        return Grade.PROCESS

    def grade_notes(self) -> list[str]:
        return ["Nothing runs here."]

    def start(self, spec: SliceSpec) -> FakeSlice:
        with self._mutex:
            failure = self.failures.pop(0) if self.failures else ""
            if failure.startswith("port_in_use"):
                raise Unavailable(failure)
            slice_ = FakeSlice(spec, runtime_started=not self.hang)
            if failure:
                slice_.exit(failure)
            self.started.append(slice_)
            return slice_
