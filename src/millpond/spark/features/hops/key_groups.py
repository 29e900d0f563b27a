"""The cells of many keys at once: lots of rows are collected into them, and rows of the batch are made of them.

Place on the data path: inside the tasks of upload and backfill. Rows become one group for each key and part of time (a
segment or a hop). Each cell of all groups is one column. So work on a column is done once for many keys, and Python
runs once for each group, not for each event.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.features import GroupByPlan
from millpond.features.columnar.collect_table import collect_table, group_rows, store_table
from millpond.spark.features.columns import TIME, input_names, key_names
from millpond.spark.features.tiles.combine import key_values


class KeyGroups(NamedTuple):
    """The cells of some keys by part of time.

    Args:
        keys: the encoded keys, each once.
        bounds: the first group of each key, followed by the number of groups.
        parts: the part of each group; ascending within a key.
        columns: for each cell of the plan, the cell of each group, or its stored form.
        first_rows: for each key, the first of the collected rows that has it.
    """

    keys: Sequence[bytes]
    bounds: Sequence[int]
    parts: Sequence[int]
    columns: Sequence[Sequence[Any]]
    first_rows: npt.NDArray[np.int64]

    def by_key(self) -> Iterator[tuple[bytes, Sequence[int], list[Sequence[Any]]]]:
        """Yield key, parts and columns of each key."""
        columns = self.columns
        for number, key in enumerate(self.keys):
            start, end = self.bounds[number], self.bounds[number + 1]
            yield key, self.parts[start:end], [column[start:end] for column in columns]


def groups_of_events(
    plan: GroupByPlan, table: pa.Table, parts: npt.NDArray[np.int64], *, stored: bool = False
) -> KeyGroups:
    """Collect events; the keys come in the order of their first events.

    Args:
        plan: the plan of the GroupBy.
        table: at least one row, in the columns of `plan_columns`; each has a key and a time.
        parts: the part of time of each row.
        stored: whether the columns have the stored form of the cells.

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
    names = key_values(plan, keys.take(pa.array(first_rows)).columns)
    return KeyGroups(
        [key for key in plan.encode_keys(names) if key is not None],
        [*firsts.tolist(), len(of_groups)],
        parts[groups.first_rows].tolist(),
        columns,
        first_rows,
    )


def encoded_key(plan: GroupByPlan, name: Sequence[object]) -> bytes:
    """Return the bytes of a key without null parts."""
    key = plan.encode_key(name)
    assert key is not None  # noqa: S101 - rows with a null part were left out
    return key
