from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.errors import Invalid
from polyray.core.platform_file import load_platform_file
from polyray.core.spec import load_workload
from polyray.core.yaml_text import MAX_CHARACTERS, load_yaml

BILLION_LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)

HOSTILE = {
    "billion laughs": BILLION_LAUGHS + "kind: *a11\nname: *a11\n",
    "quadratic blow-up": "a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 40_000 + "]",
    "an alias to itself": "&a [*a]",
    "a merge of aliases": "a: &a {b: 1}\nc: {<<: *a}",
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep lists that never end": "[" * 200_000,
    "deep mappings": "{a: " * 50_000 + "1" + "}" * 50_000,
    "too long": "#" * (MAX_CHARACTERS + 1),
    "an integer of many digits": "a: " + "9" * 100_000,
    "a lone surrogate": "a: \ud800",
    "a python object": "a: !!python/object/apply:os.system [id]",
    "two documents": "a: 1\n---\nb: 2",
    "a NUL": "a: \0",
    "a tab for indentation": "a:\n\tb: 1",
    "an unclosed quote": "a: 'b",
    "a key that is a list": "? [a]\n: 1",
    "a key twice": "a: 1\nb: 2\na: 3",
    "a key twice, deeper": "a: {b: 1, b: 2}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.timeout(20)
def test_a_hostile_text_is_refused_before_it_costs_anything(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_yaml(text)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.timeout(20)
def test_the_files_of_users_and_operators_are_read_with_the_same_care(text: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        load_workload(text)
    file = tmp_path / "platform.yaml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(Invalid) as refused:
        load_platform_file(file)
    assert refused.value.field in {str(file), "a", "b"}


def test_plain_values_come_out_as_they_were_written() -> None:
    assert load_yaml("a: [1, 0.5, true, null, text]\nb: {c: .inf}") == {
        "a": [1, 0.5, True, None, "text"],
        "b": {"c": float("inf")},
    }
    assert load_yaml("") is None


@pytest.mark.parametrize(
    "word", ["on", "off", "yes", "no", "y", "12:30", "1:30.5", "2024-01-01", "1_000", "010", "0b1", "="]
)
def test_a_word_that_older_yaml_made_something_else_of_is_text(word: str) -> None:
    assert load_yaml(f"{word}: {word}") == {word: word}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("0x1F", 31),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-.inf", float("-inf")),
        ("~", None),
        ("null", None),
        ("", None),
        ("true", True),
        ("FALSE", False),
    ],
)
def test_numbers_truth_and_nothing_are_read_as_such(text: str, value: object) -> None:
    read = load_yaml(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


def test_a_key_that_is_written_twice_is_named() -> None:
    with pytest.raises(Invalid, match="run: the key is written twice"):
        load_yaml("run: a\nname: b\nrun: c")
