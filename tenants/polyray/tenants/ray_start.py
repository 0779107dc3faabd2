"""`ray` with less to import: `python -m polyray.tenants.ray_start start --head --block ...`.

The command line imports Ray Serve and the job and state commands, which a node that only starts does not
need (2 s of CPU). They are optional imports, so naming them absent skips them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

_UNNEEDED = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def main() -> None:
    for name in _UNNEEDED:
        sys.modules[name] = None  # type: ignore[assignment]
    if "--head" in sys.argv:
        _forget_former_head()
    if "--include-dashboard=false" in sys.argv:
        _start_no_dashboard_process()
    from ray.scripts import scripts

    if not any(argument.startswith("--ray-client-server-port=") for argument in sys.argv):
        # Left out it means port 10001, unless its packages are missing.
        scripts.get_ray_client_dependency_error = lambda: "not asked for"
    scripts.main()


def _forget_former_head() -> None:
    """Let a head start again at its old address.

    Ray refuses it when a raylet that outlived the former head still names that address and this file says
    that it was ours; such raylets are just what the new head is for.
    """
    for argument in sys.argv:
        if argument.startswith("--temp-dir="):
            with suppress(FileNotFoundError):
                (Path(argument.partition("=")[2]) / "ray_current_cluster").unlink()


def _start_no_dashboard_process() -> None:
    """Without a dashboard Ray still starts a process for usage statistics, and waits for it; they are off."""
    from ray._private.node import Node

    assert callable(Node.start_api_server), "this Ray starts its dashboard in another way"
    Node.start_api_server = lambda _self, **_options: None


if __name__ == "__main__":
    main()
