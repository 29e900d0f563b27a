"""Direct access to the cells of a state, for a cache in front of the backend, with requests counted."""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections.abc import Callable
from typing import Any

from millpond.state.backend.protocols import Cells, RawCells
from millpond.state.types.rows import Row


class CountedCells:
    """`RawCells` of a state of a heap that spills, on the heap and on disk.

    Args:
        cells: the heap's `RawCells`, which read tables on disk too.
        entered: the requests of each key group; reads are added.
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
        return key_group, cell

    def read(self, place: tuple[int, Any]) -> Any:
        self._entered[place[0]] += 1
        return self._read(place)

    def read_all(self, places: list[tuple[int, Any]]) -> list[Any]:
        for key_group, _ in places:
            self._entered[key_group] += 1
        return self._read_all(places)

    def put_all(self, places: list[Any], values: list[Any]) -> None:
        self._written(len(places))
        self._put_all(places, values)

    def of_key(self, key_group: int, key: Row) -> Cells:
        return self._of_key(key_group, key)
