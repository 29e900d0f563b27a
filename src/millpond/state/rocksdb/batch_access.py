"""Batch access to a value state in RocksDB: see `millpond.state.backend.batch_access`.

All keys are read in one call and written in one batch, whatever their key groups. Every value read is decoded anew, so
it belongs to the caller.
"""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.state.backend.batch_access import ManyKeys
from millpond.state.backend.sums import Sums

if TYPE_CHECKING:
    from millpond.state.rocksdb.states import RocksDbState


class ManyInDatabase:
    """`ManyValues` over a value state in RocksDB."""

    def __init__(self, cells: "RocksDbState", sums: Sums) -> None:
        self._cells = cells
        self._sums = sums

    def get_many(self, many: ManyKeys) -> list[Any]:
        return self._cells.read_all(self._places(many))

    def update_many(self, many: ManyKeys, values: Sequence[Any]) -> None:
        self._cells.put_all(self._places(many), list(values))

    def add_many(self, many: ManyKeys, number: Any) -> None:
        numbers, places = self._sums.numbers(number, len(many)), self._places(many)
        olds = self._cells.read_all(places)
        sums = self._sums.at_once(places, olds, numbers)
        if sums is None:
            each = self._sums.of_each(places, olds, numbers)
            places, sums = list(each), list(each.values())
        self._cells.put_all(places, sums)

    def clear_many(self, many: ManyKeys) -> None:
        places = self._places(many)
        there = [at for at, data in zip(places, self._cells.data_of(places), strict=True) if data is not None]
        self._cells.put_all(there, [None] * len(there))

    def _places(self, many: ManyKeys) -> list[bytes]:
        places: list[bytes] = []
        for key_group, first, end in many.runs:
            places += self._cells.places_of(key_group, many.keys[first:end])
        return places
