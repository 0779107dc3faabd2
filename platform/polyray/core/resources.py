"""Integer resource vectors.

Quota counts flavors: `cpu` and GPU types (`h100`, `a10`, ...) in milli-units, `memory` in bytes. There
is no float in here: 10 x 0.1 of a device is exactly one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import cast

from polyray.core.errors import Invalid
from polyray.core.ids import shown

#: Whole units. Nobody owns a million GPUs, and sums of bounded numbers cannot wrap in the database.
MAX_UNITS = 10**6
MAX_MILLI = MAX_UNITS * 1000
MAX_BYTES = 2**50
MAX_SUM = 2**62
MIN_BUNDLE_BYTES = 2**20
THOUSANDTH = Decimal("0.001")

CPU = "cpu"
MEMORY = "memory"
#: The flavor of a GPU whose type does not matter to the request.
ANY_GPU = "gpu"

_FLAVOR = re.compile(r"[a-z][a-z0-9-]{0,30}")
_BYTES = re.compile(r"([0-9]{1,16})\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", re.IGNORECASE | re.ASCII)
_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


class Resources(Mapping[str, int]):
    """An immutable vector flavor -> amount (milli-units; bytes for `memory`). Absent means 0; never negative."""

    __slots__ = ("_amounts",)

    def __init__(self, amounts: Mapping[str, int] | None = None, /, **more: int) -> None:
        merged = {**(amounts or {}), **more}
        for flavor, amount in merged.items():
            if isinstance(amount, bool) or not isinstance(amount, int):
                raise TypeError(f"{flavor}: amounts are integers, not {amount!r}")
            if amount < 0:
                raise ValueError(f"{flavor}: {amount} is negative")
        self._amounts = {flavor: merged[flavor] for flavor in sorted(merged) if merged[flavor]}

    def __getitem__(self, flavor: str) -> int:
        return self._amounts.get(flavor, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __contains__(self, flavor: object) -> bool:
        return flavor in self._amounts

    def __hash__(self) -> int:
        return hash(tuple(self._amounts.items()))

    def __eq__(self, other: object) -> bool:
        return self._amounts == other._amounts if isinstance(other, Resources) else NotImplemented

    def __repr__(self) -> str:
        return f"Resources({self._amounts})"

    def __str__(self) -> str:
        return ", ".join(f"{flavor} {format_amount(flavor, n)}" for flavor, n in self._amounts.items()) or "nothing"

    def __add__(self, other: Resources) -> Resources:
        """Return the sum, saturating at `MAX_SUM`."""
        flavors = {*self._amounts, *other._amounts}
        return Resources({f: min(self[f] + other[f], MAX_SUM) for f in flavors})

    def __sub__(self, other: Resources) -> Resources:
        """Return the difference.

        Raises:
            ValueError: if a flavor would fall below zero.
        """
        return Resources({f: self[f] - other[f] for f in {*self._amounts, *other._amounts}})

    def times(self, count: int) -> Resources:
        """Return so many of it, saturating at `MAX_SUM`."""
        return Resources({f: min(amount * count, MAX_SUM) for f, amount in self._amounts.items()})

    def minus_clamped(self, other: Resources) -> Resources:
        """Return the difference, each flavor at least 0."""
        return Resources({f: max(self[f] - other[f], 0) for f in self._amounts})

    def fits(self, room: Resources) -> bool:
        """Return whether every flavor of self is there in `room`. Asking 0 of an exhausted flavor fits."""
        return all(amount <= room[flavor] for flavor, amount in self._amounts.items())

    def lacking(self, room: Resources) -> Resources:
        """Return what `room` is short of for self to fit."""
        return self.minus_clamped(room)

    def as_dict(self) -> dict[str, int]:
        return dict(self._amounts)


def total(vectors: Iterable[Resources]) -> Resources:
    result = Resources()
    for vector in vectors:
        result = result + vector
    return result


def is_gpu(flavor: str) -> bool:
    return flavor not in {CPU, MEMORY}


def format_amount(flavor: str, amount: int) -> str:
    if flavor == MEMORY:
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            if amount and amount % _BYTE_UNITS[unit.lower()] == 0:
                return f"{amount // _BYTE_UNITS[unit.lower()]} {unit}"
        return f"{amount} B"
    return f"{Decimal(amount) / 1000:f}".rstrip("0").rstrip(".") if amount % 1000 else str(amount // 1000)


def parse_milli(value: object, *, field: str) -> int:
    """Return a count (`2`, `0.5`) in milli-units.

    Raises:
        Invalid: for text, booleans, NaN, infinities, negatives, more than three decimals, or over 10^6.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Invalid(f"{shown(value)} is not a number", field=field, hint="write a plain number, such as 2 or 0.5")
    # str() gives a float the decimals that its author wrote; an integer may be too long for str().
    exact = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if not exact.is_finite():
        raise Invalid(f"{shown(value)} is not a finite number", field=field, hint="write a plain number, such as 2")
    if exact < 0:
        raise Invalid(f"{shown(value)} is negative", field=field, hint="ask for 0 or more")
    if exact > MAX_UNITS:
        raise Invalid(f"{shown(value)} is more than {MAX_UNITS}", field=field, hint=f"at most {MAX_UNITS}")
    if exact != exact.quantize(THOUSANDTH):
        raise Invalid(
            f"{shown(value)} has more than three decimals", field=field, hint="thousandths are the smallest unit"
        )
    return int(exact * 1000)


