"""What a fully cached table is to those who look rows up in it.

The invariant: it never changes. Null keys match nothing and are left out when the table is made, and timestamps
in keys are brought to microseconds (and UTC, where they have a zone), so that equal moments are equal keys.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from millpond.lookup.functions.function import Key, Rows


class HeldTable(Protocol):
    """An immutable table that is found by key, wherever it lies."""

    table: pa.Table

    @property
    def key_count(self) -> int:
        """How many keys have rows."""
        ...

    @property
    def held_bytes(self) -> int:
        """How many bytes it takes, index included."""
        ...

    def find(self, keys: Sequence[Key], columns: Sequence[str] | None = None) -> dict[Key, Rows]:
        """The rows of every key, with all columns of the table or with some."""
        ...


def exact_times(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The schema with the timestamps among the key columns in microseconds, in UTC where they have a zone."""
    for name in keys:
        place = schema.get_field_index(name)
        field = schema.field(place)
        if pa.types.is_timestamp(field.type):
            schema = schema.set(place, field.with_type(pa.timestamp("us", "UTC" if field.type.tz else None)))
    return schema
