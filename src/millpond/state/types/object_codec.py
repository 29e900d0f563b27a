"""Python objects as values of a state: one binary column in a segment, and the objects themselves in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import DataError
from millpond.state.types.serializer import Serializer

OBJECT_SCHEMA = pa.schema([("value", pa.binary())])
"""The columns of a state that holds Python objects."""


class ObjectCodec:
    """A `ValueCodec` over a serializer. `what` names the values in errors, and becomes text only then."""

    __slots__ = ("_serializer", "_what", "check", "copy", "dumps", "loads", "mutable", "schema")

    def __init__(self, serializer: Serializer, what: object) -> None:
        self._serializer = serializer
        self._what = what
        self.schema = OBJECT_SCHEMA
        self.mutable = serializer.mutable
        self.copy: Callable[[Any], Any] = serializer.copy
        self.dumps: Callable[[Any], bytes] = serializer.dumps
        self.loads: Callable[[bytes], Any] = serializer.loads
        exactly = serializer.exactly
        self.check: Callable[[Any], Any] = self._checked if exactly is None else exactly(self._checked)
        """Returns the object as it is kept. A DataError names state and key, what was expected and what was given."""

    def _checked(self, value: Any) -> Any:
        try:
            return self._serializer.check(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self._what}: {error}.") from error

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return one binary array. No value is None: a state without a value is absent."""
        return [pa.array(list(map(self.dumps, values)), type=pa.binary())]

    def rows(self, columns: Sequence[pa.Array]) -> Iterator[Any]:
        """Decode the objects."""
        return (None if data is None else self.loads(data) for data in columns[0].to_pylist())
