"""An Arrow table as the source of a full cache."""

from collections.abc import Callable, Sequence
from typing import Self

import pyarrow as pa

from millpond.lookup.push_down.conditions import Conditions, arrow_filter
from millpond.lookup.push_down.narrowed import narrow_copy
from millpond.lookup.sources.declared import declared_columns, split_schema

_WHERE = "the scanned table"


class TableScan:
    """A scan of an Arrow table, or of a function that makes one at every load.

    Args:
        table: the table, or a function without arguments that returns it.
        keys: the key columns.
        columns: the columns of a row; by default every column that is not a key.

    >>> airports = TableScan(pa.table({"code": ["JFK"], "city": ["New York"]}), keys=["code"])
    >>> airports.key_schema.names, airports.row_schema.names
    (['code'], ['city'])
    """

    def __init__(
        self, table: pa.Table | Callable[[], pa.Table], keys: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        self._table = table
        self.conditions: Conditions = ()
        self.key_schema, self.row_schema = split_schema(_WHERE, self._read().schema, keys, columns)

    def scan(self) -> pa.Table:
        """Return the declared columns of the present table."""
        table = self._read()
        expression = arrow_filter(self.conditions)
        if expression is not None:
            table = table.filter(expression)
        return declared_columns(_WHERE, table, self.key_schema, self.row_schema)

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return a scan of the same table with fewer columns and rows. No condition remains."""
        return narrow_copy(self, columns, where), ()

    def _read(self) -> pa.Table:
        return self._table() if callable(self._table) else self._table

    def __repr__(self) -> str:
        return "TableScan"
