"""`polyray login`, `logout`, `token`, `env`: who you are, and what stock Ray needs to know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polyray.cli.context import Cli, cli_of
from polyray.cli.render import Format, Json, Output, emit_one, emit_text, say, when
from polyray.core.errors import Code, PolyrayError, Unavailable

if TYPE_CHECKING:
    from polyray.sdk.client import PolyrayClient


def register(app: typer.Typer) -> None:
    app.command(help="Log in with a code that you approve in a browser.")(login)
    app.command(help="Forget the login at this platform.")(logout)
    app.command(help="Say who you are, for which tenant and in which role.")(whoami)
    app.command(help="Print a platform token.")(token)
    app.command(help='Print the environment in which stock Ray uses a session: eval "$(polyray env)".')(env)


def login(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="The tenant to act for from now on.")] = None,
    issuer: Annotated[str | None, typer.Option(help="The OIDC issuer, if the platform does not name it.")] = None,
    output: Output = Format.TABLE,
) -> None:
    from polyray.core.ids import parse_slug
    from polyray.sdk.credentials import claims_of
    from polyray.sdk.login import LoginTokens, begin, discover, find_issuer, wait_for_approval
    from polyray.sdk.transport import open_http

    cli = cli_of(context)
    cli.require_running()
    wanted = tenant or cli.tenant or ""
    if wanted:
        parse_slug(wanted, field="tenant")
    with open_http(cli.url) as http:
        found = discover(http, find_issuer(http, issuer or cli.settings.oidc_issuer))
        client_id = cli.settings.oidc_client_id
        device = begin(http, found, client_id)
        say(f"open {device.verification_uri_complete}")
        say(f"and approve the code {device.user_code}")
        granted = wait_for_approval(http, found, client_id, device, api_url=cli.url)
    cli.credentials.forget()
    cli.credentials.save(granted)
    claims = claims_of(LoginTokens(cli.credentials).exchanged(tenant=wanted))
    cli.credentials.choose(str(claims.get("tenant") or ""))
    emit_one(
        {key: claims.get(key) for key in ("sub", "tenant", "role", "exp")},
        {"user": "sub", "tenant": "tenant", "role": "role", "token until": _until},
        output,
    )


def _until(claims: Json) -> str:
    exp = claims.get("exp")
    return when(int(exp * 1000)) if isinstance(exp, (int, float)) else ""


def logout(context: typer.Context) -> None:
    cli = cli_of(context)
    say("logged out" if cli.credentials.forget() else f"not logged in at {cli.url}")


def whoami(context: typer.Context, output: Output = Format.TABLE) -> None:
    with cli_of(context).client() as client:
        emit_one(
            client.whoami(),
            {
                "user": "subject",
                "tenant": "tenant",
                "role": "role",
                "token until": lambda row: when(row.get("expires_ms")),
            },
            output,
        )


def token(
    context: typer.Context,
    session: Annotated[str | None, typer.Option(help="Only for the cluster of this session.")] = None,
    ttl: Annotated[
        int | None, typer.Option(min=10, max=43200, help="Seconds that it lives; by default a working day.")
    ] = None,
) -> None:
    cli = cli_of(context)
    if session is None:
        emit_text(cli.tokens().exchanged(ttl_seconds=ttl) if ttl else cli.token_source().current())
        return
    with cli.client() as client:
        view = client.workload("sessions", session)
    emit_text(cli.tokens().exchanged(cluster=_cluster_of(view), ttl_seconds=ttl))


def env(
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="A session's name; 'default' is made if there is none.")] = "default",
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it runs.")] = 600.0,
    output: Output = Format.TABLE,
) -> None:
    from polyray.cli.follow import wait_for
    from polyray.sdk.environment import as_shell, ray_environment

    cli = cli_of(context)
    with cli.client() as client:
        ref = _session_id(cli, session)
        view = wait_for(client, "sessions", ref, lambda row: row["state"] == "running", timeout_seconds=timeout)
        if view["state"] != "running":
            raise Unavailable(
                f"session {session} ended: {view['state']}, {view['state_reason']}",
                hint=f"see 'polyray why {view['id']}'",
            )
        gateway_url = str(client.status().get("gateway_url") or "")
    cluster = _cluster_of(view)
    path = cli.credentials.save_cluster_token(cluster, cli.tokens().exchanged(cluster=cluster))
    environment = ray_environment(gateway_url, path)
    if output is Format.TABLE:
        emit_text(as_shell(environment))
    else:
        emit_one(environment, {}, output)


def _session_id(cli: Cli, name: str) -> str:
    """Return the id of the live session of that name; `default` is started if there is none."""
    with cli.client() as client:
        found = _live(client, name)
        if found is None and name != "default":
            way_out = f"start it: 'polyray session start {name}'"
            raise PolyrayError(Code.NOT_FOUND, f"there is no live session {name}", way_out, "session")
        if found is None:
            try:
                found = client.submit("sessions", {"kind": "session", "name": name})
            except PolyrayError as error:
                found = _live(client, name) if error.code is Code.CONFLICT else None
                if found is None:  # else another command was faster
                    raise
        return str(found["id"])


def _live(client: PolyrayClient, name: str) -> Json | None:
    try:
        return client.workload("sessions", name)
    except PolyrayError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise


def _cluster_of(view: Json) -> str:
    cluster = view.get("cluster")
    if not cluster:
        raise Unavailable(f"session {view['name']} has no cluster now: it is {view['state']}", hint="try again")
    return str(cluster["id"])
