"""The environment that makes stock Ray speak to a platform's session: `ray.init()`, `ray job submit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from polyray.sdk.transport import checked_url


def ray_environment(gateway_url: str, token_path: Path) -> dict[str, str]:
    """Return what `polyray env` prints. The token itself is in the file, never in the environment.

    Jobs need their own address: with `RAY_ADDRESS=ray://...` alone, `ray job submit` asks the head's internal one.
    """
    url = checked_url(gateway_url, field="gateway_url")
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return {
        "RAY_ADDRESS": f"ray://{host}:{port}",
        "RAY_API_SERVER_ADDRESS": f"{parts.scheme}://{host}:{port}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path),
    }


def as_shell(environment: dict[str, str]) -> str:
    """Return lines for `eval`."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
