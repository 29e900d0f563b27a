"""Group the rows of a table by key with Arrow, without a Python object for a key or a row.

Keys are grouped as Spark groups them: null is a key like any other, all NaNs are one key, and 0.0 and -0.0 are
one key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_CODES = pa.int64()


@dataclass(frozen=True)
class Grouping:
    """The rows of a table by key. Keys are numbered in the order in which they first appear.

    Attributes:
        index: for each row, the number of its key.
        first: for each key, the number of its first row.
    """

    index: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    @property
    def distinct(self) -> bool:
        """Whether no two rows have the same key. The rows are then in the order of their keys."""
        return len(self.first) == len(self.index)

    def by_key(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row numbers sorted by key, in row order within a key; and where each key ends in them."""
        return np.argsort(self.index, kind="stable"), np.cumsum(np.bincount(self.index, minlength=len(self.first)))


def grouped(keys: pa.Table) -> Grouping:
    """Group rows by all columns of `keys`.

    >>> found = grouped(pa.table({"user": ["bob", "ann", None, "bob"]}))
    >>> found.index.tolist(), found.first.tolist()
    ([0, 1, 2, 0], [0, 1, 2])
    """
    codes, count = _codes(keys.column(0))
    for column in keys.columns[1:]:
        more, kinds = _codes(column)
        codes, count = _codes(pa.chunked_array([pa.array(_numbers(codes) * kinds + _numbers(more), type=_CODES)]))
    index = _numbers(codes)
    first = np.empty(count, dtype=np.int64)
    # Rows are written backwards, so the last write for a key is its first row.
    first[index[::-1]] = np.arange(len(index) - 1, -1, -1)
    return Grouping(index, first)


def _codes(column: pa.ChunkedArray) -> tuple[Any, int]:
    """Number the distinct values from 0 in the order in which they first appear. Return also how many there are."""
    encoded = canonical(column).combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices, len(encoded.dictionary)


def _numbers(codes: Any) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = codes.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with all NaNs made equal and -0.0 made 0.0. Other values stay."""
    if not pa.types.is_floating(column.type):
        return column
    # Adding 0.0 turns -0.0 into 0.0. NaNs are replaced, since they may differ in their payload.
    numbers = pc.add(column, pa.scalar(0.0, type=column.type))
    return pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan"), type=column.type), numbers)


def keys_and_grouping(rows: pa.Table, positions: Sequence[int], schema: pa.Schema) -> tuple[pa.Table, Grouping]:
    """Return the distinct keys of rows, in this schema, and the grouping. The key columns are at `positions`."""
    grouping = grouped(rows.select(list(positions)))
    first = pa.array(grouping.first)
    columns = [canonical(rows.column(at)).take(first) for at in positions]
    keys = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(keys, schema=schema), grouping


def shown(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the columns that vectorised user code sees: the first ones, under these names, with times in UTC."""
    fields = [
        field.with_type(pa.timestamp(field.type.unit, tz="UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz
        else field
        for field in rows.schema
    ][: len(names)]
    return rows.select(list(range(len(names)))).cast(pa.schema(fields)).rename_columns(list(names))
