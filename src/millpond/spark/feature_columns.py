"""The columns of a GroupBy in a DataFrame: checked by name and type, and brought into the plan's order.

Upload and stream take the same DataFrame columns and both begin here, before anything is written. A
column that fits exactly or widens without loss is taken (int for long, float or int for double); any
other is refused with the conversion to write. Double keys lose the sign of their zeros here, as they
do in the encoded key, so that rows that share a key also share a partition.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.errors import DataError
from millpond.features import Field, GroupBy

_WHOLE = ("bigint", "int", "smallint", "tinyint")
_ACCEPTED = {
    "boolean": ("boolean",),
    "double": ("double", "float", *_WHOLE),
    "long": _WHOLE,
    "string": ("string",),
}
_SPARK_TYPES = {"boolean": "boolean", "double": "double", "long": "bigint", "string": "string"}
_TIME_HINT = "times are milliseconds since the epoch, UTC: use unix_millis(column) on a timestamp"


def feature_columns(events: DataFrame, group_by: GroupBy, time_column: str) -> list[Column]:
    """Give the keys, the time and the inputs of a GroupBy as columns of ``events``, in this order.

    They are named ``key_0``, …, ``time_ms``, ``input_0``, …, so that no two can meet: a column may be
    both a key and an input.

    Raises:
        DataError: a column is missing or of another type.
    """
    types = dict(events.dtypes)
    time = Field(time_column, "long")
    _check_column(group_by, types, "time column", time, _TIME_HINT)
    for what, fields in (("key", group_by.keys), ("input", group_by.inputs)):
        for field in fields:
            hint = f'use col("{field.name}").cast("{_SPARK_TYPES[field.type]}")'
            _check_column(group_by, types, what, field, hint)
    return [
        *(_converted(events, field).alias(f"key_{n}") for n, field in enumerate(group_by.keys)),
        _converted(events, time).alias("time_ms"),
        *(_converted(events, field).alias(f"input_{n}") for n, field in enumerate(group_by.inputs)),
    ]


def key_names(group_by: GroupBy) -> list[str]:
    """Give the names under which `feature_columns` gives the keys."""
    return [f"key_{n}" for n in range(len(group_by.keys))]


def rows_of(columns: Iterable[Any], key_width: int) -> Iterable[tuple[tuple[Any, ...], int, tuple[Any, ...]]]:
    """Give (key, time_ms, inputs) for each row of Arrow columns that lie in the order of `feature_columns`."""
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        yield row[:key_width], row[key_width], row[key_width + 1 :]


def _converted(events: DataFrame, field: Field) -> Column:
    column = events[f"`{field.name.replace('`', '``')}`"].cast(_SPARK_TYPES[field.type])
    return column + F.lit(0.0) if field.type == "double" else column


def _check_column(group_by: GroupBy, types: dict[str, str], what: str, field: Field, hint: str) -> None:
    if field.name not in types:
        raise DataError(
            f"GroupBy {group_by.name!r}: {what} {field.name!r} is not among the columns {sorted(types)}; "
            "add it to the DataFrame, or correct its name"
        )
    found, wanted = types[field.name], _SPARK_TYPES[field.type]
    if found not in _ACCEPTED[field.type]:
        raise DataError(
            f"GroupBy {group_by.name!r}: {what} {field.name!r} must be of type {wanted}, got {found}; {hint}"
        )
