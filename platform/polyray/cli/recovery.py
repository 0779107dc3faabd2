"""`polyray backup` and `polyray restore`: a process of the platform does the work, and this shows its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyray.cli.context import Cli, cli_of
from polyray.cli.render import Format, Output, emit_one, emit_text, say


def register(app: typer.Typer) -> None:
    app.command(help="Write all that the platform knows into FILE, while it runs; not the data and models themselves.")(
        backup
    )
    app.command(help="Go back to a backup. The platform must be down; what is replaced is kept.")(restore)


def backup(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Or a directory; it is named after the time there, or here if not given."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Overwrite the file.")] = False,
    output: Output = Format.TABLE,
) -> None:
    _show(_answer(cli_of(context), "backup", *([str(file)] if file else []), *(["--yes"] if yes else [])), output)


def restore(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'polyray backup' wrote.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and compare; change nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Replace a PostgreSQL database that is not empty, or another history.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    flags = [*(["--dry-run"] if dry_run else []), *(["--yes"] if yes else [])]
    answer = _answer(cli_of(context), "restore", str(file), *flags)
    _show(answer, output)
    if answer["replaced"]:
        say(f"what was there before is kept: {answer['replaced']}")
    if answer["path"]:
        say(f"the whole report: {answer['path']}")
        say("start the platform with 'polyray up'; then 'polyray status' and 'polyray audit verify' tell how it is")


def _answer(cli: Cli, *arguments: str) -> dict[str, Any]:
    """Run the process and return what it says; its errors and its exit code are this command's own."""
    flags = {**cli.flags, "state_dir": cli.settings.state_dir.absolute()}
    told = {f"POLYRAY_{name.upper()}": str(value) for name, value in flags.items() if value is not None}
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", **told}
    command = [sys.executable, "-m", "polyray.recovery", *arguments]
    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if ended.returncode:
        raise typer.Exit(ended.returncode if ended.returncode > 0 else 1)
    return dict(json.loads(ended.stdout))


def _show(answer: dict[str, Any], output: Format) -> None:
    if output is not Format.TABLE:
        emit_one(answer, {}, output)
        return
    for line in answer["told"]:
        emit_text(str(line))
