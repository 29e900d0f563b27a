"""Batch access to a value state in RocksDB: see `millpond.state.backend.batch_access`.

All keys are read in one call and written in one batch, whatever their key groups. Every value read is decoded anew, so
it belongs to the caller.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from millpond.state.backend.batch_access import ManyKeys
from millpond.state.backend.sums import Sums


class _Cells(Protocol):
    """The cells of a state by their db keys: see `RocksDbState`."""

    def place(self, key_group: int, cell: Any, /) -> bytes: ...

    def data_of(self, places: list[bytes]) -> list[bytes | None]: ...

    def read_all(self, places: list[bytes]) -> list[Any]: ...

    def put_all(self, places: list[bytes], values: list[Any]) -> None: ...


class ManyInDatabase:
    """`ManyValues` over a value state in RocksDB.

    Args:
        cells: of the state.
        sums: adds up its numbers.
    """

    def __init__(self, cells: _Cells, sums: Sums) -> None:
        self._cells = cells
        self._sums = sums

    def get_many(self, many: ManyKeys) -> list[Any]:
        """Return the value of each key, or None."""
        return self._cells.read_all(self._places(many))

    def update_many(self, many: ManyKeys, values: Sequence[Any]) -> None:
        """Set the value of each key."""
        self._cells.put_all(self._places(many), list(values))

    def add_many(self, many: ManyKeys, number: Any) -> None:
        """Add to the number of each key."""
        numbers, places = self._sums.numbers(number, len(many)), self._places(many)
        sums = self._sums.of_each(places, self._cells.read_all(places), numbers)
        self._cells.put_all(list(sums), list(sums.values()))

    def clear_many(self, many: ManyKeys) -> None:
        """Delete the value of each key."""
        places = self._places(many)
        there = [at for at, data in zip(places, self._cells.data_of(places), strict=True) if data is not None]
        self._cells.put_all(there, [None] * len(there))

    def _places(self, many: ManyKeys) -> list[bytes]:
        place, keys = self._cells.place, many.keys
        return [place(key_group, key) for key_group, first, end in many.runs for key in keys[first:end]]
