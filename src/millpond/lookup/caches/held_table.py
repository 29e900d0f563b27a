"""An immutable Arrow table that is found by key: the whole of a fully cached table.

The rows are sorted by key, so that the rows of a key lie together and one number says where they
begin. The invariant: group g is the rows `starts[g]` to `starts[g + 1]`. Null keys match nothing
and are left out when the table is made, and timestamps in keys are brought to microseconds (and UTC, where
they have a zone), so that equal moments are equal keys.

The index is a dictionary of Python keys, fast to ask and as large as the keys; the rows themselves
stay in Arrow. Trade-off: it belongs to one process; what several share is a `MappedTable`.
"""

from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError
from millpond.lookup.functions.function import Key, Rows
from millpond.lookup.functions.keys import check_key_types


class HeldTable(Protocol):
    """An immutable table that is found by key, wherever it lies."""

    table: pa.Table

    @property
    def key_count(self) -> int:
        """How many keys have rows."""
        ...

    def find(self, keys: Sequence[Key], columns: Sequence[str] | None = None) -> dict[Key, Rows]:
        """The rows of every key, with all columns of the table or with some."""
        ...


class KeyedTable:
    """A table sorted by its key columns, with an index.

    >>> table = KeyedTable.of(pa.table({"code": ["JFK", "EWR", "JFK"], "gate": [1, 2, 3]}), ["code"])
    >>> table.find([("JFK",), ("LHR",)])
    {('JFK',): [('JFK', 1), ('JFK', 3)], ('LHR',): []}
    """

    def __init__(self, table: pa.Table, keys: Sequence[str]) -> None:
        self.table = table
        self.keys = tuple(keys)
        self.groups: dict[Key, int] = {}
        self.starts = array("q")
        last: Key | None = None
        for position, key in enumerate(zip(*(table.column(name).to_pylist() for name in self.keys), strict=True)):
            if key != last:
                self.groups[key] = len(self.starts)
                self.starts.append(position)
                last = key
        self.starts.append(table.num_rows)

    @classmethod
    def of(cls, table: pa.Table, keys: Sequence[str]) -> "KeyedTable":
        """Sort any table by its key columns and index it.

        Raises:
            DataError: a key column is not in the table.
            OptionError: a key column has no exact equality.
        """
        for name in keys:
            if name not in table.column_names:
                raise DataError(
                    f"key column {name!r} is not in the scanned table; it has {', '.join(table.column_names)}; "
                    "name one of these as the key, or add the column to the scan"
                )
        check_key_types("the scanned table", pa.schema([table.schema.field(name) for name in keys]))
        table = table.cast(exact_times(table.schema, keys))
        for name in keys:
            table = table.filter(pc.is_valid(table.column(name)))
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys])
        return cls(table.take(order).combine_chunks(), keys)

    @property
    def key_count(self) -> int:
        """How many keys have rows."""
        return len(self.groups)

    def find(self, keys: Sequence[Key], columns: Sequence[str] | None = None) -> dict[Key, Rows]:
        """The rows of every key, with all columns of the table or with some; the rows are taken from Arrow at once."""
        spans: dict[Key, range] = {}
        for key in keys:
            group = self.groups.get(key)
            spans[key] = range(0) if group is None else range(self.starts[group], self.starts[group + 1])
        taken = self.table if columns is None else self.table.select(columns)
        taken = taken.take(pa.array(chain.from_iterable(spans.values()), pa.int64()))
        rows = iter(list(zip(*(column.to_pylist() for column in taken.columns), strict=True)))
        return {key: list(islice(rows, len(span))) for key, span in spans.items()}


def exact_times(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The schema with the timestamps among the key columns in microseconds, in UTC where they have a zone."""
    for name in keys:
        place = schema.get_field_index(name)
        field = schema.field(place)
        if pa.types.is_timestamp(field.type):
            schema = schema.set(place, field.with_type(pa.timestamp("us", "UTC" if field.type.tz else None)))
    return schema
