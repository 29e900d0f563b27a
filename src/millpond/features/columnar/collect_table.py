"""Collects a whole Arrow table: the IR of each key in each segment or tile, without Python code per event.

The rows are numbered by group (a key and a part of time) and sorted by group once. Then each cell is
collected for all groups in a few array operations (``array_cells``). Cells without array operations are
collected group by group, from columns that were checked and converted once for the whole table.

``CompiledCells.collect`` is the oracle: for the events of each group it returns the same IR.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError
from millpond.features.cells.cell import Cell, CellOperation, Ir
from millpond.features.columnar.array_cells import GroupedRows, collect_groups, store_groups
from millpond.features.columnar.array_inputs import TableInputs
from millpond.features.compiled_cells import CellRows, CompiledCells
from millpond.features.inputs import EVENTS


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of a table, numbered by group.

    Args:
        numbers: for each row the number of its group, or -1 if a key column is null.
        first_rows: for each group its first row, from which its key and part can be read.
    """

    numbers: Any
    first_rows: Any

    @property
    def without_key(self) -> int:
        """How many rows have a null in a key column, and so have no key."""
        return int(np.count_nonzero(self.numbers < 0))


@dataclass(frozen=True, slots=True)
class CollectedTable:
    """The cells of all groups of a table.

    Args:
        columns: for each cell of the plan, the cell of each group.
        count: how many groups there are.
    """

    columns: tuple[Sequence[Cell], ...]
    count: int

    def irs(self) -> list[Ir]:
        """Return the IR of each group."""
        return list(zip(*self.columns, strict=True)) if self.columns else [()] * self.count


def group_rows(keys: pa.Table, parts: Any = None) -> Groups:
    """Number the rows of a table by the values of its columns and by a part of time.

    Args:
        keys: the key columns. Zeros of either sign are one key.
        parts: for each row its segment or the start of its tile, as whole numbers; None for one part.

    >>> groups = group_rows(pa.table({"k": ["a", "b", None, "a"]}), np.array([0, 0, 0, 60_000]))
    >>> groups.numbers.tolist(), groups.first_rows.tolist(), groups.without_key
    ([0, 2, -1, 1], [0, 3, 1], 1)
    """
    codes = np.zeros(keys.num_rows, np.int64)
    keyed = np.ones(keys.num_rows, np.bool_)
    sizes = 1
    for column in keys.columns:
        own, size, valid = _codes(column)
        codes, sizes = _joined_codes(codes, sizes, own, size)
        keyed &= valid
    if parts is not None:
        distinct, own = _dense(np.asarray(parts, np.int64))
        codes, sizes = _joined_codes(codes, sizes, own, len(distinct))
    numbers = np.full(len(codes), -1, np.int64)
    if not keyed.any():
        return Groups(numbers, np.zeros(0, np.int64))
    rows = np.flatnonzero(keyed)
    distinct, own = _dense(codes[rows])
    numbers[rows] = own
    first_rows = np.full(len(distinct), len(codes), np.int64)
    # Written in reverse, so that the first row of each group is the last one written.
    first_rows[own[::-1]] = rows[::-1]
    return Groups(numbers, first_rows)


def collect_table(cells: CompiledCells, groups: Groups, times: Any, inputs: pa.Table) -> CollectedTable:
    """Collect the rows of a table, each group on its own.

    Args:
        cells: the compiled cells of the GroupBy.
        groups: the group of each row, from `group_rows`; rows without a group are left out.
        times: the time of each row in milliseconds UTC, none null: an Arrow or numpy array.
        inputs: a table that has the inputs as columns, by their names.

    Raises:
        DataError: a column is missing, of another type, or has a value that is not as declared.

    >>> from millpond.features.compiled_cells import compile_cells
    >>> from millpond.features.definitions import Aggregation, Field, GroupBy
    >>> inputs = (Field("x", "double"),)
    >>> visits = GroupBy("visits", (Field("k", "string"),), inputs, (Aggregation("average", "x"),))
    >>> table = pa.table({"k": ["a", "b", "a"], "at": [5, 6, 7], "x": [1.5, 2.0, None]})
    >>> collected = collect_table(compile_cells(visits), group_rows(table.select(["k"])), table["at"], table)
    >>> [count for _, count in collected.irs()]
    [1, 1]
    """
    return CollectedTable(_of_groups(cells, groups, times, inputs, collect_groups), len(groups.first_rows))


