"""Which Arrow types become tensors, and how.

| Arrow | numpy and torch |
|---|---|
| int8 to int64, uint8 to uint64, float16, float32, float64 | the same type, `(N,)`, no copy |
| bool | bool, `(N,)`, unpacked from bits |
| fixed_size_list<T>[k], nested too | T, `(N, k)`, no copy |
| everything else, and columns with nulls | refused before the first batch, by name and type; `as_="arrow"` takes all |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from polyray.core.errors import Invalid

_REMEDIES = (
    (types.is_dictionary, "map its values to numbers when publishing"),
    (lambda t: types.is_string(t) or types.is_large_string(t), "encode the text as numbers when publishing"),
    (lambda t: types.is_binary(t) or types.is_large_binary(t), "decode the bytes when publishing"),
    (types.is_decimal, "cast it to float64 when publishing"),
    (types.is_temporal, "cast it to int64 when publishing"),
    (
        lambda t: types.is_list(t) or types.is_large_list(t),
        "pad it to one length and publish it as fixed_size_list",
    ),
    (types.is_struct, "publish its fields as columns of their own"),
    (types.is_null, "it has no values; leave it out"),
)


def check_tensors(schema: pa.Schema) -> None:
    """Refuse a schema that has a column without a tensor type.

    Raises:
        Invalid: naming every such column, its type, and the remedy for the first.
    """
    bad = [field for field in schema if shape_of(field.type) is None]
    if not bad:
        return
    named = ", ".join(f"{field.name} ({field.type})" for field in bad[:10])
    remedy = next((text for applies, text in _REMEDIES if applies(bad[0].type)), "cast it when publishing")
    raise Invalid(
        f"no tensor holds {named}",
        field=f"columns.{bad[0].name}",
        hint=f"{remedy}; or read other columns with columns=[...], or all types with as_='arrow'",
    )


def check_no_nulls(column: str, nulls: int) -> None:
    if nulls:
        raise Invalid(
            f"{nulls} values are null, and a tensor has no null",
            field=f"columns.{column}",
            hint="fill them when publishing; or leave the column out, or read with as_='arrow'",
        )


def shape_of(dtype: pa.DataType) -> tuple[int, ...] | None:
    """Return the shape of one row's value; None for a type that no tensor holds."""
    if types.is_fixed_size_list(dtype):
        inner = shape_of(dtype.value_type)
        return None if inner is None or types.is_boolean(dtype.value_type) else (dtype.list_size, *inner)
    numeric = types.is_integer(dtype) or types.is_floating(dtype) or types.is_boolean(dtype)
    return () if numeric else None


def null_count(array: pa.Array) -> int:
    """Return the nulls of an array, those inside fixed-size lists included."""
    if types.is_fixed_size_list(array.type):
        return int(array.null_count) + null_count(array.flatten())
    return int(array.null_count)


def as_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Return a view `(N, *shape)` of an array that `check_tensors` let pass; only booleans are copied."""
    shape = shape_of(array.type)
    assert shape is not None, array.type
    values = array
    while types.is_fixed_size_list(values.type):
        values = values.flatten()
    flat: npt.NDArray[Any] = values.to_numpy(zero_copy_only=not types.is_boolean(values.type))
    return flat.reshape((len(array), *shape)) if shape else flat


def as_torch(array: npt.NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


def empty(dtype: pa.DataType, rows: int) -> npt.NDArray[Any]:
    """Return room for `rows` values of a type that `check_tensors` let pass."""
    shape = shape_of(dtype)
    assert shape is not None, dtype
    while types.is_fixed_size_list(dtype):
        dtype = dtype.value_type
    return np.empty((rows, *shape), dtype.to_pandas_dtype())
