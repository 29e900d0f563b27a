"""The cells of a state past its handle, for a cache in front: what it reads and writes is counted as elsewhere."""

from collections.abc import Callable
from typing import Any

from millpond.state.backend.protocols import Cells, RawCells
from millpond.state.types.rows import Row


class CountedCells:
    """`RawCells` of a state on the heap, wherever its key groups are.

    Args:
        cells: the heap's own.
        entered: how often each key group was asked for; reads are added.
        written: called before each write, with the number of cells.
    """

    def __init__(self, cells: RawCells, entered: dict[int, int], written: Callable[[int], None]) -> None:
        self._read = cells.read
        self._read_all = cells.read_all
        self._put_all = cells.put_all
        self._entered = entered
        self._written = written
        self._of_key = cells.of_key

    def place(self, key_group: int, cell: Any, /) -> tuple[int, Any]:
        """Where a cell lies."""
        return key_group, cell

    def read(self, place: tuple[int, Any]) -> Any:
        """A cell's value as it is now; None where there is none."""
        self._entered[place[0]] += 1
        return self._read(place)

    def read_all(self, places: list[tuple[int, Any]]) -> list[Any]:
        """The same of many cells."""
        for key_group, _ in places:
            self._entered[key_group] += 1
        return self._read_all(places)

    def put_all(self, places: list[Any], values: list[Any]) -> None:
        """Put or delete cells in the open version."""
        self._written(len(places))
        self._put_all(places, values)

    def of_key(self, key_group: int, key: Row) -> Cells:
        """Every cell of one key as it is now."""
        return self._of_key(key_group, key)
