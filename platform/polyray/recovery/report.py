"""What a restore did, and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from polyray.recovery import gap as gaps
from polyray.recovery.gap import Gap, LostEvents
from polyray.recovery.manifest import Manifest


@dataclass(frozen=True)
class Report:
    manifest: Manifest
    #: True if nothing was changed.
    dry_run: bool
    at_ms: int
    lost_events: LostEvents | None
    gap: Gap
    #: What the backup does not know, and was taken over from the replaced database.
    kept: tuple[str, ...]
    #: What an operator must know or do.
    warnings: tuple[str, ...]
    #: Where the replaced database is; empty if there was none.
    replaced: str
    #: Where this report is; empty for a dry run.
    path: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "manifest": self.manifest.model_dump(), "told": self.told()}

    def told(self) -> list[str]:
        """Say what was done and what is lost, in lines."""
        begins = "would go back" if self.dry_run else "went back"
        lines = [f"{begins} to event {self.manifest.last_event_id} of {time_of(self.manifest.made_ms)}"]
        if self.lost_events is not None:
            lines.append(f"lost: {self.lost_events}")
        lines += [*gaps.told(self.gap), *self.kept, *self.warnings]
        return lines


def time_of(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
