"""Convert between the rows of a test and the tables of a shard's batch."""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from millpond.errors import DataError, OptionError
from millpond.spark.forms.arrow_combine import Combining
from millpond.spark.forms.handles import arrow_schema, outward_of, row_inward_of
from millpond.spark.forms.rows import row_maker
from millpond.spark.shuffle.pack import KEY_GROUP
from millpond.spark.testing.ddl import parse_ddl
from millpond.state.types.rows import RowCodec


def schema_of(schema: StructType | str) -> StructType:
    """Return a schema from a StructType or from its DDL text, which is parsed without a session."""
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema)
    raise OptionError(f"a schema must be a StructType or its DDL text, got {schema!r}.")


class InputTables:
    """Makes tables of rows, all in key group 0."""

    def __init__(self, schema: StructType) -> None:
        self._names = schema.names
        self._codec = RowCodec(arrow_schema(schema), "a row")
        self._inward = row_inward_of(schema)

    def table(self, rows: Iterable[Any]) -> pa.Table:
        """Make a table of rows: tuples in the schema's order, dicts or Rows. A DataError names the wrong column."""
        checked = [self._codec.check(self._values(row)) for row in rows]
        return _in_one_group(self._shuffled(pa.table(self._codec.columns(checked), schema=self._codec.schema)))

    def _shuffled(self, rows: pa.Table) -> pa.Table:
        return rows

    def _values(self, row: Any) -> tuple[Any, ...]:
        given = row.asDict() if isinstance(row, Row) and hasattr(row, "__fields__") else row
        if isinstance(given, dict):
            unknown = given.keys() - set(self._names)
            if unknown:
                raise DataError(
                    f"a row has the fields {sorted(unknown)}, which are not among the columns {self._names}."
                )
            given = tuple(given.get(name) for name in self._names)
        values: tuple[Any, ...] = given if self._inward is None else self._inward(given)
        return values


class CombinedTables(InputTables):
    """Makes tables for a processor that combines rows before the shuffle, as if one task had read them."""

    def __init__(self, schema: StructType, combining: Combining) -> None:
        super().__init__(schema)
        self._combining = combining

    def _shuffled(self, rows: pa.Table) -> pa.Table:
        # On Spark no task combines a batch without rows.
        return self._combining.table(rows)[0] if len(rows) else self._combining.schema.empty_table()


def _in_one_group(rows: pa.Table) -> pa.Table:
    return rows.append_column(KEY_GROUP, pa.array([0] * len(rows), type=pa.int16()))


def rows_maker(schema: StructType) -> Callable[[pa.Table], list[Row]]:
    """Return a function that makes Rows of a table's rows, as Spark would."""
    outward, make_row = outward_of(schema), row_maker(schema.names)

    def rows_of(table: pa.Table) -> list[Row]:
        rows = RowCodec(table.schema, "output").rows([table.column(at) for at in range(table.num_columns)])
        return [make_row(row if outward is None else outward(row)) for row in rows]

    return rows_of
