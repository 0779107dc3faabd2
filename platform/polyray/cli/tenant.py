"""`polyray tenant`: teams, their quotas and budgets."""

from __future__ import annotations

import typer

from polyray.cli.context import cli_of
from polyray.cli.render import Format, Json, Output, emit_list, usd
from polyray.core.resources import format_amount

app = typer.Typer(help="Teams, their quotas and budgets.", no_args_is_help=True)


@app.command(help="List tenants: your own, or all of them for an operator.")
def ls(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        rows = client.tenants()
    emit_list(
        rows,
        {
            "TENANT": "name",
            "DISPLAY NAME": "display_name",
            "USED / QUOTA": _quotas,
            "BUDGET A MONTH": lambda row: usd(row.get("budget_usd_micros_per_month")),
            "PROJECTS": lambda row: ", ".join(row.get("projects") or ()),
            "STATE": lambda row: "suspended" if row.get("suspended") else "",
        },
        output,
        empty="no tenants",
    )


def _quotas(row: Json) -> str:
    return ", ".join(
        f"{q['flavor']} {format_amount(q['flavor'], q['used'])} / {format_amount(q['flavor'], q['nominal'])}"
        for q in row.get("quotas") or ()
    )
