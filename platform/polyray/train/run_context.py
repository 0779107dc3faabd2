"""Where a program runs: its run directory, attempt and rank, from the environment that the platform sets."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from polyray.core.errors import Invalid


@dataclass(frozen=True)
class Context:
    run_dir: Path
    workload_id: str
    tenant: str
    #: 1 for the first attempt.
    attempt: int
    #: How many workers the workload was granted.
    workers: int

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def artifacts(self) -> Path:
        return self.run_dir / "artifacts"


def context() -> Context:
    """Return this run's context.

    Raises:
        Invalid: outside a run, with what to set to try a program by hand.
    """
    run_dir = os.environ.get("POLYRAY_RUN_DIR")
    if not run_dir:
        raise Invalid(
            "this program does not run as a workload",
            field="POLYRAY_RUN_DIR",
            hint="submit it with 'polyray job submit', or set POLYRAY_RUN_DIR to a directory to try it by hand",
        )
    return Context(
        run_dir=Path(run_dir),
        workload_id=os.environ.get("POLYRAY_WORKLOAD_ID", "by-hand"),
        tenant=os.environ.get("POLYRAY_TENANT", ""),
        attempt=_whole("POLYRAY_ATTEMPT"),
        workers=_whole("POLYRAY_WORKERS"),
    )


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: of Ray Train, else of `torch.distributed`, else (0, 1)."""
    if (train := sys.modules.get("ray.train")) is not None:
        try:
            ray_context = train.get_context()
            return int(ray_context.get_world_rank()), int(ray_context.get_world_size())
        except RuntimeError:  # imported, but this is the driver or another process
            pass
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1


def _whole(name: str) -> int:
    text = os.environ.get(name, "1")
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"{text!r} is not a whole number from 1", field=name)
    return int(text)
