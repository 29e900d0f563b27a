"""What a backend needs to do with the values of a state, whatever they are.

There are two kinds of values: tuples under an Arrow schema (`RowCodec`, for PySpark's users) and Python objects of a
declared type (`ObjectCodec`). `TtlCodec` adds the time of writing to either. A backend asks the state's descriptor for
its codec and knows no more than this interface.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa


class ValueCodec(Protocol):
    """Converts the values of one state: of a value state, the elements of lists, or the values of maps."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that a value becomes in a segment."""

    @property
    def mutable(self) -> bool:
        """Whether a holder of a value could change it in place."""

    @property
    def check(self) -> Any:
        """A function that returns a value as it is kept. A DataError says why a value cannot be kept."""

    def copy(self, value: Any) -> Any:
        """Return a deep copy; the value itself if it is not mutable."""

    def dumps(self, value: Any) -> bytes:
        """Encode a checked value, for backends that keep bytes."""

    def loads(self, data: bytes) -> Any:
        """Decode what `dumps` returned."""

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        """Convert many values to Arrow arrays, in the schema's order."""

    def rows(self, columns: Sequence[pa.Array]) -> Iterator[Any]:
        """Return the values from which `columns` was made."""
