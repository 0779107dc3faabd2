"""Server-sent events: parsing the stream, and going on where it broke."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """One event; `data` is its decoded JSON, `id` where to go on after it (as `Last-Event-ID`)."""

    name: str
    data: Any
    id: str = ""


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a stream, given as lines without their ends. One cut off in the middle is dropped."""
    data: list[str] = []
    name = identity = ""
    for line in lines:
        if not line:
            if data:
                yield Event(name or "message", json.loads("\n".join(data)), identity)
            name, data = "", []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            name = value
        elif key == "data":
            data.append(value)
        elif key == "id":
            identity = value
