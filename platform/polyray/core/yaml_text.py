"""Reading YAML that a stranger wrote: bounded in size, depth and repetition, and strict about keys.

A short text with aliases can stand for billions of values, deep nesting ends in the interpreter's own
limits, and of two equal keys YAML silently keeps the last. All three are refused. Plain words are read as
YAML 1.2 reads them: `on`, `no` and `12:30` are text, not true, false and 750.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from polyray.core.errors import Invalid
from polyray.core.ids import shown

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 32


#: Tag, grammar and first characters of what is not text when it stands without quotes.
_PLAIN = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as in its base

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else key_node
            if key in seen:
                raise Invalid("the key is written twice", field=str(key_node.value), hint="remove one of the two")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


for _tag, _grammar, _first in _PLAIN:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_grammar})$"), ["" if c == "\0" else c for c in _first]
    )


def load_yaml(text: str, *, field: str = "") -> Any:
    """Return the one document of `text` as plain values.

    Raises:
        Invalid: naming `field` (a file's path, or nothing), for text that is not YAML, is too long or too
            deep, or uses aliases or tags of other types; naming the key, for a key that is written twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise Invalid(f"{len(text)} characters", field=field, hint=f"at most {MAX_CHARACTERS}")
    try:
        _check_events(text, field)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise Invalid(f"not YAML: {error}", field=field) from error
    # Out of a constructor: an integer of thousands of digits, a lone surrogate.
    except (ValueError, OverflowError) as error:
        raise Invalid(f"a value cannot be read: {shown(str(error))}", field=field) from error


def _check_events(text: str, field: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise Invalid(f"it uses the alias *{event.anchor}", field=field, hint="write the value out instead")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise Invalid("nested too deep", field=field, hint=f"at most {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
