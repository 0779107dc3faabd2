"""What lies between a backup and now: pure comparisons of what two databases and the store directory know."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: So many names of a kind are told; all are counted.
MAX_TOLD = 1000

#: (tenant, name, version) of a dataset or a model.
Version = tuple[str, str, int]


@dataclass(frozen=True)
class Known:
    """What a database knows."""

    #: Workload -> whether it has ended.
    workloads: Mapping[str, bool] = field(default_factory=dict)
    datasets: frozenset[Version] = frozenset()
    models: frozenset[Version] = frozenset()
    keys: frozenset[str] = frozenset()
    sessions: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Files:
    """What the store directory holds: runs as (tenant, workload), and versions."""

    runs: frozenset[tuple[str, str]] = frozenset()
    datasets: frozenset[Version] = frozenset()
    models: frozenset[Version] = frozenset()
    #: Versions of the database whose files are not all there.
    spoilt_datasets: frozenset[Version] = frozenset()
    spoilt_models: frozenset[Version] = frozenset()


@dataclass(frozen=True)
class Names:
    """Some things: all of them counted, and as many named as one reads."""

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Gap:
    """Of the restored database: what it does not know any more, and what it believes that is not so any more."""

    #: Known to the replaced database alone; None where that could not be read.
    lost: Mapping[str, Names] | None
    #: Ended since the backup: they are looked for, and those that ran are tried again.
    ended_since: Names | None
    #: In the store directory without a row.
    files_without_rows: Mapping[str, Names]
    #: Rows whose files are not there, or not all.
    rows_without_files: Mapping[str, Names]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LostEvents:
    """A range of event ids, both included, that no database has any more."""

    first: int
    last: int

    @property
    def entity_id(self) -> str:
        return f"{self.first}-{self.last}"

    def __str__(self) -> str:
        return f"event {self.first}" if self.first == self.last else f"events {self.first} to {self.last}"


def compare(restored: Known, replaced: Known | None, files: Files) -> Gap:
    """Return what the restored database lacks, or has too much."""
    known_runs = set(restored.workloads)
    return Gap(
        lost=None
        if replaced is None
        else {
            "workloads": names(set(replaced.workloads) - set(restored.workloads)),
            "datasets": versions(replaced.datasets - restored.datasets),
            "models": versions(replaced.models - restored.models),
            "keys": names(replaced.keys - restored.keys),
            "login sessions": names(replaced.sessions - restored.sessions),
            "nodes": names(replaced.nodes - restored.nodes),
            "users": names(replaced.users - restored.users),
            "tenants": names(replaced.tenants - restored.tenants),
        },
        ended_since=None
        if replaced is None
        else names({w for w, ended in replaced.workloads.items() if ended and restored.workloads.get(w) is False}),
        files_without_rows={
            "runs": names(f"{tenant}/{workload}" for tenant, workload in files.runs if workload not in known_runs),
            "datasets": versions(files.datasets - restored.datasets),
            "models": versions(files.models - restored.models),
        },
        rows_without_files={
            "datasets": versions(files.spoilt_datasets),
            "models": versions(files.spoilt_models),
        },
    )


def lost_events(restored: int, seen: Collection[int]) -> LostEvents | None:
    """Return the events after `restored`, up to the last that was seen anywhere; None if there was none."""
    last = max(seen, default=0)
    return LostEvents(restored + 1, last) if last > restored else None


def names(given: Any) -> Names:
    found = sorted(given)
    return Names(len(found), tuple(found[:MAX_TOLD]))


def versions(given: Collection[Version]) -> Names:
    found = sorted(given)
    return Names(len(found), tuple(f"{tenant}/{name}@{version}" for tenant, name, version in found[:MAX_TOLD]))


def told(gap: Gap) -> list[str]:
    """Say it in lines; what is nothing is not said."""
    lines = []
    if gap.lost is None:
        lines.append("what was made since cannot be named: the replaced database was not there, or cannot be read")
    for kind, found in (gap.lost or {}).items():
        lines += _line(f"lost {kind}", found)
    if gap.ended_since is not None:
        lines += _line("workloads that ended since and are not known to have", gap.ended_since)
    for kind, found in gap.files_without_rows.items():
        lines += _line(f"{kind} in the store that no row knows", found)
    for kind, found in gap.rows_without_files.items():
        lines += _line(f"{kind} whose files are not in the store", found)
    return lines


def _line(what: str, found: Names) -> list[str]:
    if not found.count:
        return []
    more = f", and {found.count - 5} more" if found.count > 5 else ""
    return [f"{what}: {found.count} ({', '.join(found.names[:5])}{more})"]
