"""`polyray ps`, `queue`, `why`, `logs`, `stop`: all kinds of workload at once."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from polyray.cli.columns import WORKLOADS
from polyray.cli.context import cli_of
from polyray.cli.render import Format, Json, Output, amounts, emit_list, emit_one, say, took

Ref = Annotated[str, typer.Argument(metavar="ID", help="A workload's id.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the workload has ended.")]
Raw = Annotated[bool, typer.Option("--raw", help="The log's bytes as they are.")]

#: Ended workloads of each kind that `ps --all` shows.
_MANY = 1000


def register(app: typer.Typer) -> None:
    app.command(help="List workloads that have not ended.")(ps)
    app.command(help="Show the queue: who waits, for what, and why.")(queue)
    app.command(help="Say why a workload is where it is, and what would unblock it.")(why)
    app.command(help="Print a workload's log.")(logs)
    app.command(help="Ask a workload to end.")(stop)


def ps(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that have ended, too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    from polyray.cli.follow import has_ended

    rows: list[Json] = []
    with cli_of(context).client() as client:
        for route in ("jobs", "sessions", "services"):
            views = islice(client.workloads(route), _MANY)
            rows.extend(view for view in views if everything or not has_ended(view))
    rows.sort(key=lambda view: view["created_ms"], reverse=True)
    emit_list(rows, WORKLOADS, output, empty="no workloads")


def queue(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        rows = client.queue()
    emit_list(
        rows,
        {
            "POSITION": "position",
            "ID": lambda row: row.get("id") or "(another tenant's)",
            "KIND": "kind",
            "NAME": "name",
            "BY": "submitted_by",
            "PRIORITY": "priority",
            "ASKS FOR": lambda row: amounts(row.get("total")),
            "WAITS": lambda row: took(row.get("wait_ms")),
            "WHY": lambda row: (row.get("explanation") or {}).get("cause"),
        },
        output,
        empty="nobody waits",
    )


def why(context: typer.Context, ref: Ref, output: Output = Format.TABLE) -> None:
    from polyray.sdk.client import route_of

    with cli_of(context).client() as client:
        emit_one(
            client.why(route_of(ref), ref),
            {
                "id": "id",
                "state": "state",
                "cause": "cause",
                "unblocks": "unblocks",
                "position": "position",
                "code": "code",
                "facts": lambda row: _facts(row.get("facts")),
            },
            output,
        )


def _facts(facts: object) -> str:
    """Return the plain ones: the cause tells in words what is nested, and JSON shows it."""
    if not isinstance(facts, dict):
        return ""
    lists = {key: value if isinstance(value, list) else [value] for key, value in facts.items()}
    plain = {key: v for key, v in lists.items() if v and all(isinstance(one, (str, int)) for one in v)}
    return ", ".join(f"{key}: {', '.join(map(str, v))}" for key, v in plain.items())


def logs(context: typer.Context, ref: Ref, follow: Follow = False, raw: Raw = False) -> None:
    from polyray.cli.follow import print_log
    from polyray.sdk.client import route_of

    with cli_of(context).client() as client:
        print_log(client, route_of(ref), ref, follow=follow, raw=raw)


def stop(context: typer.Context, ref: Ref, output: Output = Format.TABLE) -> None:
    from polyray.sdk.client import route_of

    stop_one(context, route_of(ref), ref, output)


def stop_one(context: typer.Context, route: str, ref: str, output: Format) -> None:
    with cli_of(context).client() as client:
        view = client.stop(route, ref)
    if output is Format.TABLE:
        ending = view["state"] in {"starting", "running"}
        say(f"{view['id']} {'is asked to end' if ending else 'is ' + view['state']}")
    else:
        emit_one(view, {}, output)
