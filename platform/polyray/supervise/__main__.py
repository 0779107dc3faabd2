"""`python -m polyray.supervise --state-dir DIR`: supervise until asked to stop.

With `--end` it starts nothing of its own accord: it takes over what a killed supervisor left, and ends it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import structlog

from polyray.core import log as logs
from polyray.core.errors import OUTCOMES, PolyrayError, Unavailable
from polyray.core.settings import load_settings
from polyray.supervise.components import base_environment, components
from polyray.supervise.control import prepare_state_dir
from polyray.supervise.lock import SupervisorLock
from polyray.supervise.supervisor import Supervisor

log = structlog.get_logger(__name__)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="polyray-supervisor", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=None)
    parser.add_argument("--end", action="store_true", help="end what a killed supervisor left")
    given = parser.parse_args(argv)
    try:
        settings = load_settings(state_dir=given.state_dir)
        logs.configure(settings.log_level, component="supervisor")
        prepare_state_dir(settings)
        lock = SupervisorLock(settings.state_dir / "run" / "supervisor.pid")
        if not _take(lock):
            log.info("already_running")
            return 0
        try:
            supervisor = Supervisor(
                components(settings), state_dir=settings.state_dir, base_env=base_environment(os.environ)
            )
            if given.end:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
                signal.raise_signal(signal.SIGTERM)  # pending until the loop asks for signals
            supervisor.run()
        finally:
            lock.release()
    except PolyrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return OUTCOMES[error.code].exit_code
    return 0


def _take(lock: SupervisorLock) -> bool:
    """Take the lock; return whether it was free.

    Raises:
        Unavailable: if it cannot be written.
    """
    try:
        return lock.take()
    except OSError as error:
        told = f"the state directory cannot be written: {error.strerror}"
        raise Unavailable(told, hint="make room, then run 'polyray up' again") from error


if __name__ == "__main__":
    sys.exit(main())
