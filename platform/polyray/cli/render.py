"""Data on standard output as a table, JSON or YAML; chatter and errors on standard error.

What a tenant wrote is shown escaped: no name can move the cursor, colour the screen or turn the text around.
JSON and YAML are pure ASCII for the same reason.
"""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from polyray.core.errors import OUTCOMES, PolyrayError
from polyray.core.money import format_usd
from polyray.core.resources import Resources

Json = dict[str, Any]
Columns = Mapping[str, str | Callable[[Json], object]]

#: Columns of a table that no terminal bounds.
_UNBOUNDED = 100_000

_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[
    Format,
    typer.Option("--output", "-o", envvar="POLYRAY_OUTPUT", show_envvar=False, help="How data is printed."),
]


def safe(text: object, *, keep: str = "") -> str:
    """Return text with everything escaped that a terminal would obey instead of show, but for `keep`."""
    return "".join(
        c if c in keep or unicodedata.category(c) not in _ESCAPED else c.encode("unicode_escape").decode("ascii")
        for c in str(text).encode("utf-8", "backslashreplace").decode()
    )


def say(text: str) -> None:
    """Tell the user something that is no data."""
    print(safe(text, keep="\n"), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    say(f"warning: {text}")


def show_error(error: PolyrayError) -> int:
    """Print an error with its way out; return the exit code."""
    where = f"{error.field}: " if error.field else ""
    say(f"error: {where}{error.message}")
    if error.hint:
        say(f"hint: {error.hint}")
    return OUTCOMES[error.code].exit_code


def emit_list(rows: Sequence[Json], columns: Columns, output: Format, *, empty: str = "nothing") -> None:
    """Print rows. As JSON and YAML they are whole, as a table they have `columns`: title -> key or function."""
    if output is not Format.TABLE:
        _emit_data(list(rows), output)
    elif not rows:
        say(f"({empty})")
    else:
        _table(list(columns), [[_cell(row, column) for column in columns.values()] for row in rows])


def emit_one(row: Json, fields: Columns, output: Format) -> None:
    """Print one thing: as a table a line for each field that there is."""
    if output is not Format.TABLE:
        _emit_data(row, output)
        return
    lines = [(title, _cell(row, field)) for title, field in fields.items()]
    _table(None, [[title, text] for title, text in lines if text])


def emit_text(text: str) -> None:
    """Print data that is text already, as it is."""
    print(text, flush=True)


def when(ms: object) -> str:
    """Return a time (milliseconds since the epoch) in UTC."""
    if not isinstance(ms, int):
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def took(ms: object) -> str:
    """Return a duration in its two largest units."""
    if not isinstance(ms, int) or ms < 0:
        return ""
    seconds = ms // 1000
    for unit, length, part, below in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= length:
            return f"{seconds // length}{unit}{seconds % length // below:02d}{part}"
    return f"{ms / 1000:.1f}s"


def usd(micros: object) -> str:
    return format_usd(micros) if isinstance(micros, int) else ""


def amounts(resources: object) -> str:
    """Return resources (milli-units and bytes) for people."""
    if not isinstance(resources, Mapping):
        return ""
    try:
        return str(Resources({str(k): int(v) for k, v in resources.items()}))
    except (TypeError, ValueError):
        return json.dumps(dict(resources))


def simulated(name: str, row: Mapping[str, Any]) -> str:
    """Return `name`, marked where it is not real."""
    return f"{name} (simulated)" if row.get("simulated") else name


def _cell(row: Json, column: str | Callable[[Json], object]) -> str:
    value = row.get(column) if isinstance(column, str) else column(row)
    return "" if value is None else safe(value)


def _emit_data(data: Any, output: Format) -> None:
    if output is Format.JSON:
        print(json.dumps(data, indent=2), flush=True)
    else:
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=False), end="", flush=True)


def _table(titles: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=titles is not None, header_style="bold", padding=(0, 2, 0, 0))
    for index in range(len(rows[0]) if rows else 0):
        first = titles is None and index == 0
        table.add_column(titles[index] if titles else "", overflow="fold", style="bold" if first else None)
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    if sys.stdout.isatty():
        Console(highlight=False, markup=False, emoji=False).print(table)
        return
    # A pipe has no width: nothing is cut or folded, and no line ends in blanks.
    text = io.StringIO()
    Console(file=text, width=_UNBOUNDED, force_terminal=False, highlight=False, markup=False, emoji=False).print(table)
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()), flush=True)
