"""Datasets where user code runs: `polyray.data.stream(...)`, `polyray.data.publish(...)`.

Names are handed on when first used: the control plane imports `polyray.data.manifest` alone, and must not
load Arrow for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyray.data.publishing import Published, publish
    from polyray.data.reader import Stream, stream

__all__ = ["Published", "Stream", "publish", "stream"]

_HOMES = {
    "Published": "polyray.data.publishing",
    "publish": "polyray.data.publishing",
    "Stream": "polyray.data.reader",
    "stream": "polyray.data.reader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"polyray.data has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
