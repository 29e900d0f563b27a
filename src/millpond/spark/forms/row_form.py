"""The row form: PySpark's `transformWithState`, whose processors get and yield `Row`s."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from millpond.spark.forms.grouping import grouped
from millpond.spark.forms.handles import key_row_maker
from millpond.spark.forms.rows import OutputColumns, row_maker, rows_of
from millpond.spark.spec.operator import OperatorSpec
from millpond.state.types.rows import Row as StateRow
from millpond.state.types.rows import grouping_values


class RowObjects:
    """`KeyObjects` of `Row`s."""

    expected = "an iterator of Rows"

    def __init__(self, spec: OperatorSpec) -> None:
        self._key_positions = list(spec.key_positions)
        self._output = OutputColumns(spec.output_schema)
        self._make_row = row_maker(spec.row_names)
        self._width = len(spec.row_names)
        self.key = key_row_maker(spec.key_schema)

    def grouped(self, rows: pa.Table) -> Iterator[tuple[StateRow, StateRow, Iterator[Row]]]:
        """Yield keys with all their rows, in the order in which the keys first appear."""
        grouping = grouped(rows.select(self._key_positions))
        if grouping.distinct:
            keys = self._keys(rows)
            made = rows_of(rows, self._width, self._make_row)
            # Give each row as an iterator of one, without a list in between.
            yield from zip(keys, keys, map(iter, zip(made, strict=True)), strict=True)
            return
        order, ends = grouping.by_key()
        in_order = list(rows_of(rows.take(order), self._width, self._make_row))
        start = 0
        for key, end in zip(self._keys(rows.take(grouping.first)), ends.tolist(), strict=True):
            yield key, key, iter(in_order[start:end])
            start = end

    def _keys(self, rows: pa.Table) -> list[StateRow]:
        columns = [grouping_values(rows.column(at)) for at in self._key_positions]
        return list(zip(*columns, strict=True))

    def table(self, output: list[Any]) -> pa.Table:
        """Convert the rows to columns."""
        return self._output.table(output)
