"""What a training program asks of the platform, on top of plain Ray Train.

    import polyray.train

    trainer = TorchTrainer(
        train_loop, run_config=polyray.train.run_config(), scaling_config=polyray.train.scaling_config()
    )

and in the loop `shard(...)`, `record(...)`, `save_model(...)`. Names are handed on when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyray.train.records import record, save_model
    from polyray.train.run_context import Context, context
    from polyray.train.runs import run_config, scaling_config, shard

__all__ = ["Context", "context", "record", "run_config", "save_model", "scaling_config", "shard"]

_HOMES = {
    "Context": "polyray.train.run_context",
    "context": "polyray.train.run_context",
    "record": "polyray.train.records",
    "save_model": "polyray.train.records",
    "run_config": "polyray.train.runs",
    "scaling_config": "polyray.train.runs",
    "shard": "polyray.train.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"polyray.train has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
