"""A log as server-sent events, while it is written.

Events: `log` with a JSON string of one or more whole lines (its id is where to read on: send it back as
`Last-Event-ID` after a break), `progress` with the line that is not complete yet (a progress bar), and
`end` with the workload's last state. A comment every few seconds keeps proxies from closing the stream.
Whoever loses the right to read loses the stream too, within `CHECK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from polyray.api.lines import Lines
from polyray.api.run_log import Piece
from polyray.core.errors import Code, PolyrayError

CHUNK_BYTES = 256 * 2**10
#: Characters of a line that is not complete yet.
MAX_PROGRESS = 1000
POLL_SECONDS = 0.25
#: How often the right to read and the workload's state are looked at again.
CHECK_SECONDS = 2.0
QUIET_SECONDS = 15.0
#: Streams that one tenant may have open at once.
MAX_FOLLOWERS = 50


@dataclass(frozen=True)
class Source:
    """What a follower reads from. `read(offset, limit)` gives a piece; `check()` gives (state, ended) or raises."""

    read: Callable[[int, int], Piece]
    check: Callable[[], tuple[str, bool]]


class Followers:
    """Counts open streams by tenant, so that one tenant's cannot use up the server. For one event loop."""

    def __init__(self, limit: int = MAX_FOLLOWERS) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    async def admit(self, tenant: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what `stream` yields; one `error` event instead if the tenant has too many open."""
        if self._open[tenant] >= self._limit:
            yield event("error", {"code": Code.RATE_LIMITED.value, "detail": f"{self._limit} streams are open already"})
            return
        self._open[tenant] += 1
        try:
            async for item in stream:
                yield item
        finally:
            self._open[tenant] -= 1


async def follow(source: Source, offset: int) -> AsyncIterator[bytes]:
    """Yield events from `offset` on until the workload has ended and its log is read to the end."""
    lines, start, told = Lines(), offset, ""
    loop = asyncio.get_running_loop()
    state, ended = await run_in_threadpool(source.check)
    checked = spoke = loop.time()
    yield b": open\n\n"
    while True:
        # The state is looked at before the last read: what was written before the end is not missed.
        if loop.time() - checked >= CHECK_SECONDS:
            try:
                state, ended = await run_in_threadpool(source.check)
            except PolyrayError as error:
                yield event("error", {"code": error.code.value, "detail": error.message})
                return
            checked = loop.time()
        piece = await run_in_threadpool(source.read, start + lines.fed_bytes, CHUNK_BYTES)
        if piece.cut:
            told_lines = [*lines.flush(), piece.data.decode().strip()]
            yield event("log", "".join(f"{line}\n" for line in told_lines), identity=piece.next_offset)
            lines, start, told, spoke = Lines(), piece.next_offset, "", loop.time()
            continue
        data = piece.data
        whole = lines.feed(data)
        if whole:
            yield event("log", "".join(f"{line}\n" for line in whole), identity=start + lines.complete_bytes)
            told, spoke = "", loop.time()
        elif 0 < len(data) < CHUNK_BYTES and (partial := lines.partial()[:MAX_PROGRESS]) != told:
            yield event("progress", partial)
            told, spoke = partial, loop.time()
        if data:
            continue
        if ended:
            if last := lines.flush():
                yield event("log", "\n".join(last), identity=start + lines.complete_bytes)
            yield event("end", {"state": state})
            return
        if loop.time() - spoke >= QUIET_SECONDS:
            yield b": quiet\n\n"
            spoke = loop.time()
        await asyncio.sleep(POLL_SECONDS)


def event(name: str, content: object, *, identity: int | None = None) -> bytes:
    """Return one event; its data is one line of JSON in ASCII, so that no byte of a log can end or forge an event."""
    place = "" if identity is None else f"id: {identity}\n"
    return f"{place}event: {name}\ndata: {json.dumps(content)}\n\n".encode("ascii")
