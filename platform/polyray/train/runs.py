"""Ray Train, set up for a run of the platform.

A run's checkpoints live in its run directory under the workload's id, so that a later attempt, on another
cluster, finds them and goes on: Ray Train restores a run that has the same name and storage path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from polyray.core.errors import Invalid
from polyray.core.run_file import RUN_FILE
from polyray.data.reader import Form, Stream, stream
from polyray.data.sampler import Tail
from polyray.train.lean import start_fewer_actors
from polyray.train.run_context import context, rank_and_world_size

#: Ray Train's own settings, where the user has not chosen. It reads them when `fit()` is called.
_SETTINGS = {
    # `report()` returns and a dead worker is seen after one such interval; 2 s by default.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Importing torch on a busy machine can take longer than the 60 s that are the default.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180",
    # An actor that polls for drained nodes: the platform ends slices, it does not drain them.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # It prints every line of a worker twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


def run_config(*, max_failures: int = 3, keep_checkpoints: int = 2, **more: Any) -> Any:
    """Return a `ray.train.RunConfig` of this run; `more` goes to it as it is.

    A lost worker is replaced and training goes on from the last checkpoint, at most `max_failures` times an attempt.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    start_fewer_actors()
    from ray.train import CheckpointConfig, FailureConfig, RunConfig

    here = context()
    return RunConfig(
        name=here.workload_id,
        storage_path=str(here.checkpoints.absolute()),
        failure_config=FailureConfig(max_failures=max_failures),
        checkpoint_config=CheckpointConfig(num_to_keep=keep_checkpoints),
        **more,
    )


def scaling_config(**more: Any) -> Any:
    """Return a `ray.train.ScalingConfig` of the workers that this workload was granted, each with what it asked for."""
    from ray.train import ScalingConfig

    here = context()
    cpus, gpus = 1.0, 0
    try:
        given = json.loads((here.run_dir / RUN_FILE).read_bytes())
        cpus, gpus = given["num_cpus_per_worker_milli"] / 1000, int(given["gpus_per_worker"])
    except FileNotFoundError:  # tried by hand
        pass
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"cannot read it: {error}", field=str(here.run_dir / RUN_FILE)) from error
    resources = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    return ScalingConfig(
        **{"num_workers": here.workers, "use_gpu": gpus > 0, "resources_per_worker": resources, **more}
    )


def shard(
    name_or_path: str | os.PathLike[str],
    batch_size: int,
    columns: Sequence[str] | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
    tail: Tail = "pad",
    as_: Form = "torch",
    **more: Any,
) -> Stream:
    """Return this rank's batches of a dataset, `batch_size` rows each; options as `polyray.data.stream`.

    All ranks take the same number of steps: an incomplete last step is padded unless `tail` says otherwise, since a
    rank without a batch would leave the others waiting in their collective.
    """
    rank, world_size = rank_and_world_size()
    return stream(
        name_or_path,
        batch_size,
        columns,
        shuffle=shuffle,
        seed=seed,
        rank=rank,
        world_size=world_size,
        tail=tail,
        as_=as_,
        **more,
    )
