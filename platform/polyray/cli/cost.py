"""`polyray cost`: what was spent."""

from __future__ import annotations

from typing import Annotated

import typer

from polyray.cli.context import cli_of
from polyray.cli.render import Columns, Format, Output, emit_list, emit_one, emit_text, simulated, took, usd, when

_LINES: Columns = {
    "WORKLOAD": lambda row: row.get("workload_id") or "(the platform)",
    "NODE": "node_id",
    "POOL": lambda row: simulated(row["pool"], row),
    "CAPACITY": "capacity_type",
    "FOR": "kind",
    "FROM": lambda row: when(row.get("start_ms")),
    "TIME": lambda row: took(row["end_ms"] - row["start_ms"]),
    "COST": lambda row: usd(row["usd_micros"]),
}


def register(app: typer.Typer) -> None:
    app.command(help="Show what a workload, or the tenant in a month, cost.")(cost)


def cost(
    context: typer.Context,
    workload: Annotated[str | None, typer.Argument(metavar="[ID]", help="A workload's id.")] = None,
    month: Annotated[str | None, typer.Option(help="A month (UTC), such as 2026-03.")] = None,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        found = client.costs(workload=workload, month=month)
    if output is not Format.TABLE:
        emit_one(found, {}, output)
        return
    emit_one(
        found,
        {
            "workload": "workload",
            "tenant": "tenant",
            "month": "month",
            "reserved": lambda row: usd(row["reserved_usd_micros"]),
            "cloud": lambda row: usd(row["cloud_usd_micros"]),
            "in all": lambda row: usd(row["usd_micros"]),
        },
        output,
    )
    if found["lines"]:
        emit_text("")
        emit_list(found["lines"], _LINES, output)
