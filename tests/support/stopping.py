"""A story in which a client asks its workload to stop, at any moment."""

from __future__ import annotations

from typing import Any

import httpx
from sqlalchemy.pool import QueuePool

from support.stage import Stage, Story


class StopOnStage(Stage):
    """What comes at any moment is a client's stop, and only after it the crash."""

    def __init__(self, story: Story, key: str) -> None:
        super().__init__(story)
        self._key = key
        self._stopped_in = ""
        self._ended_well = False
        self._unlike = 0
        self._asking = False

    def moment(self) -> object:
        """Before the stop no two are alike: what was interrupted goes on with what it has in memory."""
        self._unlike += 1
        return super().moment() if self._stopped_in else self._unlike

    def strikes_here(self, name: str) -> bool:
        """Between two transactions: during one a stop waits, or is not seen, until the next of these points."""
        if self._stopped_in:
            return True
        pool = self.world.store.engine.pool
        assert isinstance(pool, QueuePool)
        return self._key in self.ids and pool.checkedout() == 0 and not self._asking

    def ask(self, method: str, path: str, *, key: str | None = None, who: str = "ada", **sent: Any) -> httpx.Response:
        """Send a request. A stop that comes meanwhile waits for the next point after it."""
        self._asking = True
        try:
            return super().ask(method, path, key=key, who=who, **sent)
        finally:
            self._asking = False

    def strike(self) -> bool:
        if self._stopped_in:
            return super().strike()
        answer = self.ask("POST", f"/v1/jobs/{self.ids[self._key]}/stop")
        assert answer.status_code == 200, answer.text
        self._stopped_in = answer.json()["state"]
        self._ended_well = self.at == len(self.story.steps)
        self.at = len(self.story.steps)
        return True

    def ended(self) -> None:
        """A stop that was acknowledged is kept, but for a program that had ended well by then."""
        if not self._stopped_in:  # where it never came
            super().ended()
            return
        row = self.row(self._key)
        allowed = {"stopped"} | ({"succeeded"} if self._ended_well else set())
        assert row.state in allowed, f"a stop was acknowledged, and it is {row.state} ({row.state_reason})"
        assert (row.retries, self.runs(self._key) <= 1, row.attempt <= 1) == (0, True, True)
