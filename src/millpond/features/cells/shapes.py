"""Cells over arrays, maps and buckets, made from cells over scalars.

A shape wraps a cell operation and changes what it collects:

| shape        | collects                 | cell                                       |
|--------------|--------------------------|--------------------------------------------|
| exploded     | arrays                   | the scalar cell of all their elements      |
| element-wise | arrays                   | a tuple: the cell of each position         |
| keyed        | maps                     | a dict: the cell of each key               |
| bucketed     | pairs (bucket, value)    | a dict: the cell of each bucket            |
| by own time  | values                   | a dict: the cell of each span of time      |

Each cell has one form only: a dict leaves out keys whose cell is empty, and a tuple ends in a cell
that is not empty. So equal events give equal cells, and a delete undoes a collect. Null elements count
as absent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from operator import itemgetter
from typing import Any

from millpond.features.cells.cell import Cell, CellOperation, Finish
from millpond.features.cells.memory import value_bytes
from millpond.features.cells.stored_values import list_of
from millpond.features.types import DataType, parse_type

_STRING = parse_type("string")
_LONG = parse_type("long")
_first = itemgetter(0)


def exploded(inner: CellOperation) -> CellOperation:
    """Make cells over the elements of arrays, each with the time of its array.

    >>> from millpond.features.cells.counts_and_sums import sum_cells
    >>> exploded(sum_cells(parse_type("long"))).collect([0, 0], [[1, 2], [None, 3]])
    6
    """

    def collect(times: Sequence[int], arrays: Sequence[Sequence[Any]]) -> Cell:
        pairs = [
            (time, value) for time, array in zip(times, arrays, strict=True) for value in array if value is not None
        ]
        return inner.collect(*_split(pairs))

    return replace(inner, id=f"{inner.id}[]", collect=collect, kind="")


def keyed(inner: CellOperation, key: DataType) -> CellOperation:
    """Make cells over maps: one inner cell for each key.

    >>> from millpond.features.cells.counts_and_sums import sum_cells
    >>> keyed(sum_cells(parse_type("long")), parse_type("string")).collect([0, 0], [{"a": 1}, {"a": 2, "b": 5}])
    {'a': 3, 'b': 5}
    """

    def collect(times: Sequence[int], maps: Sequence[dict[Any, Any]]) -> Cell:
        entries = (
            (name, time, value)
            for time, map_ in zip(times, maps, strict=True)
            for name, value in map_.items()
            if value is not None
        )
        return _collect_by_key(inner, entries)

    return _dict_cells(inner, f"{inner.id}{{{key.name}}}", key, collect)


def bucketed(inner: CellOperation) -> CellOperation:
    """Make cells over pairs of a bucket and a value: one inner cell for each bucket.

    >>> from millpond.features.cells.counts_and_sums import sum_cells
    >>> bucketed(sum_cells(parse_type("long"))).collect([0, 0], [("a", 1), ("b", 5)])
    {'a': 1, 'b': 5}
    """

    def collect(times: Sequence[int], pairs: Sequence[tuple[str, Any]]) -> Cell:
        return _collect_by_key(
            inner, ((bucket, time, value) for time, (bucket, value) in zip(times, pairs, strict=True))
        )

    return _dict_cells(inner, f"{inner.id} by bucket", _STRING, collect)


def by_own_time(inner: CellOperation, span_ms: int) -> CellOperation:
    """Make cells that keep their values apart by time: one inner cell for each span that has values.

    >>> from millpond.features.cells.counts_and_sums import sum_cells
    >>> by_own_time(sum_cells(parse_type("long")), 60_000).collect([1, 59_999, 60_000], [1, 2, 5])
    {0: 3, 60000: 5}
    """

    def collect(times: Sequence[int], values: Sequence[Any]) -> Cell:
        return _collect_by_key(
            inner, ((time // span_ms * span_ms, time, value) for time, value in zip(times, values, strict=True))
        )

    return _dict_cells(inner, f"{inner.id} by own time", _LONG, collect)


def element_wise(inner: CellOperation) -> CellOperation:
    """Make cells over the positions of arrays; a shorter array has no value at further positions.

    >>> from millpond.features.cells.counts_and_sums import sum_cells
    >>> element_wise(sum_cells(parse_type("long"))).collect([0, 0], [[1, 2], [10, None, 30]])
    (11, 2, 30)
    """
    empty = inner.empty

    def trimmed(cells: list[Cell]) -> Cell:
        while cells and cells[-1] == empty:
            cells.pop()
        return tuple(cells)

    def collect(times: Sequence[int], arrays: Sequence[Sequence[Any]]) -> Cell:
        return trimmed(
            [
                inner.collect(*_split([pair for pair in zip(times, values, strict=True) if pair[1] is not None]))
                for values in zip_longest(*arrays)
            ]
        )

    def merge_all(cells: Sequence[Cell]) -> Cell:
        return trimmed([inner.merge_all(position) for position in zip_longest(*cells, fillvalue=empty)])

    def merge(left: Cell, right: Cell) -> Cell:
        return trimmed([inner.merge(one, other) for one, other in zip_longest(left, right, fillvalue=empty)])

    def delete(left: Cell, right: Cell) -> Cell:
        return trimmed([inner_delete(one, other) for one, other in zip_longest(left, right, fillvalue=empty)])

    def decode(stored: Any) -> Cell:
        return tuple(map(inner.decode, list_of(stored)))

    inner_delete: Callable[[Cell, Cell], Cell] = inner.delete or _cannot_delete
    return replace(
        inner,
        id=f"{inner.id}[i]",
        empty=(),
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=delete if inner.delete else None,
        encode=lambda cell: list(map(inner.encode, cell)),
        decode=decode,
        decode_all=None,
        size=lambda cell: value_bytes(cell) + sum(map(inner.size, cell)),
        kind="",
    )


def finish_dict(inner: Finish, empties: Sequence[Cell]) -> Finish:
    """Return the function that makes a dict of each key's value, in the order of the keys; None if there is none."""

    def finish(*cells: dict[Any, Cell]) -> dict[Any, Any] | None:
        values = {
            key: inner(*[cell.get(key, empty) for cell, empty in zip(cells, empties, strict=True)])
            for key in sorted(set().union(*cells))
        }
        return {key: value for key, value in values.items() if value is not None} or None

    return finish


