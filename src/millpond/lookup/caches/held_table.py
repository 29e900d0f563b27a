"""The interface of a fully cached table for its readers.

The invariant: it never changes. Rows whose key has a null match nothing and are left out when the table is made.
Timestamps in keys are converted to microseconds (and to UTC, if they have a zone), so that equal moments are equal
keys.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from millpond.lookup.functions.function import Key, Rows


class HeldTable(Protocol):
    """An immutable table whose rows are found by key, wherever it is stored."""

    table: pa.Table

    @property
    def key_count(self) -> int:
        """The number of distinct keys."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes of the table and its index."""
        ...

    def find(self, keys: Sequence[Key], columns: Sequence[str] | None = None) -> dict[Key, Rows]:
        """Return the rows of every key, with the given columns or with all columns of the table."""
        ...


def exact_times(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """Return the schema with timestamps in key columns as microseconds, in UTC if they have a zone."""
    for name in keys:
        place = schema.get_field_index(name)
        field = schema.field(place)
        if pa.types.is_timestamp(field.type):
            schema = schema.set(place, field.with_type(pa.timestamp("us", "UTC" if field.type.tz else None)))
    return schema