def parse_bytes(value: object, *, field: str) -> int:
    """Return a size (`"64GiB"`, or an integer of bytes) in bytes.

    Raises:
        Invalid: for anything else, 0, or more than 2^50 bytes (1 PiB).
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _BYTES.fullmatch(value.strip())):
        size = int(match[1]) * _BYTE_UNITS[match[2].lower()]
    else:
        raise Invalid(f"{shown(value)} is not a size", field=field, hint="write a size with its unit, such as 64GiB")
    if not 0 < size <= MAX_BYTES:
        raise Invalid(f"{shown(value)} is out of range", field=field, hint="from 1 byte to 1 PiB")
    return size


def parse_gpu(value: object, *, field: str) -> Resources:
    """Return the GPUs of one bundle from `8`, `0.5`, `"h100"` or `"h100:8"`.

    A part of a GPU lives within one device, so a fraction is less than 1 and anything above is whole.
    """
    flavor, count = ANY_GPU, value
    if isinstance(value, str):
        name, colon, number = value.partition(":")
        if not _FLAVOR.fullmatch(name) or name in {CPU, MEMORY}:
            raise Invalid(
                f"{shown(value)} does not name GPUs",
                field=field,
                hint="write a count (2) or a type and a count (h100:8)",
            )
        flavor = name
        if colon and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,12})?", number):
            raise Invalid(f"{shown(number)} is not a number of GPUs", field=field, hint="write h100:8")
        count = Decimal(number) if colon else 1
    milli = parse_milli(count, field=field)
    if milli > 1000 and milli % 1000:
        below, above = milli // 1000, milli // 1000 + 1
        raise Invalid(
            f"{shown(value)}: a part of a GPU lives within one device",
            field=field,
            hint=f"ask for less than 1, or for a whole number ({below} or {above})",
        )
    return Resources({flavor: milli})


def parse_flavor(text: object, *, field: str) -> str:
    if isinstance(text, str) and _FLAVOR.fullmatch(text):
        return text
    raise Invalid(f"{shown(text)} is not a flavor", field=field, hint="such as cpu, memory, h100")


def parse_bundle(spec: object, *, field: str = "resources", defaults: Resources | None = None) -> Resources:
    """Return one bundle from `{gpu: h100:8, cpu: 16, memory: 64GiB}`.

    Every bundle runs a Ray process and so needs some cpu and memory; what is absent comes from `defaults`.
    """
    if not isinstance(spec, Mapping):
        raise Invalid("resources are a mapping", field=field, hint="write {cpu: 4, memory: 8GiB, gpu: h100:1}")
    given = cast(Mapping[object, object], spec)
    if unknown := [key for key in given if key not in {CPU, MEMORY, "gpu"}]:
        raise Invalid(f"unknown resource {shown(unknown[0])}", field=field, hint="known are cpu, memory and gpu")
    parts = (defaults or Resources(cpu=1000, memory=2**30)).as_dict()
    if CPU in given:
        parts[CPU] = parse_milli(given[CPU], field=f"{field}.cpu")
        if parts[CPU] == 0:
            raise Invalid("0 cpu cannot run anything", field=f"{field}.cpu", hint="ask for at least 0.1")
    if MEMORY in given:
        parts[MEMORY] = parse_bytes(given[MEMORY], field=f"{field}.memory")
        if parts[MEMORY] < MIN_BUNDLE_BYTES:  # a forgotten unit, most likely
            raise Invalid(
                f"{shown(given[MEMORY])} is too little to run anything",
                field=f"{field}.memory",
                hint="write a size with its unit, such as 64GiB; at least 1MiB",
            )
    if "gpu" in given:
        parts.update(parse_gpu(given["gpu"], field=f"{field}.gpu").as_dict())
    return Resources(parts)
