"""`polyray`: the command line. Each group of commands is a module beside this one.

Nothing heavy is imported before a command needs it: `polyray --help` is to answer at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyray.cli import (
    access,
    audit,
    cost,
    data,
    job,
    key,
    model,
    node,
    platform,
    recovery,
    service,
    session,
    tenant,
    work,
)
from polyray.cli.context import Cli
from polyray.cli.follow import WORKLOAD_FAILED_EXIT
from polyray.cli.render import say, show_error
from polyray.core.errors import OUTCOMES, Code, Invalid, PolyrayError

_EPILOG = f"""\b
Exit codes:
  0   done
  1   something went wrong inside
  2   bad input, or impossible
  3   not logged in, or not allowed
  4   no such thing
  5   contradicts what is there
  6   not now: try again later
  {WORKLOAD_FAILED_EXIT}  the workload that was waited for did not succeed

\b
Data goes to standard output, everything else to standard error.
Settings: flag > POLYRAY_* > polyray.yaml > user file > default."""

app = typer.Typer(
    name="polyray",
    help="One pool of machines, many isolated Ray clusters.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    api_url: Annotated[str | None, typer.Option(envvar="POLYRAY_API_URL", help="The platform's address.")] = None,
    tenant: Annotated[
        str | None, typer.Option(envvar="POLYRAY_TENANT", help="Act for this tenant, for this command.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(envvar="POLYRAY_STATE_DIR", help="State of the platform on this machine.")
    ] = None,
) -> None:
    context.obj = Cli(api_url=api_url, tenant=tenant, flags={"state_dir": state_dir})


for group in (platform, recovery, access, work):
    group.register(app)
for name, group_app in {
    "job": job.app,
    "session": session.app,
    "service": service.app,
    "data": data.app,
    "model": model.app,
    "key": key.app,
    "node": node.app,
    "tenant": tenant.app,
    "audit": audit.app,
}.items():
    app.add_typer(group_app, name=name)
cost.register(app)


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code. No error ends in a traceback, unless POLYRAY_DEBUG is set."""
    try:
        result: Any = typer.main.get_command(app).main(args=argv, prog_name="polyray", standalone_mode=False)
        sys.stdout.flush()
    except PolyrayError as error:
        return show_error(error)
    except BrokenPipeError:
        # Whoever read us has enough; standard output must not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if (told := _usage_error(error)) is not None:
            return told
        if os.environ.get("POLYRAY_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        return show_error(PolyrayError(Code.INTERNAL, what, "set POLYRAY_DEBUG=1 for the traceback, and report it"))
    return result if isinstance(result, int) else 0


def _usage_error(error: Exception) -> int | None:
    """Print a complaint of the option parser as one of ours. None: it is none."""
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "polyray"
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
        say(str(message()))
        return OUTCOMES[Code.INVALID].exit_code
    return show_error(Invalid(str(message()), hint=f"see '{path} --help'"))


if __name__ == "__main__":
    sys.exit(main())
