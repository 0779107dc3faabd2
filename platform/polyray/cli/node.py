"""`polyray node`: the machines of the core."""

from __future__ import annotations

import typer

from polyray.cli.columns import NODES
from polyray.cli.context import cli_of
from polyray.cli.render import Format, Output, emit_list

app = typer.Typer(help="Machines, reserved and of the cloud.", no_args_is_help=True)


@app.command(help="List nodes.")
def ls(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_list(client.nodes(), NODES, output, empty="no nodes")
