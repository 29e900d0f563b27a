"""The initial state of a keyed operator: rows for `handleInitialState` in the first batch.

It is given as in PySpark, `initial.groupBy("user")`. It is packed like the stream's rows and passes through
Spark's own operator. So it comes only in the first batch of a new checkpoint, and again if that batch runs
again.
"""

from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millpond.errors import DataError, OptionError
from millpond.spark.operator.key_columns import KeyColumns, key_columns, quoted
from millpond.spark.spec.operator import InitialRows


def initial_columns(initial: GroupedData, keys: StructType) -> KeyColumns:
    """Return the initial state's DataFrame with its key columns. They must have the operator's types, in its order.

    Raises:
        OptionError: it is not a grouped batch DataFrame.
        DataError: it is grouped by other columns, or by columns of other types.
    """
    # Spark Connect's grouped data is another class, with the same two names.
    df = getattr(initial, "_df", None)
    if not isinstance(df, DataFrame) or not hasattr(initial, "agg"):
        raise OptionError(
            f"initialState is a {type(initial).__name__}; expected a grouped DataFrame, as in "
            f"initialState=initial.groupBy({', '.join(map(repr, keys.names))})."
        )
    if df.isStreaming:
        raise OptionError("initialState is a stream; it is read once, in the first batch. Give a batch DataFrame.")
    columns = key_columns(df, [quoted(name) for name in _grouping_names(initial)])
    if _kinds(columns.schema) != _kinds(keys):
        raise DataError(
            f"initialState is grouped by [{_described(columns.schema)}], the stream is keyed by [{_described(keys)}]; "
            "their types must be the same, in the same order. Cast the initial state's columns."
        )
    return columns


def initial_rows(initial: GroupedData, columns: KeyColumns) -> InitialRows:
    """Return the layout of an initial state's rows."""
    return InitialRows(columns.positions, tuple(initial._df.columns))  # noqa: SLF001 - no public way leads there


def _grouping_names(initial: GroupedData) -> list[str]:
    """Return the names of the grouping columns, which begin the columns of any aggregation."""
    names: list[str] = initial.agg(F.count(F.lit(1))).columns[:-1]
    return names


def _kinds(schema: StructType) -> list[Any]:
    return [field.dataType for field in schema]


def _described(schema: StructType) -> str:
    return ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in schema)
