"""`polyray data`: immutable dataset versions."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from polyray.cli.context import cli_of
from polyray.cli.render import Columns, Format, Output, emit_list, emit_one, say, when

app = typer.Typer(help="Dataset versions: content-hashed, immutable.", no_args_is_help=True)

Version = Annotated[str, typer.Argument(metavar="NAME@VERSION", help="Such as digits@1.")]

_DATASETS: Columns = {
    "DATASET": lambda row: f"{row['name']}@{row['version']}",
    "STAGE": "stage",
    "ROWS": "rows",
    "BYTES": "size_bytes",
    "FILES": "files",
    "BY": "created_by",
    "PUBLISHED": lambda row: when(row.get("created_ms")),
    "DIGEST": lambda row: row["digest"][:16],
}


@app.command(help="Publish Parquet or CSV as the next version of a dataset.")
def publish(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A file, or a directory of files.")],
    name: Annotated[str, typer.Option(help="The dataset's name.")],
    stage: Annotated[str, typer.Option(help="raw or processed.")] = "raw",
    output: Output = Format.TABLE,
) -> None:
    from polyray.data.publishing import publish as write_version

    with cli_of(context).client() as client, tempfile.TemporaryDirectory(prefix="polyray-") as directory:
        say("converting and hashing")
        version = write_version(path, name=name, directory=Path(directory) / "version", stage=stage)
        for file, entry in version.files:
            sent = client.put_blob(file, entry.sha256)
            say(f"{entry.name}: {entry.size_bytes} bytes {'sent' if sent else 'were there already'}")
        view = client.publish_dataset(name, stage, version.manifest.as_dict())
    emit_one(view, _DATASETS, output)


@app.command(help="List dataset versions.")
def ls(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_list(client.datasets(), _DATASETS, output, empty="no datasets")


@app.command(help="Show one dataset version, its schema and files.")
def show(context: typer.Context, version: Version, output: Output = Format.TABLE) -> None:
    from polyray.core.spec import DatasetRef

    ref = DatasetRef.parse(version, field="version")
    with cli_of(context).client() as client:
        view = client.dataset(ref.name, ref.version)
    if output is not Format.TABLE:
        emit_one(view, {}, output)
        return
    emit_one(view, _DATASETS, output)
    say("")
    emit_list(view["manifest"]["schema"], {"COLUMN": "name", "TYPE": "type"}, output)
    emit_list(view["manifest"]["files"], {"FILE": "name", "ROWS": "rows", "SHA-256": "sha256"}, output)
