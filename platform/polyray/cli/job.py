"""`polyray job`: batch work."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from polyray.cli.columns import WORKLOAD, WORKLOADS
from polyray.cli.context import cli_of
from polyray.cli.render import Format, Output, emit_list, emit_one, say, when
from polyray.cli.work import Follow, Raw, Ref, stop_one

app = typer.Typer(help="Batch work: submit, watch, stop.", no_args_is_help=True)


@app.command(help="Submit the job that FILE describes.")
def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file of kind 'job', or - for standard input.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would ask for and cost.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit with 10 if not well.")] = False,
    output: Output = Format.TABLE,
) -> None:
    from polyray.cli.follow import WORKLOAD_FAILED_EXIT, has_ended, wait_for
    from polyray.cli.submit import emit_plan, read_spec, send_spec

    spec = read_spec(file, "job")
    with cli_of(context).client() as client:
        view = send_spec(client, spec, Path() if str(file) == "-" else file.parent, dry_run=dry_run)
        if dry_run:
            emit_plan(view, output)
            return
        if wait:
            say(f"{view['id']} is submitted")
            view = wait_for(client, "jobs", view["id"], has_ended)
    emit_one(view, WORKLOAD, output)
    if wait and view["state"] != "succeeded":
        raise typer.Exit(WORKLOAD_FAILED_EXIT)


@app.command(help="List jobs, newest first.")
def ls(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        rows = list(islice(client.workloads("jobs", state=state), limit))
    emit_list(rows, WORKLOADS, output, empty="no jobs")


@app.command(help="Show one job.")
def show(context: typer.Context, ref: Ref, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_one(client.workload("jobs", ref), WORKLOAD, output)


@app.command(help="Print a job's log.")
def logs(context: typer.Context, ref: Ref, follow: Follow = False, raw: Raw = False) -> None:
    from polyray.cli.follow import print_log

    with cli_of(context).client() as client:
        print_log(client, "jobs", ref, follow=follow, raw=raw)


@app.command(help="Wait until a job has ended; exit with 10 if not well.")
def wait(
    context: typer.Context,
    ref: Ref,
    timeout: Annotated[float | None, typer.Option(help="Seconds; without it as long as it takes.")] = None,
    output: Output = Format.TABLE,
) -> None:
    from polyray.cli.follow import WORKLOAD_FAILED_EXIT, has_ended, wait_for

    with cli_of(context).client() as client:
        view = wait_for(client, "jobs", ref, has_ended, timeout_seconds=timeout)
    emit_one(view, WORKLOAD, output)
    if view["state"] != "succeeded":
        raise typer.Exit(WORKLOAD_FAILED_EXIT)


@app.command(help="Ask a job to end.")
def stop(context: typer.Context, ref: Ref, output: Output = Format.TABLE) -> None:
    stop_one(context, "jobs", ref, output)


@app.command("kill-worker", help="Kill one worker, as a crash would.")
def kill_worker(
    context: typer.Context,
    ref: Ref,
    rank: Annotated[int, typer.Option(min=0, help="Which; 0 is the head.")] = 1,
) -> None:
    with cli_of(context).client() as client:
        client.kill_worker(ref, rank)
    say(f"the worker of rank {rank} is killed")


@app.command(help="Print the run's records: metrics, checkpoints.")
def records(context: typer.Context, ref: Ref, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        rows = client.records("jobs", ref)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    emit_list(rows, {key.upper(): key for key in keys}, output, empty="nothing recorded")


@app.command(help="Tell a job's story.")
def events(context: typer.Context, ref: Ref, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        rows = client.events("jobs", ref)
    emit_list(
        rows,
        {
            "AT": lambda row: when(row["at_ms"]),
            "WHAT": lambda row: f"{row['kind']} {row['entity_id']}",
            "FROM": "start",
            "TO": "finish",
            "REASON": "reason",
        },
        output,
    )
