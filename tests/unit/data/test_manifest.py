from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from polyray.core.errors import Invalid
from polyray.data.manifest import Column, DataFile, DataLineage, Manifest, Stage, load_manifest, parse_manifest

DIGITS = Manifest(
    name="digits",
    stage=Stage.RAW,
    columns=(Column("pixels", "fixed_size_list<item: float>[64]", True), Column("digit", "int64", False)),
    files=(DataFile("part-00000.parquet", "a" * 64, 1234, 10, 1), DataFile("part-00001.parquet", "b" * 64, 99, 0, 0)),
    lineage=DataLineage(job="job-000000000001", code="c" * 64, parents=("scans@3",)),
    arrow_schema="aGk=",
)


def test_a_manifest_survives_its_own_json() -> None:
    assert load_manifest(DIGITS.canonical()) == DIGITS


def test_the_digest_does_not_depend_on_the_order_of_keys_or_on_spaces() -> None:
    shuffled = json.dumps(dict(reversed(DIGITS.as_dict().items())), indent=3)
    assert load_manifest(shuffled.encode()).digest == DIGITS.digest


def test_reading_a_manifest_loads_no_arrow() -> None:
    code = "import sys, polyray.data.manifest; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _set(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_set("name", to="Digits"), "name"),
        (_set("name", to="../digits"), "name"),
        (_set("stage", to="approved"), "stage"),
        (_set("format", to="pickle"), "format"),
        (_set("manifest", to=2), "manifest"),
        (_set("rows", to=11), "rows"),
        (_set("rows", to=True), "rows"),
        (_set("extra", to=1), "manifest"),
        (_set("schema", to=[]), "schema"),
        (_set("schema", 1, "name", to="pixels"), "schema"),
        (_set("schema", 0, "nullable", to="yes"), "schema[0].nullable"),
        (_set("schema", 0, "name", to="a\u202eb"), "schema[0].name"),
        (_set("files", to=[]), "files"),
        (_set("files", 0, "name", to="../../etc/passwd"), "files[0].name"),
        (_set("files", 0, "name", to=".hidden"), "files[0].name"),
        (_set("files", 1, "name", to="part-00000.parquet"), "files"),
        (_set("files", 0, "sha256", to="A" * 64), "files[0].sha256"),
        (_set("files", 0, "size_bytes", to=0), "files[0].size_bytes"),
        (_set("files", 0, "rows", to=-1), "files[0].rows"),
        (_set("files", 0, "rows", to=2**60), "files[0].rows"),
        (_set("files", 0, "rows", to=1.0), "files[0].rows"),
        (_set("lineage", "job", to="digits"), "lineage.job"),
        (_set("lineage", "parents", to=["digits"]), "lineage.parents"),
        (_set("arrow_schema", to="not base64!"), "arrow_schema"),
        (_set("files", to="all"), "files"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(change: Callable[[Any], None], field: str) -> None:
    document = copy.deepcopy(DIGITS.as_dict())
    change(document)
    with pytest.raises(Invalid) as refused:
        parse_manifest(document)
    assert refused.value.field == field


@pytest.mark.parametrize("content", [b"", b"[", b"null", b"[" * 100_000, b"{}", b'{"manifest": NaN}'])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(Invalid):
        load_manifest(content)


def test_a_stage_of_approved_says_who_approves() -> None:
    with pytest.raises(Invalid, match="somebody else"):
        parse_manifest({**DIGITS.as_dict(), "stage": "approved"})
