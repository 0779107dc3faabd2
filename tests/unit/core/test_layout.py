from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.core.layout import Layout, parse_sha256

LAYOUT = Layout(Path("/store"))
DIGEST = "0123456789abcdef" * 4


def test_every_artefact_lies_under_its_tenant() -> None:
    run = "/store/tenants/vision/runs/job-0123456789ab"
    assert str(LAYOUT.blob("vision", DIGEST)) == f"/store/tenants/vision/blobs/{DIGEST}"
    assert str(LAYOUT.dataset("vision", "digits", 1)) == "/store/tenants/vision/datasets/digits/1"
    assert str(LAYOUT.model("vision", "digits", 12)) == "/store/tenants/vision/models/digits/12"
    assert str(LAYOUT.run("vision", "job-0123456789ab")) == run
    assert str(LAYOUT.driver_log("vision", "job-0123456789ab")) == f"{run}/logs/driver.log"
    assert str(LAYOUT.records("vision", "job-0123456789ab")) == f"{run}/records.jsonl"


@pytest.mark.parametrize("part", ["", ".", "..", "../x", "a/b", "/etc", "a\0", "A", "a\n"])
def test_a_part_that_was_not_validated_builds_no_path(part: str) -> None:
    with pytest.raises(ValueError, match="validated"):
        LAYOUT.tenant(part)
    with pytest.raises(ValueError, match="validated"):
        LAYOUT.dataset("vision", part, 1)
    with pytest.raises(ValueError, match="validated"):
        LAYOUT.model("vision", part, 1)
    with pytest.raises(ValueError, match="validated"):
        LAYOUT.run("vision", part)


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_counts_from_one(version: int) -> None:
    with pytest.raises(ValueError, match="validated"):
        LAYOUT.dataset("vision", "digits", version)


@pytest.mark.parametrize(
    "digest", ["", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), "../" + DIGEST, DIGEST + "\n", None, 7]
)
def test_a_digest_has_one_spelling(digest: object) -> None:
    with pytest.raises(Invalid) as refused:
        parse_sha256(digest, field="sha256")
    assert refused.value.field == "sha256"
