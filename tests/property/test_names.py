"""One grammar for every chosen name: T27, C52, C53."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyray.core.errors import Invalid
from polyray.core.ids import parse_display_name, parse_slug, shown, suggest_slug
from polyray.core.layout import Layout
from polyray.core.platform_file import PlatformFile
from polyray.core.spec import parse_workload

NAME = st.one_of(st.text(max_size=300), st.from_regex(r"[a-zA-Z0-9_./%-]{1,80}", fullmatch=True))
SLUG = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)


def is_slug(text: str) -> bool:
    return (
        1 <= len(text) <= 40 and set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and text.strip("-") == text
    )


@given(NAME)
def test_a_name_is_taken_unchanged_or_refused_and_never_cut(name: str) -> None:
    if is_slug(name):
        assert parse_slug(name, field="name") == name
    else:
        with pytest.raises(Invalid) as refused:
            parse_slug(name, field="name")
        assert refused.value.field == "name"


@given(NAME)
def test_a_suggested_name_is_itself_a_name_or_nothing(name: str) -> None:
    suggestion = suggest_slug(name)
    assert suggestion == "" or is_slug(suggestion)


@given(NAME)
def test_every_name_field_of_a_workload_has_the_same_grammar(name: str) -> None:
    job = {"kind": "job", "name": "ok", "run": "true"}
    for field in ("name", "project"):
        if is_slug(name):
            assert getattr(parse_workload({**job, field: name}), field) == name
        else:
            with pytest.raises(Invalid) as refused:
                parse_workload({**job, field: name})
            assert refused.value.field == field
    for field, spec in (
        ("datasets", {**job, "datasets": [f"{name}@1"]}),
        ("model", {"kind": "service", "name": "ok", "app": "a:b", "model": f"{name}@1"}),
    ):
        if is_slug(name):
            parse_workload(spec)
        else:
            with pytest.raises(Invalid) as refused:
                parse_workload(spec)
            assert refused.value.field == field


@given(NAME)
def test_every_name_of_the_platform_file_has_the_same_grammar(name: str) -> None:
    pool = {"provider": "local", "capacity_type": "reserved", "resources": {"cpu": 1}, "usd_per_hour": 1}
    contents: tuple[dict[str, object], ...] = (
        {"tenants": {name: {}}},
        {"users": {name: {"password": "long enough"}}},
        {"operators": [name]},
        {"pools": {name: pool}},
        {"tenants": {"ok": {"members": {name: "admin"}}}},
        {"tenants": {"ok": {"cohort": name}}},
    )
    for content in contents:
        if is_slug(name):
            PlatformFile.model_validate(content)
        else:
            with pytest.raises(Invalid):
                PlatformFile.model_validate(content)


@given(SLUG, SLUG)
def test_two_names_never_share_a_directory(a: str, b: str) -> None:
    layout = Layout(Path("/store"))
    assert (layout.tenant(a) == layout.tenant(b)) == (a == b)
    assert (layout.dataset(a, b, 1) == layout.dataset(b, a, 1)) == (a == b)


@given(NAME)
def test_no_name_leads_out_of_the_store(name: str) -> None:
    layout = Layout(Path("/store"))
    for path in (layout.tenant, lambda n: layout.run("ok", n), lambda n: layout.dataset("ok", n, 1)):
        try:
            made = path(name)
        except ValueError:
            assert not is_slug(name)
        else:
            assert made.is_relative_to("/store/tenants")
            assert ".." not in made.parts
            assert re.fullmatch(r"[a-z0-9-]+", name)


@given(st.text(max_size=150))
def test_a_display_name_is_printable_and_in_one_form_or_refused(text: str) -> None:
    try:
        name = parse_display_name(text, field="display_name")
    except Invalid as refused:
        assert refused.field == "display_name"
    else:
        assert name == unicodedata.normalize("NFC", text).strip()
        assert 1 <= len(name) <= 100
        assert not any(unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" for c in name)
        assert parse_display_name(name, field="display_name") == name


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_whatever_is_shown_is_one_short_line(value: object) -> None:
    assert len(shown(value)) <= 60
    assert shown(value).isprintable()
    assert shown(value).isascii()
