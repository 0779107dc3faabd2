"""Waiting for a workload while telling what happens to it, and printing its log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from polyray.cli.render import Json, safe, say
from polyray.core.errors import Code, PolyrayError
from polyray.core.lifecycle import WORKLOAD

if TYPE_CHECKING:
    from polyray.sdk.client import PolyrayClient

#: `--wait` ends with it when the workload did not succeed; none of the platform's own refusals has it.
WORKLOAD_FAILED_EXIT = 10
_LOOK_SECONDS = 0.5

_TERMINAL = {str(state) for state in WORKLOAD.terminal}


def has_ended(view: Json) -> bool:
    return view["state"] in _TERMINAL


def wait_for(
    client: PolyrayClient,
    route: str,
    ref: str,
    reached: Callable[[Json], bool],
    *,
    timeout_seconds: float | None = None,
) -> Json:
    """Return a workload once `reached` holds or it has ended, telling each change and why it waits.

    Raises:
        PolyrayError: code `timeout`.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    told = ""
    while True:
        view = client.workload(route, ref)
        if reached(view) or has_ended(view):
            return view
        line = describe(view)
        if line != told:
            say(line)
            told = line
        if deadline is not None and time.monotonic() >= deadline:
            raise PolyrayError(
                Code.TIMEOUT,
                f"{view['id']} is still {view['state']} after {timeout_seconds:.0f} s",
                f"it goes on; see 'polyray why {view['id']}'",
                retryable=True,
            )
        time.sleep(_LOOK_SECONDS)


def describe(view: Json) -> str:
    """Return in one line where a workload is, and what would unblock it."""
    explanation = view.get("explanation") if view["state"] == "queued" else None
    cause = (explanation or {}).get("cause") or view.get("state_reason") or ""
    unblocks = (explanation or {}).get("unblocks") or ""
    cluster = view.get("cluster") or {}
    parts = [
        f"{view['kind']} {view['name']} ({view['id']}) is {view['state']}",
        f": {cause}" if cause else "",
        f"; {unblocks}" if unblocks else "",
        f" [its cluster: {cluster['state']}]" if cluster and view["state"] == "starting" else "",
    ]
    return "".join(parts)


def print_log(client: PolyrayClient, route: str, ref: str, *, follow: bool, raw: bool) -> None:
    """Print a log: as lines in which nothing acts on the terminal, or raw, byte for byte."""
    if raw:
        _print_bytes(client, route, ref, follow=follow)
    elif follow:
        _follow_lines(client, route, ref)
    else:
        from polyray.sdk.logtext import LogLines

        lines, offset = LogLines(), 0
        while True:
            data, offset = client.logs(route, ref, offset)
            _print_lines(lines.feed(data))
            if not data:
                _print_lines(lines.end())
                break
        if not offset:
            say(f"nothing is logged yet: {describe(client.workload(route, ref))}")


def _follow_lines(client: PolyrayClient, route: str, ref: str) -> None:
    live = sys.stderr.isatty()
    for event in client.follow_logs(route, ref):
        if event.name == "log":
            if live:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            _print_lines(str(event.data).removesuffix("\n").split("\n"))
        elif event.name == "progress" and live:
            print(f"\r\033[K{safe(event.data)[:200]}", end="", file=sys.stderr, flush=True)
        elif event.name == "end":
            say(f"{ref} has ended: {event.data['state']}")


def _print_bytes(client: PolyrayClient, route: str, ref: str, *, follow: bool) -> None:
    offset = 0
    while True:
        ended = not follow or has_ended(client.workload(route, ref))  # asked before the read: nothing is missed
        data, offset = client.logs(route, ref, offset)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if not data:
            if ended:
                return
            time.sleep(_LOOK_SECONDS)


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        print(safe(line, keep="\t"))
    sys.stdout.flush()
