"""The pandas form: PySpark's `transformWithStateInPandas`, whose processors get and yield DataFrames.

Making a DataFrame costs more than most of what users do with one. So the rows of a key group become one frame,
sorted by key, and each key gets a slice of its blocks: a separate frame, over memory that no other key's frame
shows. The output is concatenated column by column and converted to Arrow once for each key group.

Both conversions are PySpark's own, with its session's settings. So types, time zones and coercions are the
same. PySpark makes a key's frame from the values of its rows: integers of any width become int64, floats become
float64, and a column whose name is not a Python name gets its position as a name, such as `_2`. This module
does the same.
"""

from collections import namedtuple
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millpond.errors import DataError
from millpond.spark.environment.versions import from_pandas, to_pandas
from millpond.spark.forms.grouping import grouped
from millpond.spark.forms.handles import key_row_maker
from millpond.spark.forms.rows import refuse_nulls
from millpond.spark.spec.operator import OperatorSpec, PandasSettings
from millpond.state.types.rows import Row, grouping_values

# pandas itself makes a slice's frame with the first, and reads a column's plain values with the second. Both are
# missing from its stubs.
_frame_of: Any = pd.DataFrame._from_mgr  # type: ignore[attr-defined]  # noqa: SLF001
_column_array: Any = pd.DataFrame._get_column_array  # type: ignore[attr-defined]  # noqa: SLF001
_NO_LIMIT = 2**31 - 1


