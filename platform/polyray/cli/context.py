"""What a command works with: settings, the platform's address, the login. Made when first asked for."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from polyray.core.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polyray.core.settings import Settings
    from polyray.sdk.client import PolyrayClient
    from polyray.sdk.credentials import Credentials
    from polyray.sdk.login import LoginTokens
    from polyray.sdk.transport import TokenSource
    from polyray.supervise.local import Local


@dataclass
class Cli:
    #: Flags before the command; None where not given.
    api_url: str | None = None
    tenant: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Settings:
        from polyray.core.settings import load_settings

        return load_settings(**self.flags)

    @property
    def local(self) -> Local:
        """The platform of this machine's state directory."""
        from polyray.supervise.local import Local

        return Local(self.settings)

    @cached_property
    def url(self) -> str:
        """The API's address: flag, `POLYRAY_API_URL`, or the platform on this machine."""
        from polyray.sdk.transport import checked_url

        return checked_url(self.api_url or self.local.api_url, field="api_url")

    @cached_property
    def credentials(self) -> Credentials:
        from polyray.core.settings import config_dir
        from polyray.sdk.credentials import Credentials

        return Credentials(config_dir(), self.url)

    def tokens(self) -> LoginTokens:
        from polyray.sdk.login import LoginTokens

        return LoginTokens(self.credentials, tenant=self.tenant or "")

    def token_source(self) -> TokenSource:
        """There are two cases: a machine has a token in a file (`POLYRAY_TOKEN_PATH`), a person has a login."""
        path = os.environ.get("POLYRAY_TOKEN_PATH")
        if not path:
            return self.tokens()
        from polyray.sdk.transport import FixedToken

        try:
            return FixedToken(Path(path).read_text().strip())
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"cannot read it: {error}", field="POLYRAY_TOKEN_PATH") from error

    def require_running(self) -> None:
        """Say at once that there is nothing to speak to, where that can be known: on this machine.

        Raises:
            Unavailable
        """
        if self.api_url is not None:
            return
        if self.local.is_cut_off:
            told = "the platform was killed: neither its server runs nor what starts it again"
            raise Unavailable(told, hint="'polyray up' goes on where it was, 'polyray down' ends what is left of it")
        if self.local.endpoints:
            return
        if self.local.supervisor:
            raise Unavailable("the platform is starting", hint="wait for it with 'polyray up'")
        raise Unavailable("no platform runs here", hint="start one with 'polyray up', or name one with POLYRAY_API_URL")

    @contextmanager
    def client(self) -> Iterator[PolyrayClient]:
        from polyray.sdk.client import PolyrayClient

        self.require_running()
        with PolyrayClient(self.url, self.token_source()) as client:
            yield client


def cli_of(context: typer.Context) -> Cli:
    return cast(Cli, context.find_object(Cli))
