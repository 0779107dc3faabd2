"""`python -m polyray.supervise.launch MODULE:FUNCTION`: make a component's command, and become it.

The function gets the settings and returns (argv, environment), having made what the program reads at its
start. It runs here, in the component's own process, so that the supervisor stays small, and a component
that cannot even be prepared fails, is logged and is tried again like any other.
"""

from __future__ import annotations

import importlib
import os
import sys

from polyray.core import log as logs
from polyray.core.errors import OUTCOMES, PolyrayError
from polyray.core.settings import load_settings


def main(target: str) -> int:
    """Become the program of `target`; return only if it cannot be."""
    module, _, function = target.partition(":")
    try:
        settings = load_settings()
        logs.configure(settings.log_level, component=module.rpartition(".")[2])
        argv, environment = getattr(importlib.import_module(module), function)(settings)
        os.execve(argv[0], list(argv), dict(environment))
    except PolyrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return OUTCOMES[error.code].exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