class PandasObjects:
    """`KeyObjects` of DataFrames."""

    expected = "an iterator of DataFrames"

    def __init__(self, spec: OperatorSpec) -> None:
        self._settings = spec.pandas
        self._key_positions = list(spec.key_positions)
        self._width = len(spec.row_names)
        self._output = OutputFrames(spec.output_schema, spec.pandas)
        self._labels: pd.Index[str] | None = None
        self.key = key_row_maker(spec.key_schema)

    def grouped(self, rows: pa.Table) -> Iterator[tuple[Row, Row, Iterator[pd.DataFrame]]]:
        """Yield keys with all their rows, in the order in which the keys first appear."""
        grouping = grouped(rows.select(self._key_positions))
        order, ends = grouping.by_key()
        if not grouping.distinct:
            rows = rows.take(order)
        ends_of_keys = ends.tolist()
        starts = [0, *ends_of_keys[:-1]]
        key_columns = [rows.column(at).take(pa.array(starts)) for at in self._key_positions]
        keys = zip(*(grouping_values(column) for column in key_columns), strict=True)
        series = _as_series(rows, self._settings)
        users_keys = zip(*(series[at].iloc[starts] for at in self._key_positions), strict=True)
        frames = self._frames(series, starts, ends_of_keys)
        most = self._most_rows(rows)
        for key, users_key, frame in zip(keys, users_keys, frames, strict=True):
            yield key, users_key, iter((frame,)) if len(frame) <= most else _cut(frame, most)

    def _most_rows(self, rows: pa.Table) -> int:
        """Return the most rows of a frame: Spark's limit in rows, or in bytes by the mean size of these rows."""
        most: int = self._settings.max_rows if self._settings.max_rows > 0 else _NO_LIMIT
        if self._settings.max_bytes >= _NO_LIMIT or not rows.num_rows:
            return most
        count: int = rows.num_rows
        shown_bytes: int = rows.select(list(range(self._width))).nbytes
        return min(most, -(-self._settings.max_bytes * count // max(1, shown_bytes)))

    def _frames(self, series: list["pd.Series[Any]"], starts: list[int], ends: list[int]) -> Iterator[pd.DataFrame]:
        """Yield a frame for each key, like the one that PySpark makes from the values of the key's rows."""
        labels = self._named(series)
        shown = series[: self._width]
        if any(_differs_by_rows(column) for column in shown):
            whole = pd.concat(shown, axis=1)
            rows = list(whole.itertuples(index=False, name=None))
            for start, end in zip(starts, ends, strict=True):
                yield pd.DataFrame(rows[start:end], columns=labels.copy())
            return
        columns = {at: _as_inferred(column) for at, column in enumerate(shown)}
        # Copy once: memory from Arrow is read-only, and user code may write to its frames.
        blocks = pd.DataFrame(columns, copy=True)._mgr  # noqa: SLF001 - slicing a frame itself costs several times this
        for start, end in zip(starts, ends, strict=True):
            part = blocks.get_slice(slice(start, end), axis=1)
            part.axes = [labels.view(), pd.RangeIndex(end - start)]
            yield _frame_of(part, axes=part.axes)

    def _named(self, series: list["pd.Series[Any]"]) -> "pd.Index[str]":
        """Return the columns' labels. PySpark's rows are named tuples of the key's columns and then the others."""
        if self._labels is None:
            hidden_or_other = [at for at in range(len(series)) if at not in self._key_positions]
            order = list(dict.fromkeys([*self._key_positions, *hidden_or_other]))
            names = _fields_of(namedtuple("Rows", [str(series[at].name) for at in order], rename=True))  # noqa: PYI024
            by_place = dict(zip(order, names, strict=True))
            self._labels = pd.Index([by_place[at] for at in range(self._width)], dtype=object)
        return self._labels

    def table(self, output: list[Any]) -> pa.Table:
        """Convert the frames to one table."""
        return self._output.table(output)


def _fields_of(rows: Any) -> tuple[str, ...]:
    fields: tuple[str, ...] = rows._fields
    return fields


class OutputFrames:
    """Converts the DataFrames that user code yields to Arrow, with PySpark's results, but many at once."""

    def __init__(self, schema: pa.Schema, settings: PandasSettings) -> None:
        self._schema = schema
        self._settings = settings
        self._spark_schema: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        self._names = list(schema.names)

    def table(self, frames: list[Any]) -> pa.Table:
        """Convert the frames to one table. A DataError names the column and the value that does not fit."""
        if not frames:
            return self._schema.empty_table()
        runs = [list(run) for _, run in groupby(map(self._columns, frames), key=_types)]
        return pa.concat_tables([self._run(run) for run in runs]).combine_chunks()

    def _columns(self, frame: Any) -> list[Any]:
        """Return the frame's values for each output column: by name, or by position if no label is a string."""
        if not isinstance(frame, pd.DataFrame):
            raise DataError(
                f"the processor gave {type(frame).__name__} {frame!r}; expected a pandas.DataFrame with the columns "
                f"{self._names}."
            )
        labels = frame.columns.tolist()
        if labels == self._names:
            places: Any = range(len(labels))
        elif not labels:
            return [np.full(len(frame), None)] * len(self._names)
        elif self._settings.columns_by_name and any(isinstance(label, str) for label in labels):
            missing = [name for name in self._names if name not in labels]
            if missing:
                raise DataError(
                    f"the processor gave a DataFrame with the columns {labels}; expected {self._names}: {missing} "
                    "are missing. Name them so, or give all columns numbers to have them taken by their place."
                )
            places = [labels.index(name) for name in self._names]
        elif len(labels) < len(self._names):
            raise DataError(
                f"the processor gave a DataFrame with {len(labels)} columns; expected {len(self._names)}, as in "
                f"{self._names}."
            )
        else:
            places = range(len(self._names))
        return [_column_array(frame, place) for place in places]

    def _run(self, run: list[list[Any]]) -> pa.Table:
        """Convert frames of the same types at once. If that fails, convert each alone, since some may fit so."""
        joined = [_joined([columns[at] for columns in run]) for at in range(len(self._names))]
        try:
            return self._converted(joined)
        except PySparkException:
            return pa.concat_tables(map(self._alone, run))

    def _alone(self, columns: list[Any]) -> pa.Table:
        try:
            return self._converted(columns)
        except PySparkException as error:
            for field, values in zip(self._schema, columns, strict=True):
                self._check(field, values, error)
            raise

    def _check(self, field: pa.Field, values: Any, error: Exception) -> None:
        schema: StructType = StructType([self._spark_schema[field.name]])
        for value in pd.Series(values):
            try:
                self._as_arrow([pd.Series([value], dtype=values.dtype)], schema)
            except PySparkException:
                raise DataError(
                    f"output column {field.name!r} is {field.type}, the processor gave {type(value).__name__} "
                    f"{value!r} in a column of {values.dtype}. Convert it, or declare the column with a type that "
                    "holds it."
                ) from error

    def _converted(self, columns: list[Any]) -> pa.Table:
        arrays = self._as_arrow([pd.Series(values) for values in columns], self._spark_schema)
        for array, field in zip(arrays.columns, self._schema, strict=True):
            refuse_nulls(array, field)
        return pa.Table.from_batches([arrays]).cast(self._schema)

    def _as_arrow(self, columns: list["pd.Series[Any]"], schema: StructType) -> pa.RecordBatch:
        settings = self._settings
        return from_pandas(
            columns, schema, settings.timezone, safe=settings.safe, int_to_decimal=settings.int_to_decimal
        )


def _types(columns: list[Any]) -> list[Any]:
    return [values.dtype for values in columns]


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)


def _as_series(rows: pa.Table, settings: PandasSettings) -> list["pd.Series[Any]"]:
    """Convert the columns to pandas as PySpark does, with times in the session's zone."""
    local = pa.schema([_in_zone(field, settings.timezone) for field in rows.schema])
    one_chunk = rows.cast(local).combine_chunks()
    return to_pandas(one_chunk, settings.timezone, nullable_integers=settings.nullable_integers)


def _in_zone(field: pa.Field, zone: str) -> pa.Field:
    aware = pa.types.is_timestamp(field.type) and field.type.tz is not None
    return field.with_type(pa.timestamp(field.type.unit, tz=zone)) if aware else field


def _differs_by_rows(column: "pd.Series[Any]") -> bool:
    """Whether pandas may infer another type from a part of the column's values than from all of them."""
    if isinstance(column.dtype, pd.api.extensions.ExtensionDtype):
        return True
    if column.dtype.kind == "m":
        return bool(column.isna().any())
    return column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) == "boolean"


def _as_inferred(column: "pd.Series[Any]") -> Any:
    """Return the column in the type that pandas infers from Python values, as in a frame made of rows."""
    if column.dtype.kind in "iu":
        return column.to_numpy(dtype=np.int64)
    if column.dtype.kind == "f":
        return column.to_numpy(dtype=np.float64)
    return column.to_numpy()


def _cut(frame: pd.DataFrame, most: int) -> Iterator[pd.DataFrame]:
    """Cut a key's rows into frames of at most `most` rows."""
    for start in range(0, len(frame), most):
        yield frame.iloc[start : start + most].reset_index(drop=True)
