"""Which names this API answers to.

A page in a user's browser can make its own name resolve to 127.0.0.1; its requests then carry that name in
`Host`. So only loopback addresses, `localhost` and the configured names are answered.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(:\d{1,5})?")


def host_allowed(header: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header names this machine's loopback, or one of `names` (lower case)."""
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    host = match[1].strip("[]").lower()
    if host == "localhost" or host in names:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
