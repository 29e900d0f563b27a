"""The key columns of a keyed operator: found by Spark's own rules, and checked to be usable as keys.

A key is named as in `df.groupBy(...)`. Spark itself resolves the name, since letter case, backticks and parts
of a struct follow its rules. A key that is a column is used where it is. Any other key (a part of a struct,
an expression) is computed once into a column behind the user's columns, which user code does not see.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.errors import DataError
from millpond.suggestions import did_you_mean

_COMPUTED = "__millpond_key_"
_PLAIN_NAME = re.compile(r"[^`.]+|`(?:[^`]|``)+`")
_KINDS = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
_BINARY_COLLATION = "UTF8_BINARY"


@dataclass(frozen=True)
class KeyColumns:
    """A DataFrame in which every key is a column.

    Attributes:
        data: the DataFrame; its last columns may be computed keys.
        positions: the positions of the keys.
        schema: the schema of the keys, named as Spark names them.
    """

    data: DataFrame
    positions: tuple[int, ...]
    schema: StructType


def key_columns(df: DataFrame, keys: Sequence[str | Column]) -> KeyColumns:
    """Find the keys in a DataFrame.

    Raises:
        DataError: a key is missing, is ambiguous, or has a type that cannot be a key.
    """
    data, positions, fields = df, [], []
    for key in keys:
        field = _resolved(df, key)
        position = _own_column(df, key)
        if position is None:
            position = len(data.columns)
            data = data.withColumn(f"{_COMPUTED}{position}", key if isinstance(key, Column) else F.col(key))
        positions.append(position)
        fields.append(field)
    return KeyColumns(data, tuple(positions), StructType(fields))


def quoted(name: str) -> str:
    """Quote a column's name, so that Spark reads it as one name with any characters in it.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`{}`".format(name.replace("`", "``"))


def _resolved(df: DataFrame, key: Any) -> StructField:
    if not isinstance(key, str | Column):
        raise DataError(f"a key is {type(key).__name__} {key!r}; expected the name of a column, or a Column.")
    try:
        field: StructField = df.select(key).schema[0]
    except AnalysisException as error:
        raise _unclear(df, key) from error
    kind = field.dataType
    if not isinstance(kind, _KINDS):
        raise DataError(
            f"key column {field.name!r} is {kind.simpleString()}; keys are atomic, of a type that Python has: "
            "numbers, texts, bytes, booleans, dates, times and day-time intervals. Key by its parts, each a column, or "
            "by its text."
        )
    if _is_collated(kind):
        raise DataError(
            f"key column {field.name!r} has the collation {kind.collation}, under which different texts are one key; "
            "PySpark's stateful operators refuse that too. Key by a text in which equal is the same, such as "
            f"lower({field.name})."
        )
    return field


def _is_collated(kind: DataType) -> bool:
    return isinstance(kind, StringType) and getattr(kind, "collation", _BINARY_COLLATION) != _BINARY_COLLATION


def _own_column(df: DataFrame, key: str | Column) -> int | None:
    """Return the position of the column that a plain name means; None for a key that is more than a name."""
    if isinstance(key, Column) or not _PLAIN_NAME.fullmatch(key):
        return None
    name = key[1:-1].replace("``", "`") if key.startswith("`") else key
    columns: list[str] = df.columns
    if name in columns:
        return columns.index(name)
    # Spark resolved the name, so at most one column has it in any letter case.
    for at, column in enumerate(columns):
        if column.lower() == name.lower():
            return at
    # Spark resolved the name to a function without parentheses, such as `user` or `current_date`.
    raise _unclear(df, key)


def _unclear(df: DataFrame, key: Any) -> DataError:
    columns: list[str] = df.columns
    if not isinstance(key, str):
        return DataError(f"key column {key!r} is not in the DataFrame, or not clearly so; its columns are {columns}.")
    name = key.strip("`").lower()
    same = [column for column in columns if column.lower() == name]
    if len(same) > 1:
        return DataError(
            f"key column {key!r} is ambiguous: the DataFrame has the columns {same}. Rename all but one of them."
        )
    if same and not _PLAIN_NAME.fullmatch(key):
        return DataError(
            f"key column {key!r} is not in the DataFrame: Spark reads dots and backticks in a name as syntax. The "
            f"column of that name is written {quoted(key)!r}."
        )
    meant = did_you_mean(name, columns) or "."
    return DataError(f"key column {key!r} is not in the DataFrame; its columns are {columns}{meant}")
