"""The processes of the platform, by the names of the modules that they run.

They are named, not imported: the supervisor knows no implementation, and stays small. Whatever must outlive
the process that started it (a node, above all) is to be started in a session of its own: when a component
dies, the rest of its session is ended before it is started again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from polyray.core.settings import Settings
from polyray.supervise.plan import Component

#: Clusters end and nodes are terminated in it.
SERVER_GRACE_SECONDS = 90.0


def components(settings: Settings) -> tuple[Component, ...]:
    """Return what the supervisor keeps, in the order of the first start. Stopping begins with the server."""
    shared = {"POLYRAY_STATE_DIR": str(settings.state_dir.absolute())}

    def made(name: str, target: str, *, stop_order: int, grace_seconds: float) -> Component:
        return Component(name, _python("polyray.supervise.launch", target), shared, stop_order, grace_seconds)

    def module(name: str, target: str, *, stop_order: int, grace_seconds: float) -> Component:
        argv = _python(target, "--state-dir", shared["POLYRAY_STATE_DIR"])
        return Component(name, argv, shared, stop_order, grace_seconds)

    return (
        made("core", "polyray.fabric.core_head:core_head_command", stop_order=2, grace_seconds=15),
        made("fabric", "polyray.fabric.core_head:fabric_command", stop_order=1, grace_seconds=15),
        module("responder", "polyray.serving.responder", stop_order=1, grace_seconds=5),
        made("gateway", "polyray.serving.haproxy:gateway_command", stop_order=1, grace_seconds=5),
        module("server", "polyray.app", stop_order=0, grace_seconds=SERVER_GRACE_SECONDS),
    )


def base_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return what components start from: no word for Ray from the caller's shell, and the mode said explicitly.

    Those that speak to a Ray make their own environment; for the others Ray is a library of messages.
    """
    kept = {name: value for name, value in given.items() if not name.startswith("RAY_")}
    return {**kept, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *arguments)
