"""Exact sets and counts per value: unique_count, bounded_unique_count, histogram.

A set cell is a frozenset of values, a histogram cell a dict from each value to its count. Both have a
limit, because one key may see more distinct values than memory holds. A cell that would exceed its limit
becomes None, which means *full*, and stays full in every merge. Whether a merge is full depends only
on all its values together, so merging stays associative and commutative to the bit.

| operation            | limit                            | value when full                |
|----------------------|----------------------------------|--------------------------------|
| bounded_unique_count | k - 1 values                     | k, as asked for                |
| unique_count         | `MAX_DISTINCT` values            | `MAX_DISTINCT`, flagged        |
| histogram            | `MAX_DISTINCT` values            | null, flagged                  |

A histogram can delete while it is not full. A full one stays full.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

from millpond.features.cells.cell import Cell, CellOperation, Finish, Operation, Parameter
from millpond.features.cells.counts_and_sums import count_cells, long_result
from millpond.features.cells.memory import value_bytes
from millpond.features.cells.stored_values import list_of, value_decoder, value_encoder
from millpond.features.types import MAP_KEYS, SCALARS, DataType, parse_type

MAX_DISTINCT = 10_000
"""The most distinct values of one key that ``unique_count`` and ``histogram`` keep."""

_FULL = None
_value_of = itemgetter(0)


def set_cells(kind: str, type_: DataType | None, limit: int) -> CellOperation:
    """Make the cells that keep distinct values; one with more than ``limit`` is None.

    >>> cell = set_cells("unique", parse_type("long"), 2)
    >>> cell.encode(cell.collect([0, 0, 0], [5, 3, 5])), cell.collect([0, 0, 0], [1, 2, 3])
    ([3, 5], None)
    """
    if type_ is None:
        raise TypeError("events have no value that could be in a set")
    encode_value, decode_value = value_encoder(type_), value_decoder(type_)
    empty: frozenset[Any] = frozenset()

    def collect(_: Sequence[int], values: Sequence[Any]) -> Cell:
        found = frozenset(values)
        return found if len(found) <= limit else _FULL

    def merge(left: Cell, right: Cell) -> Cell:
        if left is _FULL or right is _FULL:
            return _FULL
        both = left | right
        return both if len(both) <= limit else _FULL

    def merge_all(cells: Sequence[Cell]) -> Cell:
        if _FULL in cells:
            return _FULL
        every = empty.union(*cells)
        return every if len(every) <= limit else _FULL

    def decode(stored: Any) -> Cell:
        if stored is None:
            return _FULL
        values = list(map(decode_value, list_of(stored, limit)))
        check_ascending(values)
        return frozenset(values)

    return CellOperation(
        id=f"{kind}:{type_.name}",
        empty=empty,
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=None,
        encode=lambda cell: None if cell is _FULL else list(map(encode_value, sorted(cell))),
        decode=decode,
        size=lambda cell: 0 if cell is _FULL else value_bytes(cell) + sum(map(value_bytes, cell)),
        kind="set",
        parameter=limit,
    )


def histogram_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that count each value; one with more than `MAX_DISTINCT` values is None.

    >>> cell = histogram_cells(parse_type("string"))
    >>> cell.encode(cell.collect([0, 0, 0], ["b", "a", "b"]))
    ['a', 1, 'b', 2]
    """
    if type_ is None:
        raise TypeError("events have no value that could be counted apart")

    def limited(counts: dict[Any, int]) -> Cell:
        return counts if len(counts) <= MAX_DISTINCT else _FULL

    def collect(_: Sequence[int], values: Sequence[Any]) -> Cell:
        return limited(dict(Counter(values)))

    def merge(left: Cell, right: Cell) -> Cell:
        return _FULL if left is _FULL or right is _FULL else limited(added(left, right))

    def merge_all(cells: Sequence[Cell]) -> Cell:
        return _FULL if _FULL in cells else limited(added(*cells))

    def delete(left: Cell, right: Cell) -> Cell:
        return _FULL if left is _FULL or right is _FULL else limited(added(left, negated(right)))

    encode, decode = dict_encoder(type_), dict_decoder(type_, MAX_DISTINCT)
    return CellOperation(
        id=f"histogram:{type_.name}",
        empty={},
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=delete,
        encode=lambda cell: None if cell is _FULL else encode(cell),
        decode=lambda stored: _FULL if stored is None else decode(stored),
        size=lambda cell: 0 if cell is _FULL else dict_bytes(cell),
    )


