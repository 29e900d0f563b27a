"""Converts Arrow columns to the Python values that rows are made of.

It differs from Arrow's own `to_pylist` where state needs it: every NaN is one object, so that tuples that hold it are
equal keys; structs are tuples, at every depth; and timestamps are converted fast.
"""

import datetime as dt
from typing import Any

import pyarrow as pa

NAN = float("nan")
"""The object that every NaN becomes."""

UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})
"""Time zones in which no hour is missing or occurs twice."""


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column's values as Arrow's `to_pylist` does, except that every NaN is the same object.

    One NaN object makes tuples that hold it equal keys. Timestamps, for which `to_pylist` is slow, are computed by
    adding a time difference to an epoch.
    """
    if pa.types.is_timestamp(column.type) and column.type.unit == "us" and column.type.tz:
        return _aware_datetimes(column)
    # With `maps_as_pydicts`, Arrow makes a scalar of each value first, at ten times the cost, even of numbers.
    nested = pa.types.is_nested(column.type)
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict") if nested else column.to_pylist()
    if pa.types.is_floating(column.type):
        return [NAN if value != value else value for value in values]  # noqa: PLR0124
    return values


def _aware_datetimes(column: pa.Array | pa.ChunkedArray) -> list[dt.datetime | None]:
    zone = pa.lib.string_to_tzinfo(column.type.tz)
    epoch = dt.datetime(1970, 1, 1, tzinfo=zone)
    since_epoch = column.cast(pa.int64()).cast(pa.duration("us")).to_numpy(zero_copy_only=False).tolist()
    # The sum is the UTC time labelled with the zone, which is what `fromutc` expects.
    if column.type.tz in UTC_NAMES:
        return [None if difference is None else epoch + difference for difference in since_epoch]
    return [None if difference is None else zone.fromutc(epoch + difference) for difference in since_epoch]


def needs_rebuilding(kind: pa.DataType) -> bool:
    """Return whether `rebuilt` would change values of the type."""
    if pa.types.is_struct(kind):
        return True
    if pa.types.is_list(kind):
        return needs_rebuilding(kind.value_type)
    return bool(pa.types.is_map(kind)) and needs_rebuilding(kind.item_type)


def rebuilt(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its structs as tuples, at every depth. Arrow returns them as dicts."""
    if value is None or not needs_rebuilding(kind):
        return value
    if pa.types.is_struct(kind):
        return tuple(rebuilt(value[field.name], field.type) for field in kind)
    if pa.types.is_list(kind):
        return [rebuilt(item, kind.value_type) for item in value]
    return {key: rebuilt(item, kind.item_type) for key, item in value.items()}


def encodes(text: str) -> bool:
    """Return whether a text is valid Unicode: half of a surrogate pair, which `json.loads` may return, is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
