"""Names that people choose (slugs) and ids that the platform makes.

A tenant's slug is at most 40 characters and an id is a kind, a dash and 12 characters, so that every
name built from them stays below 63 characters (a DNS label) without being cut.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from decimal import Decimal

from polyray.core.errors import Invalid

#: The one grammar of chosen names. Upper case is refused, not folded: `A` and `a` must not be two names.
SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
ID = re.compile(r"[a-z]{3}-[0-9a-z]{12}")

#: Crockford's alphabet in lower case: no i, l, o, u, so that an id can be read out loud.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
#: Unicode categories: control, format (bidi marks are), surrogate, private, unassigned, line and paragraph separator.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

KINDS = {
    "job": "job",
    "session": "ses",
    "service": "svc",
    "cluster": "clu",
    "lease": "lea",
    "node": "nod",
    "sid": "sid",
    "key": "key",
    "run": "run",
    "request": "req",
}


def new_id(kind: str) -> str:
    """Return a fresh id such as `job-7k2m9q4v8x0c` (60 random bits)."""
    return f"{KINDS[kind]}-" + "".join(secrets.choice(_ALPHABET) for _ in range(12))


def is_id(text: str) -> bool:
    return ID.fullmatch(text) is not None


def parse_slug(text: object, *, field: str) -> str:
    """Return `text` if it is a slug.

    Raises:
        Invalid: naming `field`, the grammar and, where there is one, the nearest slug.
    """
    if isinstance(text, str) and SLUG.fullmatch(text):
        return text
    nearest = suggest_slug(text) if isinstance(text, str) else ""
    raise Invalid(
        f"{shown(text)} is not a valid name",
        field=field,
        hint="1 to 40 of a-z, 0-9 and '-', neither first nor last a dash" + (f"; try '{nearest}'" if nearest else ""),
    )


def suggest_slug(text: str) -> str:
    """Return the slug nearest to `text`, or an empty string where nothing of it can be kept."""
    ascii_text = unicodedata.normalize("NFKD", text[:200]).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text.lower()).strip("-")[:40].rstrip("-")


def parse_display_name(text: object, *, field: str) -> str:
    """Return a free display name: 1 to 100 printable characters, in NFC, without control or bidi marks."""
    if not isinstance(text, str):
        raise Invalid("a display name is text", field=field)
    name = unicodedata.normalize("NFC", text).strip()
    if not 1 <= len(name) <= 100 or any(unicodedata.category(c) in _UNPRINTABLE for c in name):
        raise Invalid(
            f"{shown(text)} is not a display name",
            field=field,
            hint="1 to 100 printable characters, no control or direction marks",
        )
    return name


def shown(value: object) -> str:
    """Return `value` as it may be put in a message: bounded, escaped, on one line, however large it is."""
    match value:
        case str():
            text = ascii(value[:61])
        # The digits of a huge integer take long to write, and Python refuses beyond some thousands.
        case int() if abs(value) >= 10**40:
            text = "an integer of more than 40 digits"
        case bool() | int() | float() | Decimal() | None:
            text = ascii(value)
        case _:
            text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