def added(*counts: dict[Any, int]) -> dict[Any, int]:
    """Add the counts of each value, leaving out those that come to 0; the dicts are not changed.

    >>> added({"a": 1, "b": 2}, {"b": -2, "c": 1})
    {'a': 1, 'c': 1}
    """
    total: dict[Any, int] = {}
    for one in sorted(counts, key=len, reverse=True):
        if not total:
            total = dict(one)
            continue
        for value, count in one.items():
            total[value] = total.get(value, 0) + count
    return {value: count for value, count in total.items() if count} if 0 in total.values() else total


def negated(counts: dict[Any, int]) -> dict[Any, int]:
    """Return the counts with their signs changed."""
    return {value: -count for value, count in counts.items()}


def dict_encoder(type_: DataType) -> Callable[[dict[Any, int]], list[Any]]:
    """Return the function that encodes a dict as value, count, value, count, … in the order of the values."""
    encode_value = value_encoder(type_)
    return lambda counts: [
        part for value, count in sorted(counts.items(), key=_value_of) for part in (encode_value(value), count)
    ]


def dict_decoder(type_: DataType, limit: int) -> Callable[[Any], dict[Any, int]]:
    """Return the function that decodes the form of `dict_encoder`; it raises TypeError or ValueError on other bytes."""
    decode_value, decode_count = value_decoder(type_), count_cells(None).decode

    def decode(stored: Any) -> dict[Any, int]:
        flat = list_of(stored, 2 * limit)
        values = list(map(decode_value, flat[::2]))
        check_ascending(values)
        counts = dict(zip(values, map(decode_count, flat[1::2]), strict=True))
        if 0 in counts.values():
            raise ValueError("a count of 0 is not stored")
        return counts

    return decode


def check_ascending(values: Sequence[Any]) -> None:
    """Raise ValueError if values are not in strictly ascending order."""
    if any(left >= right for left, right in pairwise(values)):
        raise ValueError("the values are not in ascending order, each once")


def dict_bytes(counts: dict[Any, int]) -> int:
    """Return about how many bytes a dict of counts takes in memory."""
    return value_bytes(counts) + sum(map(value_bytes, counts)) + sum(map(value_bytes, counts.values()))


def _unique_cells(type_: DataType | None, _: Parameter) -> CellOperation:
    return set_cells("unique", type_, MAX_DISTINCT)


def _bounded_unique_cells(type_: DataType | None, k: Parameter) -> CellOperation:
    if not isinstance(k, int):
        raise TypeError("bounded_unique_count needs a whole number k")
    # Which k values they were is never asked, so the k-th already fills the set.
    return set_cells(f"bounded_unique({k})", type_, k - 1)


def is_full(cell: Cell) -> bool:
    """Return whether a key had more distinct values than are kept."""
    return cell is _FULL


def _finish_unique(_: DataType | None, k: Parameter) -> Finish:
    full = k if isinstance(k, int) else MAX_DISTINCT
    return lambda cell: full if cell is _FULL else len(cell) or None


def _finish_histogram(_: DataType | None, __: Parameter) -> Finish:
    def finish(cell: Cell) -> dict[Any, int] | None:
        if cell is _FULL:
            return None
        return {value: count for value, count in sorted(cell.items(), key=_value_of) if count > 0} or None

    return finish


def histogram_result(type_: DataType, _: Parameter) -> DataType:
    """Return the type of a result that maps each value to its count."""
    return parse_type(f"map<{type_.name},long>")


UNIQUE_COUNT = Operation((_unique_cells,), SCALARS, long_result, _finish_unique, limit_met=is_full)
"""The number of distinct values, up to `MAX_DISTINCT`."""

BOUNDED_UNIQUE_COUNT = Operation((_bounded_unique_cells,), SCALARS, long_result, _finish_unique, parameter="k")
"""The number of distinct values, or k if there are more."""

HISTOGRAM = Operation((histogram_cells,), MAP_KEYS, histogram_result, _finish_histogram, limit_met=is_full)
"""The number of occurrences of each value, for up to `MAX_DISTINCT` values, in the order of the values."""
