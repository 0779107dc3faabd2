"""Names people choose: T27, C52, C53."""

from __future__ import annotations

from decimal import Decimal

import pytest

from polyray.core.errors import Invalid
from polyray.core.ids import KINDS, is_id, new_id, parse_display_name, parse_slug, shown

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\\b",
    "Foo\\bar",
    "a@b.c",
    "a b",
    "A",
    "ünï",
    "CON",
    "-a",
    "a-",
    "-",
    "a\n",
    "\na",
    "a\0b",
    "%2e",
    "a%b",
    "a_b",
    "а",  # Cyrillic
    "e\u0301",
    "é",
    "a\u202eb",
    "１",
    "a" * 41,
    "a" * 63,
    "a" * 64,
    "a" * 200,
    "a" * 255,
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused_naming_its_field_and_never_repaired(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_slug(name, field="tenant")
    assert refused.value.field == "tenant"
    assert "a-z, 0-9" in refused.value.hint
    assert str(refused.value).isascii()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [None, 1, True, 1.5, b"a", ["a"], {"a": 1}])
def test_a_name_that_is_not_text_is_refused(name: object) -> None:
    with pytest.raises(Invalid, match="tenant"):
        parse_slug(name, field="tenant")


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "vision", "xn--n-sfa", "a" * 40])
def test_a_slug_is_taken_as_it_is(name: str) -> None:
    assert parse_slug(name, field="tenant") == name


def test_a_refused_name_comes_with_the_nearest_slug() -> None:
    with pytest.raises(Invalid, match="try 'uni-lab'"):
        parse_slug("Ünï Lab", field="tenant")


def test_every_kind_of_thing_has_ids_of_its_own() -> None:
    assert len(set(KINDS.values())) == len(KINDS)
    for kind, prefix in KINDS.items():
        made = new_id(kind)
        assert made.startswith(f"{prefix}-")
        assert is_id(made)
        assert len(made) == 16


def test_ten_thousand_ids_are_all_different() -> None:
    assert len({new_id("job") for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    "name",
    [
        "a\u202eb",  # right-to-left override
        "a\u2066b",  # left-to-right isolate
        "a\u200bb",  # zero-width space
        "a\x00b",
        "a\nb",
        "a\x1b[31mb",
        "a\u2028b",
        "a\u2029b",
        "\ud800",
        "\ue000",
        "",
        "   ",
        "a" * 101,
        None,
        7,
    ],
    ids=ascii,
)
def test_a_display_name_that_could_deceive_is_refused(name: object) -> None:
    with pytest.raises(Invalid) as refused:
        parse_display_name(name, field="display_name")
    assert refused.value.field == "display_name"
    assert str(refused.value).isascii()


def test_a_display_name_may_be_in_any_script_and_is_kept_in_one_form() -> None:
    assert parse_display_name("  Équipe Vision 視覚 ", field="display_name") == "Équipe Vision 視覚"
    assert parse_display_name("e\u0301", field="display_name") == "é"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("é\n", "'\\xe9\\n'"),
        (1.5, "1.5"),
        (True, "True"),
        (None, "None"),
        (Decimal("1.5"), "Decimal('1.5')"),
        (10**5000, "an integer of more than 40 digits"),
        (-(10**5000), "an integer of more than 40 digits"),
        ([1], "a list"),
        ({"a": 1}, "a dict"),
    ],
    ids=lambda v: ascii(v)[:20] if not isinstance(v, int) else "int",
)
def test_a_value_is_shown_escaped_and_bounded(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_shown_shortened_and_says_so() -> None:
    assert shown("a" * 10**6) == "'" + "a" * 56 + "..."
