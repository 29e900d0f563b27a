"""Answers in columns to a batch of keys, for sources that have their rows in Arrow.

The rows of a `LookupFunction` are Python tuples. A source that can also answer in columns has a method
`lookup_columns`, and a join takes its rows without converting them. The invariant: `lookup_columns` gives the same
answers as `lookup_many`, in another form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.lookup.functions.function import Key, Rows


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """The rows of a batch of keys.

    `numbers` has for every row the number of its key among the requested keys, from 0. `rows` has the
    columns of the source's `row_schema`. The rows of one key need not be adjacent.

    >>> found = FoundColumns(np.array([1, 0, 1]), pa.record_batch({"gate": [7, 8, 9]}))
    >>> found.by_key([("EWR",), ("JFK",)])
    {('EWR',): [(8,)], ('JFK',): [(7,), (9,)]}
    """

    numbers: npt.NDArray[np.int64]
    rows: pa.RecordBatch

    def by_key(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows as Python tuples by key. `keys` are the requested keys, which must be distinct."""
        found: dict[Key, Rows] = {key: [] for key in keys}
        answers = list(found.values())
        columns = [column.to_pylist() for column in self.rows.columns]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(self.numbers))
        for number, row in zip(self.numbers.tolist(), rows, strict=True):
            answers[number].append(row)
        return found


@runtime_checkable
class AnswersInColumns(Protocol):
    """A lookup function that can answer a batch without making a Python object for each value."""

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """Return the rows of distinct keys, given as one array without nulls for each key column."""
        ...
