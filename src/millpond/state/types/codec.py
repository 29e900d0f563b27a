"""What a backend must be able to do with the values of a state, whatever they are.

Two kinds of values are kept: tuples under an Arrow schema (`RowCodec`, what PySpark's users have) and
Python objects of a declared type (`ObjectCodec`). `TtlCodec` adds the time of writing to either. A
backend asks the state's descriptor for its codec and knows no more than this interface.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa


class ValueCodec(Protocol):
    """The values of one state: a value state's, a list's elements', a map's values."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that a value becomes in a segment."""
        ...

    @property
    def mutable(self) -> bool:
        """Whether who holds a value could change it in place."""
        ...

    @property
    def check(self) -> Any:
        """A function of a value: the value as it is kept. A DataError says why it cannot be."""
        ...

    def copy(self, value: Any) -> Any:
        """A deep copy; the value itself where it is not mutable."""
        ...

    def dumps(self, value: Any) -> bytes:
        """A checked value as bytes, for backends that keep bytes."""
        ...

    def loads(self, data: bytes) -> Any:
        """The inverse of `dumps`."""
        ...

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        """Many values as Arrow arrays, in the schema's order."""
        ...

    def rows(self, columns: Sequence[pa.Array]) -> Iterator[Any]:
        """The values that `columns` was made of."""
        ...
