"""What may be asked of the platform: C16, C17, C22, C23, C24 and their kinds."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest

from polyray.core.errors import Invalid
from polyray.core.resources import (
    MAX_SUM,
    Resources,
    format_amount,
    parse_bundle,
    parse_bytes,
    parse_flavor,
    parse_gpu,
    parse_milli,
    total,
)

IMPOSSIBLE_COUNTS: list[object] = [
    -1,
    -0.5,
    1e9,
    10**6 + 1,
    2**63 - 1,
    10**5000,
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    1e-9,
    0.0001,
    1.0005,
    "1",
    "",
    "NaN",
    None,
    [],
    {"h100": 1},
]


@pytest.mark.parametrize("count", IMPOSSIBLE_COUNTS, ids=lambda c: str(type(c).__name__))
@pytest.mark.parametrize("resource", ["cpu", "gpu"])
def test_an_impossible_count_is_refused_naming_its_field(resource: str, count: object) -> None:
    with pytest.raises(Invalid) as refused:
        parse_bundle({resource: count})
    assert refused.value.field == f"resources.{resource}"
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "size",
    [
        0,
        64,
        "64KiB",
        -1,
        2**50 + 1,
        2**63,
        10**5000,
        True,
        1e9,
        1.5,
        "0GiB",
        "-1GiB",
        "64",
        "64 gigs",
        "1.5GiB",
        "1e3MiB",
        "٦٤GiB",
    ],
    ids=lambda s: str(s)[:12] if not isinstance(s, int) or s < 10**20 else "huge",
)
def test_an_impossible_size_is_refused_naming_its_field(size: object) -> None:
    with pytest.raises(Invalid) as refused:
        parse_bundle({"memory": size})
    assert refused.value.field == "resources.memory"


def test_no_cpu_at_all_is_refused() -> None:
    with pytest.raises(Invalid, match=r"resources\.cpu"):
        parse_bundle({"cpu": 0})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2, {"gpu": 2000}),
        (0.5, {"gpu": 500}),
        (0.25, {"gpu": 250}),
        (1.0, {"gpu": 1000}),
        ("h100", {"h100": 1000}),
        ("h100:8", {"h100": 8000}),
        ("h100:0.5", {"h100": 500}),
        ("gpu:2", {"gpu": 2000}),
        (10**6, {"gpu": 10**9}),
        (0, {}),
        ("h100:0", {}),
    ],
)
def test_gpus_are_asked_for_by_count_or_by_type_and_count(given: object, expected: dict[str, int]) -> None:
    assert parse_gpu(given, field="gpu").as_dict() == expected


@pytest.mark.parametrize(
    "given",
    ["H100", "h100:", "h100:-1", "h100:x", "h100:1:2", "h100:1e3", "h100:٣", "cpu:1", "memory:1", ":2", "h 100:1"],
)
def test_a_gpu_request_that_names_nothing_is_refused(given: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_gpu(given, field="resources.gpu")
    assert refused.value.field == "resources.gpu"
    assert refused.value.hint


@pytest.mark.parametrize("given", [1.5, "h100:1.5", 2.001])
def test_one_gpu_and_a_half_is_refused_with_the_nearest_whole_numbers(given: object) -> None:
    with pytest.raises(Invalid, match=r"within one device.*\((1 or 2|2 or 3)\)"):
        parse_gpu(given, field="resources.gpu")


def test_ten_tenths_of_a_device_are_exactly_one_and_an_eleventh_does_not_fit() -> None:
    tenth = parse_gpu(0.1, field="gpu")
    device = parse_gpu(1, field="gpu")
    assert total([tenth] * 10) == device
    assert total([tenth] * 10).fits(device)
    assert not total([tenth] * 11).fits(device)


def test_a_request_for_none_of_an_exhausted_resource_fits() -> None:
    room = Resources(cpu=4000, memory=2**33)
    assert parse_bundle({"cpu": 1, "gpu": 0}).fits(room)
    assert not parse_bundle({"cpu": 1, "gpu": 1}).fits(room)


def test_no_vector_is_negative_not_even_as_part_of_a_sum() -> None:
    with pytest.raises(ValueError, match="negative"):
        Resources(gpu=-3)
    with pytest.raises(ValueError, match="negative"):
        Resources(gpu=1) - Resources(gpu=2)


@pytest.mark.parametrize("amount", [1.0, True, "1", None])
def test_amounts_are_integers(amount: object) -> None:
    with pytest.raises(TypeError, match="gpu"):
        Resources({"gpu": amount})  # type: ignore[dict-item]


def test_two_huge_sums_saturate_and_do_not_wrap() -> None:
    huge = Resources(gpu=2**63 - 1)
    assert (huge + huge)["gpu"] == MAX_SUM
    assert not (huge + huge).fits(Resources(gpu=8000))


def test_every_bundle_has_some_cpu_and_memory_for_its_ray_process() -> None:
    assert parse_bundle({}).as_dict() == {"cpu": 1000, "memory": 2**30}
    assert parse_bundle({"gpu": "h100:8", "cpu": 16, "memory": "64GiB"}).as_dict() == {
        "cpu": 16_000,
        "h100": 8000,
        "memory": 64 * 2**30,
    }


@pytest.mark.parametrize("spec", [None, 3, "cpu", [("cpu", 1)]])
def test_resources_that_are_no_mapping_are_refused(spec: object) -> None:
    with pytest.raises(Invalid, match="resources"):
        parse_bundle(spec)


@pytest.mark.parametrize("key", ["h100", "CPU", "gpus", 1, None])
def test_an_unknown_resource_is_named(key: object) -> None:
    with pytest.raises(Invalid, match="known are cpu, memory and gpu"):
        parse_bundle({key: 1})


@pytest.mark.parametrize(
    ("flavor", "amount", "text"),
    [
        ("cpu", 0, "0"),
        ("cpu", 1, "0.001"),
        ("cpu", 100, "0.1"),
        ("cpu", 1500, "1.5"),
        ("h100", 10_000, "10"),
        ("h100", 100_000, "100"),
        ("memory", 0, "0 B"),
        ("memory", 1023, "1023 B"),
        ("memory", 3 * 2**29, "1536 MiB"),
        ("memory", 64 * 2**30, "64 GiB"),
        ("memory", 2**50, "1024 TiB"),
    ],
)
def test_amounts_are_shown_in_whole_units(flavor: str, amount: int, text: str) -> None:
    assert format_amount(flavor, amount) == text


def test_a_vector_reads_as_a_sentence() -> None:
    assert str(Resources(h100=8000, cpu=500, memory=2**30)) == "cpu 0.5, h100 8, memory 1 GiB"
    assert str(Resources()) == "nothing"


def test_a_vector_is_a_value() -> None:
    vector = Resources(cpu=1000, h100=0)
    assert vector == Resources(cpu=1000)
    assert hash(vector) == hash(Resources(cpu=1000))
    assert pickle.loads(pickle.dumps(vector)) == vector
    assert Resources(vector.as_dict()) == vector
    assert vector != {"cpu": 1000}
    assert "h100" not in vector
    assert vector["h100"] == 0


@pytest.mark.parametrize(
    ("text", "size"), [("1B", 1), ("1kb", 1000), ("1 KiB", 1024), (" 2GiB ", 2**31), ("1PB", None)]
)
def test_sizes_carry_their_unit(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(Invalid, match="such as 64GiB"):
            parse_bytes(text, field="memory")
    else:
        assert parse_bytes(text, field="memory") == size


def test_a_decimal_finer_than_a_thousandth_is_refused_however_fine() -> None:
    for value in (Decimal("1.00000000000000000000000000000000001"), Decimal("1e-400")):
        with pytest.raises(Invalid, match="three decimals"):
            parse_milli(value, field="cpu")


@pytest.mark.parametrize("flavor", ["", "H100", "8h", "a" * 32, "h_100", "h100\n", None, 3])
def test_a_flavor_has_one_grammar(flavor: object) -> None:
    with pytest.raises(Invalid, match="quota"):
        parse_flavor(flavor, field="quota")
