from __future__ import annotations

import json
from typing import Any

import pytest

from polyray.core.errors import Conflict, Invalid, PolyrayError
from polyray.recovery.gap import MAX_TOLD, Files, Known, LostEvents, compare, lost_events, told
from polyray.recovery.manifest import Manifest, Member, check_rows, parse_manifest

MANIFEST = Manifest(
    polyray="0.1.0",
    schema_revision="0002",
    source="sqlite",
    made_ms=1,
    last_event_id=7,
    last_chain="0" * 64,
    rows={"workloads": 2},
    members={"database.sqlite": Member(sha256="a" * 64, size_bytes=5)},
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert parse_manifest(MANIFEST.as_bytes(), known_revisions=["0002", "0001"]) == MANIFEST


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 2}, Conflict),
        ({"format": 2, "unheard": "of"}, Conflict),
        ({"schema_revision": "0003"}, Conflict),
        ({"format": "1"}, Invalid),
        ({"unheard": "of"}, Invalid),
        ({"last_event_id": -1}, Invalid),
        ({"last_chain": "x"}, Invalid),
        ({"members": {}}, Invalid),
        ({"members": {"database.sqlite": {"sha256": "a" * 64, "size_bytes": 1}, "/etc/passwd": None}}, Invalid),
        ({"rows": {"workloads": "2"}}, Invalid),
    ],
)
def test_a_manifest_that_is_not_understood_is_refused_with_a_way_out(
    changes: dict[str, Any], error: type[PolyrayError]
) -> None:
    content = json.dumps({**MANIFEST.model_dump(), **changes}).encode()
    with pytest.raises(error) as refused:
        parse_manifest(content, known_revisions=["0002"])
    assert refused.value.hint


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b"{", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(Invalid):
        parse_manifest(content, known_revisions=["0002"])


def test_a_table_that_lacks_rows_or_has_too_many_is_named() -> None:
    check_rows(MANIFEST, {"workloads": 2, "leases": 0})
    for found in ({"workloads": 1}, {"workloads": 2, "leases": 3}, {}):
        with pytest.raises(Invalid, match="workloads" if found.get("workloads") != 2 else "leases"):
            check_rows(MANIFEST, found)


def test_the_gap_is_what_one_knows_and_the_other_does_not() -> None:
    restored = Known(workloads={"job-a": False, "job-b": False, "job-c": True}, keys=frozenset({"key-a"}))
    replaced = Known(
        workloads={"job-a": True, "job-b": False, "job-c": True, "job-d": False},
        keys=frozenset({"key-a", "key-b"}),
        models=frozenset({("vision", "net", 3)}),
    )
    files = Files(
        runs=frozenset({("vision", "job-a"), ("vision", "job-e")}),
        models=frozenset({("vision", "net", 3)}),
        spoilt_datasets=frozenset({("vision", "digits", 1)}),
    )
    gap = compare(restored, replaced, files)
    assert gap.lost is not None
    assert {kind: found.names for kind, found in gap.lost.items() if found.count} == {
        "workloads": ("job-d",),
        "keys": ("key-b",),
        "models": ("vision/net@3",),
    }
    assert gap.ended_since is not None
    assert gap.ended_since.names == ("job-a",)
    assert gap.files_without_rows["runs"].names == ("vision/job-e",)
    assert gap.files_without_rows["models"].names == ("vision/net@3",)
    assert gap.rows_without_files["datasets"].names == ("vision/digits@1",)
    assert "lost workloads: 1 (job-d)" in told(gap)


def test_without_the_replaced_database_the_gap_says_that_it_is_not_known() -> None:
    gap = compare(Known(workloads={"job-a": False}), None, Files())
    assert gap.lost is None
    assert gap.ended_since is None
    assert told(gap) == ["what was made since cannot be named: the replaced database was not there, or cannot be read"]


def test_a_large_gap_is_counted_whole_and_named_in_part() -> None:
    many = Known(workloads={f"job-{n:05}": False for n in range(MAX_TOLD + 500)})
    gap = compare(Known(), many, Files())
    assert gap.lost is not None
    assert (gap.lost["workloads"].count, len(gap.lost["workloads"].names)) == (MAX_TOLD + 500, MAX_TOLD)
    (line,) = told(gap)
    assert line.endswith("job-00004, and 1495 more)")


@pytest.mark.parametrize(
    ("seen", "lost"),
    [([], None), ([5], None), ([7], None), ([8], LostEvents(8, 8)), ([900, 812], LostEvents(8, 900))],
)
def test_the_lost_events_go_from_the_backups_last_to_the_last_that_was_seen(
    seen: list[int], lost: LostEvents | None
) -> None:
    assert lost_events(7, seen) == lost
