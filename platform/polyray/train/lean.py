"""Ray Train without the actors that a job's own cluster has no use for: 120 MB and 1-2 CPU-seconds each.

There are two. The placement-group cleaner minds groups that outlive their trainer, but here the cluster ends
with it (and without a dashboard the cleaner dies with a traceback in the job's log). The dataset manager
splits Ray Datasets, of which there are none unless the trainer was given some.
"""

from __future__ import annotations

from typing import Any

_NAME = "_create_default_callbacks"


def start_fewer_actors() -> None:
    """Make trainers of this process leave those callbacks out; safe to call twice."""
    from ray.train.v2._internal.callbacks import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    stock = getattr(DataParallelTrainer, _NAME)
    if getattr(stock, "polyray", False):
        return

    def create(self: Any) -> list[Any]:
        unneeded = (PlacementGroupCleanerCallback, *(() if self.datasets else (DatasetsCallback,)))
        return [callback for callback in stock(self) if not isinstance(callback, unneeded)]

    create.polyray = True  # type: ignore[attr-defined]
    setattr(DataParallelTrainer, _NAME, create)