def finish_list(inner: Finish, empties: Sequence[Cell]) -> Finish:
    """Return the function that makes a list of each position's value, up to the last with one; None if none has one."""

    def finish(*cells: tuple[Cell, ...]) -> list[Any] | None:
        length = max(map(len, cells))
        padded = [(*cell, *[empty] * (length - len(cell))) for cell, empty in zip(cells, empties, strict=True)]
        values = [inner(*position) for position in zip(*padded, strict=True)]
        while values and values[-1] is None:
            values.pop()
        return values or None

    return finish


def limit_met_in(inner: Callable[[Cell], bool]) -> Callable[[Any], bool]:
    """Return the function that says whether any cell of a dict or a tuple has met its limit."""
    return lambda cell: any(map(inner, cell.values() if type(cell) is dict else cell))


def _split(pairs: Sequence[tuple[int, Any]]) -> tuple[Sequence[int], Sequence[Any]]:
    if not pairs:
        return (), ()
    times, values = zip(*pairs, strict=True)
    return times, values


def _collect_by_key(inner: CellOperation, entries: Iterable[tuple[Any, int, Any]]) -> dict[Any, Cell]:
    groups: dict[Any, tuple[list[int], list[Any]]] = {}
    for key, time, value in entries:
        group = groups.get(key)
        if group is None:
            group = groups[key] = ([], [])
        group[0].append(time)
        group[1].append(value)
    return _without_empty(inner, {key: inner.collect(*group) for key, group in groups.items()})


def _without_empty(inner: CellOperation, cells: dict[Any, Cell]) -> dict[Any, Cell]:
    empty = inner.empty
    return {key: cell for key, cell in cells.items() if cell != empty}


def _dict_cells(
    inner: CellOperation, id_: str, key: DataType, collect: Callable[[Sequence[int], Sequence[Any]], Cell]
) -> CellOperation:
    empty = inner.empty
    check_key = key.form.checked

    def merge(left: dict[Any, Cell], right: dict[Any, Cell]) -> dict[Any, Cell]:
        if not left or not right:
            return left or right
        merged = {**left, **right}
        for both in left.keys() & right.keys():
            cell = inner.merge(left[both], right[both])
            if cell == empty:
                del merged[both]
            else:
                merged[both] = cell
        return merged

    def merge_all(cells: Sequence[dict[Any, Cell]]) -> dict[Any, Cell]:
        parts: dict[Any, list[Cell]] = {}
        for name, cell in chain.from_iterable(map(dict.items, cells)):
            parts.setdefault(name, []).append(cell)
        merged = {key: part[0] if len(part) == 1 else inner.merge_all(part) for key, part in parts.items()}
        return _without_empty(inner, merged)

    def delete(left: dict[Any, Cell], right: dict[Any, Cell]) -> dict[Any, Cell]:
        deleted = {key: inner_delete(left.get(key, empty), cell) for key, cell in right.items()}
        return _without_empty(inner, {**left, **deleted})

    def encode(cell: dict[Any, Cell]) -> list[Any]:
        return [part for key, value in sorted(cell.items(), key=_first) for part in (key, inner.encode(value))]

    def decode(stored: Any) -> dict[Any, Cell]:
        flat = list_of(stored)
        keys = list(map(check_key, flat[::2]))
        if len(flat) % 2 or any(left >= right for left, right in pairwise(keys)):
            raise ValueError("expected pairs of a key and a cell, in the order of their keys")
        return dict(zip(keys, map(inner.decode, flat[1::2]), strict=True))

    def size(cell: dict[Any, Cell]) -> int:
        return value_bytes(cell) + sum(map(value_bytes, cell)) + sum(map(inner.size, cell.values()))

    inner_delete: Callable[[Cell, Cell], Cell] = inner.delete or _cannot_delete
    return replace(
        inner,
        id=id_,
        empty={},
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=delete if inner.delete else None,
        encode=encode,
        decode=decode,
        decode_all=None,
        size=size,
        kind="",
    )


def _cannot_delete(_: Cell, __: Cell) -> Cell:
    raise TypeError("these cells cannot delete")