def store_table(cells: CompiledCells, groups: Groups, times: Any, inputs: pa.Table) -> tuple[Sequence[Any], ...]:
    """Return for each cell of the plan its stored form for each group; arguments and errors of `collect_table`."""
    return _of_groups(cells, groups, times, inputs, store_groups)


def _of_groups(
    cells: CompiledCells,
    groups: Groups,
    times: Any,
    inputs: pa.Table,
    collect: Callable[[CellOperation, GroupedRows, int], Sequence[Any]],
) -> tuple[Sequence[Any], ...]:
    moments = np.asarray(times)
    if moments.dtype.kind not in "iu":
        raise DataError(
            f"GroupBy {cells.group_by!r}: times must be whole numbers of milliseconds without nulls, "
            f"got {moments.dtype}; leave rows without a time out"
        )
    table = TableInputs(cells.group_by, cells.inputs, inputs)
    count = len(groups.first_rows)
    order = np.argsort(groups.numbers, kind="stable")
    order = order[np.searchsorted(groups.numbers[order], 0) :]
    sorted_rows = _SortedRows(groups.numbers, order, moments.astype(np.int64), table)
    by_source = {source: sorted_rows.of(source) for source in dict.fromkeys(cells.rows_of_cells)}
    return tuple(
        collect(cell, by_source[source], count) for cell, source in zip(cells.cells, cells.rows_of_cells, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _SortedRows:
    """The rows that belong to a group, in the order of their groups."""

    numbers: Any
    order: Any
    times: Any
    table: TableInputs

    def of(self, source: CellRows) -> GroupedRows:
        """Return the rows from which the cells over a column collect."""
        if source.bucket is None and source.column == EVENTS:
            return self._grouped(self.order, self.times)
        if source.bucket is None and (found := self.table.array(source.column)) is not None:
            order = self.order if found.valid is None else self.order[found.valid[self.order]]
            return self._grouped(order, found.values, found.ranked)
        rows, values = source.aligned(range(len(self.numbers)), self.table.columns)
        # The position of each row's value in `values`; rows without one are left out of the order.
        place = np.full(len(self.numbers), -1, np.int64)
        place[np.asarray(rows, np.int64)] = np.arange(len(values))
        order = self.order[place[self.order] >= 0]
        return self._grouped(order, [values[one] for one in place[order].tolist()])

    def _grouped(self, order: Any, values: Any, ranked: list[Any] | None = None) -> GroupedRows:
        numbers = self.numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        index = np.cumsum(np.diff(numbers, prepend=-1) > 0) - 1
        chosen = values if isinstance(values, list) else values[order]
        return GroupedRows(numbers[starts], starts, index, self.times[order], chosen, ranked)


def _codes(column: pa.ChunkedArray) -> tuple[Any, int, Any]:
    """Number the distinct values of a column; return the numbers, their count, and which rows are not null."""
    if pa.types.is_floating(column.type):
        # Adding 0.0 turns -0.0 into 0.0: they are one key.
        column = pc.add(column, pa.scalar(0.0, column.type))
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    valid = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    return encoded.indices.fill_null(0).to_numpy().astype(np.int64), max(1, len(encoded.dictionary)), valid


def _joined_codes(codes: Any, sizes: int, own: Any, size: int) -> tuple[Any, int]:
    """Number the pairs of two codes; numbers are made dense before they would exceed 63 bits."""
    if sizes * size >= 1 << 62:
        distinct, codes = _dense(codes)
        sizes = len(distinct)
    return codes * size + own, sizes * size


def _dense(codes: Any) -> tuple[Any, Any]:
    distinct, own = np.unique(codes, return_inverse=True)
    return distinct, own
