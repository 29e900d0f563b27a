"""The row form: PySpark's `transformWithState`, whose processors get and give `Row`s."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from millpond.spark.operator_spec import OperatorSpec
from millpond.spark.rows import OutputColumns, row_maker, rows_of
from millpond.state.rows import Row as StateRow
from millpond.state.rows import grouping_values


class RowObjects:
    """`KeyObjects` of `Row`s."""

    expected = "an iterator of Rows"

    def __init__(self, spec: OperatorSpec) -> None:
        self._key_positions = spec.key_positions
        self._output = OutputColumns(spec.output_schema)
        self._make_row = row_maker(spec.row_names)
        self._width = len(spec.row_names)

    def grouped(self, rows: pa.Table) -> Iterator[tuple[StateRow, StateRow, Iterator[Row]]]:
        """Keys with all their rows, in the order in which the keys appear."""
        keys = self._keys(rows)
        made = rows_of(rows, self._width, self._make_row)
        if len(set(keys)) == len(keys):
            yield from zip(keys, keys, map(iter, zip(made, strict=True)), strict=True)
            return
        groups: dict[StateRow, list[Row]] = {}
        for key, row in zip(keys, made, strict=True):
            groups.setdefault(key, []).append(row)
        for key, group in groups.items():
            yield key, key, iter(group)

    def _keys(self, rows: pa.Table) -> list[StateRow]:
        columns = [grouping_values(rows.column(at)) for at in self._key_positions]
        return list(zip(*columns, strict=True))

    def key(self, key: StateRow) -> StateRow:
        """The key itself."""
        return key

    def table(self, output: list[Any]) -> pa.Table:
        """The rows as columns."""
        return self._output.table(output)
