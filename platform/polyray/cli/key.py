"""`polyray key`: API keys for inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polyray.cli.context import cli_of
from polyray.cli.follow import has_ended
from polyray.cli.render import Columns, Format, Output, emit_list, emit_one, emit_text, say, warn, when
from polyray.core.errors import Code, PolyrayError

if TYPE_CHECKING:
    from polyray.sdk.client import PolyrayClient

app = typer.Typer(help="API keys for inference.", no_args_is_help=True)

_KEYS: Columns = {
    "KEY ID": "key_id",
    "NAME": "name",
    "SERVICE": lambda row: row.get("service") or "(all)",
    "BY": "created_by",
    "UNTIL": lambda row: when(row.get("expires_ms")),
    "REVOKED": lambda row: when(row.get("revoked_ms")),
}


@app.command(help="Make a key. Its text is printed now and never again.")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for.")],
    service: Annotated[str | None, typer.Option(help="The one service it opens; without it all of the tenant.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days that it lives.")] = None,
    output: Output = Format.TABLE,
) -> None:
    with cli_of(context).client() as client:
        made = client.create_key(name, service=service, ttl_days=days)
        if service is not None and not _is_live(client, service):
            warn(f"there is no service {service} now; the key opens it once it is deployed")
    if output is Format.TABLE:
        say(f"{made['key_id']} for {made.get('service') or 'all services'}, until {when(made.get('expires_ms'))}")
        emit_text(str(made["key"]))
    else:
        emit_one(made, {}, output)


def _is_live(client: PolyrayClient, service: str) -> bool:
    try:
        return not has_ended(client.workload("services", service))
    except PolyrayError as error:
        if error.code is Code.NOT_FOUND:
            return False
        raise


@app.command(help="List keys.")
def ls(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_list(client.keys(), _KEYS, output, empty="no keys")


@app.command(help="End a key; nothing gets through with it after 5 s.")
def revoke(context: typer.Context, key_id: Annotated[str, typer.Argument(metavar="KEY_ID")]) -> None:
    with cli_of(context).client() as client:
        client.revoke_key(key_id)
    say(f"{key_id} is revoked")
