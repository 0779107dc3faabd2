"""`polyray model`: model versions with their lineage."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from polyray.cli.context import cli_of
from polyray.cli.data import Version
from polyray.cli.render import Columns, Format, Output, emit_list, emit_one, when

app = typer.Typer(help="Model versions: digest and lineage.", no_args_is_help=True)

_MODELS: Columns = {
    "MODEL": lambda row: f"{row['name']}@{row['version']}",
    "FROM": lambda row: row["lineage"].get("job_id") or row["lineage"].get("workload_id"),
    "FILES": lambda row: len(row["files"]),
    "BY": "created_by",
    "REGISTERED": lambda row: when(row.get("created_ms")),
    "DIGEST": lambda row: row["digest"][:16],
}


@app.command(help="Register what a job wrote as the next version of a model.")
def register(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The model's name.")],
    job: Annotated[str, typer.Option("--job", help="The job's id.")],
    path: Annotated[str, typer.Option("--path", help="A path in the job's run.")] = "artifacts/model",
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        emit_one(client.register_model(name, job, path), _MODELS, output)


@app.command(help="List model versions.")
def ls(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_list(client.models(), _MODELS, output, empty="no models")


@app.command(help="Show one model version and where it came from.")
def show(context: typer.Context, version: Version, output: Output = Format.TABLE) -> None:
    from polyray.core.spec import DatasetRef

    ref = DatasetRef.parse(version, field="version")
    with cli_of(context).client() as client:
        view = client.model(ref.name, ref.version)
    emit_one(view, {**_MODELS, "lineage": lambda row: json.dumps(row["lineage"])}, output)
