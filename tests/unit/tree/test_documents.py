"""What the documents say is what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyray.core.errors import OUTCOMES, Invalid
from polyray.core.platform_file import load_platform_file
from polyray.core.spec import WorkloadSpec, load_workload

REPOSITORY = Path(__file__).parents[3]
DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
WORKLOADS = (REPOSITORY / "docs" / "workload.md").read_text()


def workload_blocks() -> Iterator[str]:
    for document in DOCUMENTS:
        for block in re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL):
            if block.startswith("kind:"):
                yield block
    for example in sorted((REPOSITORY / "examples").glob("*/*.yaml")):
        if re.search(r"^kind:", example.read_text(), re.MULTILINE):
            yield example.read_text()


@pytest.mark.parametrize("text", list(workload_blocks()))
def test_every_workload_that_is_shown_is_accepted(text: str) -> None:
    load_workload(text)


def test_the_example_of_a_platform_is_accepted() -> None:
    assert load_platform_file(REPOSITORY / "examples/demo/platform.yaml").tenants


def test_every_key_of_a_workload_is_described_and_no_other() -> None:
    table = WORKLOADS.split("## What each key means")[1].split("**Amounts.**")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(WorkloadSpec.model_fields)


REFUSALS = re.findall(r"^\| `(.+?)` \| `(.+)` \|$", WORKLOADS.split("## What a refusal looks like")[1], re.MULTILINE)


@pytest.mark.parametrize(("given", "answer"), REFUSALS, ids=[given for given, _ in REFUSALS])
def test_every_refusal_that_is_shown_reads_so(given: str, answer: str) -> None:
    key = given.split(":")[0]
    rest = [line for line in ("kind: job", "name: a", "run: 'true'") if not line.startswith(f"{key}:")]
    with pytest.raises(Invalid) as refused:
        load_workload("\n".join([*rest, given]))
    assert str(refused.value) == answer


def test_the_refusals_are_found() -> None:
    assert len(REFUSALS) >= 10


def test_the_exit_codes_of_the_readme_are_those_of_the_table() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", (REPOSITORY / "README.md").read_text(), re.MULTILINE)}
    assert {outcome.exit_code for outcome in OUTCOMES.values()} <= told


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_repository_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / link).exists(), link
