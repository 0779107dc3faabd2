"""The seam to whatever holds a slice in: from a plain process to namespaces and a network of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from polyray.tenants.slices import DriverSpec, DriverStatus, SliceSpec


class Grade(StrEnum):
    """How well slices are kept apart, weakest first."""

    PROCESS = "process"
    SANDBOX = "sandbox"
    NETWORK = "network"


@dataclass(frozen=True)
class Probe:
    """What is seen of a slice right now. Taking one never blocks."""

    #: Ray said that it started; its agent may still be on its way.
    runtime_started: bool
    #: Nothing is left of it: no process, no directory.
    gone: bool
    #: Why it ended, in one line; empty while it lives.
    detail: str
    driver: DriverStatus | None
    #: Proportional resident memory of all its processes.
    memory_bytes: int


class RunningSlice(Protocol):
    """One started slice. No method blocks."""

    def probe(self) -> Probe: ...

    def start_driver(self, spec: DriverSpec) -> None:
        """Run a program beside the head. A driver that was started already is left alone."""

    def stop_driver(self, driver_id: str, grace_seconds: float) -> None: ...

    def kill(self, reason: str) -> None:
        """End every process of it with -9; `gone` tells when."""


class Sandbox(Protocol):
    @property
    def grade(self) -> Grade: ...

    def grade_notes(self) -> list[str]:
        """Return what this grade does not keep apart here, as sentences for the operator."""

    def start(self, spec: SliceSpec) -> RunningSlice:
        """Start a slice. The calling thread must outlive it: a parent-death signal is tied to the thread.

        Raises:
            Invalid: if it could never start (its socket paths are too long).
            Unavailable: if it cannot now: a port of its block is in use (`port_in_use`).
        """
