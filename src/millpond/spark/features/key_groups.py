"""The cells of many keys at once: what lots of rows are collected into, and what rows of the batch are made of.

Place on the data path: inside the tasks of upload, backfill and stream. Rows become one group for each key and part of
time (a segment, a hop or a tile), and each cell of all groups is one column. So whatever is done for a column is done
once for many keys, and Python runs once for each group and not for each event.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.features import GroupByPlan
from millpond.features.columnar import collect_table, group_rows, store_table
from millpond.spark.features.columns import TIME, input_names, key_names


class KeyGroups(NamedTuple):
    """The cells of some keys by part of time.

    Args:
        keys: the encoded keys, each once.
        bounds: where the groups of each key begin, and at last how many groups there are.
        parts: the part of each group; ascending within a key.
        columns: for each cell of the plan, the cell of each group, or what is stored of it.
        first_rows: for each key the first row that has it, of the rows that were collected.
    """

    keys: Sequence[bytes]
    bounds: Sequence[int]
    parts: Sequence[int]
    columns: Sequence[Sequence[Any]]
    first_rows: npt.NDArray[np.int64]

    def by_key(self) -> Iterator[tuple[bytes, Sequence[int], list[Sequence[Any]]]]:
        """Give key, parts and columns of each key."""
        columns = self.columns
        for number, key in enumerate(self.keys):
            start, end = self.bounds[number], self.bounds[number + 1]
            yield key, self.parts[start:end], [column[start:end] for column in columns]


def groups_of_events(
    plan: GroupByPlan, table: pa.Table, parts: npt.NDArray[np.int64], *, stored: bool = False
) -> KeyGroups:
    """Collect events; the keys come in the order of their first events.

    Args:
        plan: of the GroupBy.
        table: at least one row, in the columns of `plan_columns`; each has a key and a time.
        parts: the part of time of each.
        stored: whether the columns have what is stored of the cells.

    Raises:
        DataError: a value cannot be aggregated, or a key is not as declared.
    """
    keys = table.select(key_names(plan.group_by))
    by_key = group_rows(keys)
    groups = group_rows(pa.table({"key": by_key.numbers}), parts)
    inputs = table.select(input_names(plan.group_by)).rename_columns([field.name for field in plan.group_by.inputs])
    times = table[TIME].combine_chunks()
    if stored:
        columns = store_table(plan.cells, groups, times, inputs)
    else:
        columns = collect_table(plan.cells, groups, times, inputs).columns
    of_groups = by_key.numbers[groups.first_rows]
    firsts = np.flatnonzero(np.diff(of_groups, prepend=-1))
    first_rows = by_key.first_rows[of_groups[firsts]]
    names = [column.to_pylist() for column in keys.take(pa.array(first_rows)).columns]
    return KeyGroups(
        [key for key in plan.encode_keys(names) if key is not None],
        [*firsts.tolist(), len(of_groups)],
        parts[groups.first_rows].tolist(),
        columns,
        first_rows,
    )


def encoded_key(plan: GroupByPlan, name: Sequence[object]) -> bytes:
    """Give the bytes of a key that has no null."""
    key = plan.encode_key(name)
    assert key is not None  # noqa: S101 - rows with a null part were left out
    return key
