"""The clients of the built-in issuer: programs that people may log in with."""

from __future__ import annotations

from dataclasses import dataclass

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
REFRESH_TOKEN = "refresh_token"  # noqa: S105 (the name of a grant)


@dataclass(frozen=True)
class Client:
    """A public client: it has no secret, so it may only do what a person at its side approves."""

    client_id: str
    #: Shown to the person who is asked to approve.
    name: str
    grants: tuple[str, ...] = (DEVICE_CODE, REFRESH_TOKEN)


CLI = Client("polyray-cli", "Polyray command line")
