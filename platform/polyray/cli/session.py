"""`polyray session`: interactive clusters."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from polyray.cli.columns import WORKLOAD, WORKLOADS
from polyray.cli.context import cli_of
from polyray.cli.render import Format, Output, emit_list, emit_one
from polyray.cli.work import Follow, Raw, stop_one

app = typer.Typer(help="Interactive clusters for stock Ray clients.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A session's name or id.")]


@app.command(help="Start a session, and wait until it runs.")
def start(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name.")] = "default",
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A YAML file of kind 'session'.")] = None,
    cpu: Annotated[float | None, typer.Option(help="CPUs of each node.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each node, such as 4GiB.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPUs of each node, such as h100:1.")] = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would ask for and cost.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is submitted.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = 600.0,
    output: Output = Format.TABLE,
) -> None:
    from polyray.cli.follow import WORKLOAD_FAILED_EXIT, wait_for
    from polyray.cli.submit import emit_plan, read_spec, send_spec
    from polyray.core.spec import parse_workload

    if file is not None:
        spec = read_spec(file, "session")
    else:
        asked = {"cpu": cpu, "memory": memory, "gpu": gpu}
        resources = {key: value for key, value in asked.items() if value is not None}
        content = {"kind": "session", "name": name, "resources": resources, "workers": workers or 1}
        spec = parse_workload(content)
    with cli_of(context).client() as client:
        view = send_spec(client, spec, file.parent if file is not None else Path(), dry_run=dry_run)
        if dry_run:
            emit_plan(view, output)
            return
        if not no_wait:
            view = wait_for(
                client, "sessions", view["id"], lambda row: row["state"] == "running", timeout_seconds=timeout
            )
    emit_one(view, WORKLOAD, output)
    if not no_wait and view["state"] != "running":
        raise typer.Exit(WORKLOAD_FAILED_EXIT)


@app.command(help="List sessions, newest first.")
def ls(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        rows = list(islice(client.workloads("sessions"), limit))
    emit_list(rows, WORKLOADS, output, empty="no sessions")


@app.command(help="Show one session.")
def show(context: typer.Context, name: Name, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_one(client.workload("sessions", name), WORKLOAD, output)


@app.command(help="Print a session's log.")
def logs(context: typer.Context, name: Name, follow: Follow = False, raw: Raw = False) -> None:
    from polyray.cli.follow import print_log

    with cli_of(context).client() as client:
        print_log(client, "sessions", name, follow=follow, raw=raw)


@app.command(help="Ask a session to end.")
def stop(context: typer.Context, name: Name, output: Output = Format.TABLE) -> None:
    stop_one(context, "sessions", name, output)
