"""`polyray audit`: the history of the platform, and whether it is whole."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from polyray.cli.context import cli_of
from polyray.cli.render import Columns, Format, Json, Output, emit_list, emit_one, say, warn, when
from polyray.core.errors import OUTCOMES, Code

app = typer.Typer(help="What happened, and whether the record of it is whole. For operators.", no_args_is_help=True)

_EVENTS: Columns = {
    "EVENT": "event_id",
    "AT": lambda row: when(row["at_ms"]),
    "KIND": "kind",
    "OF": "entity_id",
    "TENANT": "tenant",
    "STEP": lambda row: f"{row['start'] or '-'} -> {row['finish']}" if row["finish"] else "",
    "REASON": "reason",
}


@app.command(help="List what happened, the newest first.")
def ls(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many events.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        emit_list(list(islice(client.audit_events(), limit)), _EVENTS, output, empty="no events")


@app.command(help="Walk the whole history: name what was changed, removed, or is older than its anchors.")
def verify(
    context: typer.Context,
    acknowledge: Annotated[
        bool, typer.Option("--acknowledge", help="Say that you know of the gaps: they alarm nobody any more.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        found = client.acknowledge_audit() if acknowledge else client.verify_audit()
    columns: Columns = {
        "events": "events",
        "anchors": "anchors",
        "newest": lambda row: f"{row['head_event_id']} ({row['head_chain'][:16]})",
        "history": lambda row: (
            "whole" if row["ok"] and not row["gaps"] else "whole but for gaps" if row["ok"] else "not whole"
        ),
    }
    emit_one(found, columns, output)
    for finding in found["findings"]:
        warn(finding)
    for gap in found["gaps"]:
        _tell(gap)
    if not found["ok"]:
        raise typer.Exit(OUTCOMES[Code.CONFLICT].exit_code)


def _tell(gap: Json) -> None:
    told = f"events {gap['first']} to {gap['last']} are lost (told by event {gap['event_id']}, {when(gap['at_ms'])})"
    if gap["acknowledged"]:
        say(f"{told}: {gap['reason']}")
    else:
        warn(f"{told}: {gap['reason']}")
        say("if you know of it, 'polyray audit verify --acknowledge' says so")
