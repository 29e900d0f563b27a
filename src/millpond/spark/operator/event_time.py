"""Event time across a keyed operator: which input column has the watermark, and which output column carries it on.

Spark marks the column with a watermark in the schema's metadata, with the delay. Every stateful operator
looks for that mark in its input. Packed rows hide it. So the output's column gets a mark with the input's
delay when the output is unpacked, and later operators see what they would see after PySpark's own operator.
The watermark itself belongs to the query and passes through.
"""

import re
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from millpond.errors import DataError, OptionError

_MARK = "spark.watermarkDelayMs"
_QUOTED = re.compile(r"`(.*)`")


def event_time_position(df: DataFrame) -> int | None:
    """Return the position of the column that decides which rows are late; None in a batch job, where none are.

    The column is a timestamp or a window. A window is late when its end is.

    Raises:
        OptionError: a stream without a watermark, or with several.
    """
    marked = [position for position, column in enumerate(df.schema) if _is_marked(column)]
    if not df.isStreaming:
        return None
    if len(marked) == 1:
        return marked[0]
    if marked:
        raise OptionError(
            f"timeMode 'EventTime' needs one column with a watermark; the stream has several: "
            f"{[df.columns[position] for position in marked]}. Drop all but one before keyed()."
        )
    raise OptionError(
        "timeMode 'EventTime' needs a watermark on a timestamp column, as in "
        f'df.withWatermark("at", "10 minutes"); the columns are {df.columns}.'
    )


def marked_output(df: DataFrame, output: StructType, column: str) -> tuple[StructType, int]:
    """Return the output's schema with the watermark's mark on a column, and that column's position.

    Raises:
        OptionError: the input has no watermark to hand on.
        DataError: there is no such column, or it is not a timestamp.
    """
    delays = [field.metadata[_MARK] for field in df.schema if _is_marked(field)]
    if not delays or not df.isStreaming:
        raise OptionError(
            f"eventTimeColumnName={column!r} hands the stream's watermark on, and there is none. Define one before "
            'keyed(), as in df.withWatermark("at", "10 minutes"), or leave eventTimeColumnName out.'
        )
    name = _QUOTED.sub(r"\1", column).lower()
    found = [position for position, field in enumerate(output) if field.name.lower() == name]
    if len(found) != 1:
        raise DataError(
            f"eventTimeColumnName={column!r} must name one column of the output; its columns are {output.names}."
        )
    field = output[found[0]]
    if not isinstance(field.dataType, TimestampType):
        raise DataError(
            f"eventTimeColumnName={column!r}: that column is {field.dataType.simpleString()}; event times are "
            "timestamps. Declare it as timestamp in outputStructType."
        )
    fields: list[Any] = list(output)
    metadata = {**field.metadata, _MARK: max(delays)}
    fields[found[0]] = StructField(field.name, field.dataType, field.nullable, metadata)
    return StructType(fields), found[0]


def unmarked(output: StructType) -> StructType:
    """Return the schema without the watermark's mark.

    >>> from pyspark.sql.types import StringType
    >>> unmarked(StructType([StructField("name", StringType(), True, {_MARK: 0, "comment": "mine"})]))[0].metadata
    {'comment': 'mine'}
    """
    kept = [{name: value for name, value in field.metadata.items() if name != _MARK} for field in output]
    pairs = zip(output, kept, strict=True)
    return StructType([StructField(each.name, each.dataType, each.nullable, metadata) for each, metadata in pairs])


def _is_marked(column: StructField) -> bool:
    return _MARK in column.metadata and isinstance(column.dataType, TimestampType | StructType)
