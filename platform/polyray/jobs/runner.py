"""A job's program, started beside the head of its cluster: `python -m polyray.jobs.runner RUN_DIR`.

It unpacks the code, links the datasets, and becomes the job's command: one process whose exit code, signals
and output are the job's own.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from polyray.core.code_archive import unpack_code
from polyray.core.errors import OUTCOMES, Invalid, PolyrayError
from polyray.core.run_file import RunFile, link_datasets, load_run_file, user_environment


def prepare(run: RunFile) -> dict[str, str]:
    """Make `code/` and `datasets/` of a run ready, and return the environment for its code."""
    unpack_code(run.code_blob, run.code_sha256, run.code_dir)
    own = dict(os.environ)
    own["POLYRAY_DATASETS_DIR"] = str(link_datasets(run))
    # The platform's own interpreter is what `python` means in a job's command.
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
    # The log is a file that people read: lines as they come, one by one, without colours.
    for name, value in (("PYTHONUNBUFFERED", "1"), ("RAY_COLOR_PREFIX", "0"), ("RAY_DEDUP_LOGS", "0")):
        own.setdefault(name, value)
    return user_environment(run, own)


def become(run: RunFile) -> NoReturn:
    """Turn this process into the job's command, run by bash in `code/`."""
    if run.run is None:
        raise Invalid("a job needs a command", field="run")
    environment = prepare(run)
    os.chdir(run.code_dir)
    shell = shutil.which("bash", path=environment["PATH"]) or "/bin/bash"
    os.execve(shell, [shell, "-c", run.run], environment)


def main(argv: list[str]) -> int:
    try:
        become(load_run_file(Path(argv[0])))
    except PolyrayError as error:
        print(f"polyray: {error}", file=sys.stderr, flush=True)
        return OUTCOMES[error.code].exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
