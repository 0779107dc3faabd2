"""`polyray up`, `down`, `status`, `apply`: the platform itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyray.cli.context import Cli, cli_of
from polyray.cli.render import Format, Json, Output, emit_list, emit_one, emit_text, say, warn
from polyray.core.errors import PolyrayError


def register(app: typer.Typer) -> None:
    app.command(help="Start the platform on this machine, and wait until it is ready.")(up)
    app.command(help="End the platform on this machine. What ran is queued, and runs again after the next up.")(down)
    app.command(help="Say what runs, in which isolation grade, and what that means.")(status)
    app.command("apply", help="Apply the operator's FILE: tenants, quotas, pools.")(apply)


def up(
    context: typer.Context,
    platform_file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Tenants, quotas and pools, applied at the first start.")
    ] = None,
    api_port: Annotated[int | None, typer.Option(help="0 takes any free port.")] = None,
    gateway_port: Annotated[int | None, typer.Option(help="0 takes any free port.")] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Do not return (for systemd).")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is ready.")] = 180.0,
    output: Output = Format.TABLE,
) -> None:
    from polyray.supervise import control

    cli = cli_of(context)
    given = {"platform_file": platform_file, "api_port": api_port, "gateway_port": gateway_port}
    cli.flags.update(given)
    if platform_file is not None:
        from polyray.core.platform_file import load_platform_file

        load_platform_file(platform_file)  # its mistakes are told here, not in a log
        cli.flags["platform_file"] = platform_file.absolute()
        if (cli.settings.state_dir / "platform.json").exists():
            say(f"{platform_file} is applied at the first start only; 'polyray apply {platform_file}' applies it now")
    cli.flags["state_dir"] = cli.settings.state_dir.absolute()
    # What was given here must hold for all processes of the platform, whatever files say.
    environment = {**os.environ, **{f"POLYRAY_{k.upper()}": str(v) for k, v in cli.flags.items() if v is not None}}
    if foreground:
        control.prepare_state_dir(cli.settings)
        command = control.supervisor_command(cli.settings)
        os.execve(command[0], command, environment)
    try:
        started = control.up(cli.settings, environment, say=say, timeout_seconds=timeout)
    except KeyboardInterrupt:
        say("interrupted; what was started goes on: 'polyray up' waits for it, 'polyray down' ends it")
        raise
    say("the platform is ready" if started else "the platform is running already")
    _emit_addresses(cli, output)


def _emit_addresses(cli: Cli, output: Format) -> None:
    endpoints = cli.local.endpoints
    emit_one(
        {**endpoints, "state_dir": str(cli.settings.state_dir)},
        {"API": "api_url", "gateway": "gateway_url", "state": "state_dir"},
        output,
    )
    say("log in with 'polyray login', then 'eval \"$(polyray env)\"' and plain ray.init()")


def down(
    context: typer.Context,
    timeout: Annotated[float, typer.Option(help="Seconds for workloads and nodes to end well.")] = 150.0,
) -> None:
    from polyray.supervise import control

    ran = control.down(cli_of(context).settings, say=say, timeout_seconds=timeout)
    say("the platform has ended" if ran else "the platform was not running")
    say("nothing is left: no process, port or temporary directory")


def status(context: typer.Context, output: Output = Format.TABLE) -> None:
    cli = cli_of(context)
    is_local = cli.api_url is None
    supervised = cli.local.components if is_local else {}
    try:
        with cli.client() as client:
            found = client.status()
    except PolyrayError as error:
        if not supervised:
            raise
        # The platform of this machine can be told about without a login, though not by its API.
        _emit_supervised(supervised, output, restarts=cli.local.supervisor is not None)
        _warn_failing(supervised)
        say(f"more is not to be had: {error.message}" + (f"; {error.hint}" if error.hint else ""))
        raise typer.Exit(_exit_code(error)) from error
    if output is not Format.TABLE:
        emit_one({**found, "supervised": supervised} if is_local else found, {}, output)
        return
    emit_one(
        found,
        {
            "API": "api_url",
            "gateway": "gateway_url",
            "isolation": lambda row: f"{row['grade']}: {row['grade_means']}",
            "workloads": lambda row: _counts(row.get("workloads")),
            "nodes": lambda row: _counts(row.get("nodes")),
            "versions": lambda row: ", ".join(f"{k} {v}" for k, v in (row.get("versions") or {}).items()),
        },
        output,
    )
    emit_text("")
    emit_list(
        found["components"],
        {"COMPONENT": "name", "STATE": lambda row: "ok" if row["ok"] else "not ok", "DETAIL": "detail"},
        output,
    )
    _warn_failing(supervised)
    if is_local and cli.local.supervisor is None:
        warn("the supervisor has ended: nothing that fails now is started again")
        say("'polyray up' starts another, which takes over what runs")


def _exit_code(error: PolyrayError) -> int:
    from polyray.core.errors import OUTCOMES

    return OUTCOMES[error.code].exit_code


def _counts(counts: object) -> str:
    return ", ".join(f"{n} {state}" for state, n in counts.items()) if isinstance(counts, dict) and counts else "none"


def _emit_supervised(supervised: dict[str, Json], output: Format, *, restarts: bool) -> None:
    ended = "starts again" if restarts else "ended"
    emit_list(
        [{"name": name, **seen} for name, seen in supervised.items()],
        {
            "COMPONENT": "name",
            "STATE": lambda row: "running" if row["pid"] else "keeps failing" if row["failing"] else ended,
            "PID": "pid",
            "LAST EXIT": "last_exit",
        },
        output,
    )


def _warn_failing(supervised: dict[str, Json]) -> None:
    for name, seen in supervised.items():
        if seen.get("failing"):
            warn(f"{name} keeps failing ({seen.get('last_exit')}); see its log under the state directory")


def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The operator's file, or - for standard input.")],
    output: Output = Format.TABLE,
) -> None:
    from polyray.core.platform_file import load_platform_file

    path = Path("/dev/stdin") if str(file) == "-" else file
    platform = load_platform_file(path)
    with cli_of(context).client() as client:
        answer = client.apply_platform(platform.model_dump(mode="json", exclude_unset=True))
    changes = answer.get("changes", answer.get("items"))
    if output is Format.TABLE and isinstance(changes, list):
        for change in changes:
            say(str(change))
        say("applied" if changes else "nothing to change")
    else:
        emit_one(answer, {}, output)
        sys.stdout.flush()
