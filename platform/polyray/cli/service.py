"""`polyray service`: inference."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from polyray.cli.columns import WORKLOAD, WORKLOADS
from polyray.cli.context import cli_of
from polyray.cli.render import Format, Output, emit_list, emit_one
from polyray.cli.work import Follow, Raw, stop_one

app = typer.Typer(help="Inference behind the gateway.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A service's name or id.")]


@app.command(help="Deploy the service that FILE describes.")
def deploy(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A YAML file of kind 'service', or - for standard input.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would ask for and cost.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it runs; exit with 10 if it does not.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = 600.0,
    output: Output = Format.TABLE,
) -> None:
    from polyray.cli.follow import WORKLOAD_FAILED_EXIT, wait_for
    from polyray.cli.submit import emit_plan, read_spec, send_spec

    spec = read_spec(file, "service")
    with cli_of(context).client() as client:
        view = send_spec(client, spec, Path() if str(file) == "-" else file.parent, dry_run=dry_run)
        if dry_run:
            emit_plan(view, output)
            return
        if wait:
            view = wait_for(
                client, "services", view["id"], lambda row: row["state"] == "running", timeout_seconds=timeout
            )
    emit_one(view, WORKLOAD, output)
    if wait and view["state"] != "running":
        raise typer.Exit(WORKLOAD_FAILED_EXIT)


@app.command(help="List services, newest first.")
def ls(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        rows = list(islice(client.workloads("services"), limit))
    emit_list(rows, {**WORKLOADS, "URL": "url"}, output, empty="no services")


@app.command(help="Show one service, with its URL.")
def show(context: typer.Context, name: Name, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_one(client.workload("services", name), WORKLOAD, output)


@app.command(help="Print a service's log.")
def logs(context: typer.Context, name: Name, follow: Follow = False, raw: Raw = False) -> None:
    from polyray.cli.follow import print_log

    with cli_of(context).client() as client:
        print_log(client, "services", name, follow=follow, raw=raw)


@app.command(help="Ask a service to end.")
def stop(context: typer.Context, name: Name, output: Output = Format.TABLE) -> None:
    stop_one(context, "services", name, output)
