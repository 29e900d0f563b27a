"""Make `Row`s for user code, and convert its `Row`s to Arrow. These two steps decide the speed of the row form.

Building a `Row` with its constructor costs more than everything else about it. Here one `map` over the zipped
columns makes the rows, of a class that is derived from PySpark's `Row` once per schema. The class holds the
field names, and its fields are descriptors in C instead of a search through the names. The rows are still
`Row`s: they compare, sort, pickle and print alike.
"""

import datetime as dt
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Row
from pyspark.sql.types import StructType

from millpond.errors import DataError
from millpond.spark.environment.versions import to_arrow_type
from millpond.state.types.arrow_values import python_values
from millpond.state.types.rows import MISFITS, loses


def row_maker(names: Sequence[str]) -> Callable[[tuple[Any, ...]], Row]:
    """Return a function that makes a `Row` with these names from a tuple.

    >>> make = row_maker(["user", "amount"])
    >>> make(("ann", 3)).amount, make(("ann", 3))
    (3, Row(user='ann', amount=3))
    """
    # The fields of a named tuple are descriptors written in C that read any tuple. They are reused here.
    # Keep the class, not its `vars`: without the class the cycle collector would empty them.
    field_at = partial(getattr, namedtuple("Fields", [f"at_{position}" for position in range(len(names))]))  # noqa: PYI024
    attributes: dict[str, Any] = {"__fields__": list(names)}
    for position, name in reversed(list(enumerate(names))):
        # On any Row, names like `count` are the methods of tuple, and stay so.
        if not hasattr(Row, name):
            attributes[name] = field_at(f"at_{position}")
    return partial(tuple.__new__, type("Row", (Row,), attributes))


def rows_of(table: pa.Table, width: int, make: Callable[[tuple[Any, ...]], Row]) -> Iterator[Row]:
    """Yield the first `width` columns of a table as rows."""
    return map(make, zip(*(_values(table.column(at)) for at in range(width)), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as in PySpark's rows: structs are dictionaries, and maps are lists of pairs."""
    values: list[Any] = column.to_pylist() if _holds_maps(column.type) else python_values(column)
    return values


def _holds_maps(kind: pa.DataType) -> bool:
    children = (kind.field(at).type for at in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return pa.types.is_map(kind) or any(map(_holds_maps, children))


def output_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of what a processor yields. A DataError names a column whose type cannot be yielded."""
    fields = []
    for field in schema:
        try:
            kind = to_arrow_type(field.dataType)
        except PySparkTypeError as error:
            raise DataError(
                f"output column {field.name!r} is {field.dataType.simpleString()}, which Spark does not take from "
                "Python; PySpark's own operator fails on it too. Declare it with another type, and cast it afterwards."
            ) from error
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def refuse_nulls(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> None:
    """Raise a DataError for an output column that is declared as not null and has nulls."""
    if array.null_count and not field.nullable:
        raise DataError(
            f"output column {field.name!r} is declared as not null, and the processor gave None there, or left the "
            "field out. Give a value, or drop NOT NULL."
        )


class OutputColumns:
    """Converts the rows that user code yields to Arrow, in the output schema.

    As in PySpark, a row's fields are matched by name, and a missing field is null.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = list(schema.names)
        self._nested = any(pa.types.is_nested(field.type) for field in schema)

    def table(self, rows: list[Any]) -> pa.Table:
        """Convert the rows to columns. A DataError names the column and the value that does not fit."""
        columns = self._columns(rows)
        return pa.table(
            [self._array(values, field) for values, field in zip(columns, self.schema, strict=True)],
            schema=self.schema,
        )

    def _columns(self, rows: list[Any]) -> Sequence[Sequence[Any]]:
        if not rows:
            return [()] * len(self._names)
        try:
            if not self._nested and all(row.__fields__ == self._names for row in rows):
                return list(zip(*rows, strict=True))
            by_name = [row.asDict(recursive=True) for row in rows]
        except (AttributeError, PySparkTypeError):
            wrong = next(row for row in rows if not (isinstance(row, Row) and hasattr(row, "__fields__")))
            raise DataError(
                f"the processor gave {type(wrong).__name__} {wrong!r}; expected a Row with the fields {self._names}, "
                f"as in yield Row({self._names[0]}=…)."
            ) from None
        return [[row.get(name) for row in by_name] for name in self._names]

    def _array(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        cause: Exception | None = None
        try:
            array = pa.array(values, type=field.type)
            refuse_nulls(array, field)
            if not _cuts(values, field.type):
                return array
        except MISFITS as error:
            cause = error
        wrong = next((value for value in values if not _fits(value, field.type)), values[0])
        raise DataError(
            f"output column {field.name!r} is {field.type}, the processor gave {type(wrong).__name__} {wrong!r}. "
            "Convert the value, or declare the column with a type that holds it."
        ) from cause


# Types for which Arrow silently cuts values of other Python types: a float to a whole number, a datetime to its day.
_EXACT: dict[pa.DataType, frozenset[type]] = {
    pa.int8(): frozenset((int, type(None))),
    pa.int16(): frozenset((int, type(None))),
    pa.int32(): frozenset((int, type(None))),
    pa.int64(): frozenset((int, type(None))),
    pa.date32(): frozenset((dt.date, type(None))),
}


def _cuts(values: Sequence[Any], kind: pa.DataType) -> bool:
    exact = _EXACT.get(kind)
    return exact is not None and not exact.issuperset(map(type, values)) and any(loses(value, kind) for value in values)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, type=kind)
    except MISFITS:
        return False
    return not loses(value, kind)
