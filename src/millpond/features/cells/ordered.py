"""Values by time and by size: first, last, first_k, last_k, top_k, bottom_k.

A cell of first or last is a pair (time, value); the best pair is the least. For last, times are
negated, so that the least pair is the latest. At equal times the lesser value wins in both. That is
the whole tie-break: the order of arrival changes nothing. The order of values is that of their
canonical bytes (``scalar_values``).

A cell of the k best is a sorted tuple of at most k items. A merge sorts two ordered runs, which
Python's sort does in one pass. Equal values of different events are kept separately.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from operator import neg
from typing import Any

from millpond.features.cells.cell import Cell, CellMaker, CellOperation, Finish, Operation, Parameter
from millpond.features.cells.extremes import same_type
from millpond.features.cells.memory import value_bytes
from millpond.features.cells.stored_values import is_plain, list_of, value_decoder, value_encoder
from millpond.features.scalar_values import LONG_MAX, LONG_MIN
from millpond.features.types import SCALARS, DataType, parse_type


def first_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that keep the earliest value.

    >>> first_cells(parse_type("string")).collect([7, 5, 5], ["a", "c", "b"])
    (5, 'b')
    """
    return _timed_cells("first", type_, _first_of)


def last_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that keep the latest value, with its time negated.

    >>> last_cells(parse_type("string")).collect([5, 7, 7], ["a", "c", "b"])
    (-7, 'b')
    """
    return _timed_cells("last", type_, _last_of)


def first_k_cells(type_: DataType | None, k: Parameter) -> CellOperation:
    """Make the cells that keep the k earliest values, the earliest first."""
    return _timed_list_cells("first_k", type_, k, negated=False)


def last_k_cells(type_: DataType | None, k: Parameter) -> CellOperation:
    """Make the cells that keep the k latest values, the latest first; their times are negated.

    >>> last_k_cells(parse_type("string"), 2).collect([5, 7, 6], ["a", "b", "c"])
    ((-7, 'b'), (-6, 'c'))
    """
    return _timed_list_cells("last_k", type_, k, negated=True)


def bottom_k_cells(type_: DataType | None, k: Parameter) -> CellOperation:
    """Make the cells that keep the k least values, the least first."""
    return _sized_list_cells(f"bottom_k({k})", type_, k, greatest=False)


def top_k_cells(type_: DataType | None, k: Parameter) -> CellOperation:
    """Make the cells that keep the k greatest values, the greatest first.

    >>> top_k_cells(parse_type("long"), 2).collect([0, 0, 0], [5, 9, 7])
    (9, 7)
    """
    return _sized_list_cells(f"top_k({k})", type_, k, greatest=True)


def _first_of(times: Sequence[int], values: Sequence[Any]) -> Cell:
    return min(zip(times, values, strict=True), default=None)


def _last_of(times: Sequence[int], values: Sequence[Any]) -> Cell:
    return min(zip(map(neg, times), values, strict=True), default=None)


def _timed_cells(
    kind: str, type_: DataType | None, collect: Callable[[Sequence[int], Sequence[Any]], Cell]
) -> CellOperation:
    if type_ is None:
        raise TypeError(f"events have no value that could be {kind}")
    encode, decode = value_encoder(type_), value_decoder(type_)

    def decode_pair(stored: Any) -> Cell:
        if stored is None:
            return None
        time, value = list_of(stored, 2)
        return checked_time(time), decode(value)

    return CellOperation(
        id=f"{kind}:{type_.name}",
        empty=None,
        suffix=True,
        plain=False,
        collect=collect,
        merge=_lesser,
        merge_all=_least_of,
        delete=None,
        encode=lambda cell: None if cell is None else [cell[0], encode(cell[1])],
        decode=decode_pair,
        size=lambda cell: 0 if cell is None else value_bytes(cell) + value_bytes(cell[0]) + value_bytes(cell[1]),
        kind=kind,
    )


def _lesser(left: Cell, right: Cell) -> Cell:
    if left is None or (right is not None and right < left):
        return right
    return left


def _least_of(cells: Sequence[Cell]) -> Cell:
    return min((cell for cell in cells if cell is not None), default=None)


def checked_time(stored: Any) -> int:
    """Return a stored time, or raise TypeError or ValueError if it is not one."""
    if type(stored) is not int:
        raise TypeError(f"expected a time, found {type(stored).__name__}")
    if not LONG_MIN <= stored <= LONG_MAX:
        raise ValueError(f"a time of {stored} does not fit into 64 bits")
    return stored


def _timed_list_cells(kind: str, type_: DataType | None, k: Parameter, *, negated: bool) -> CellOperation:
    if type_ is None or not isinstance(k, int):
        raise TypeError(f"{kind} needs values and a whole number k")
    encode, decode_value, plain = value_encoder(type_), value_decoder(type_), is_plain(type_)

    def collect(times: Sequence[int], values: Sequence[Any]) -> Cell:
        return tuple(sorted(zip(map(neg, times) if negated else times, values, strict=True))[:k])

    def encode_flat(cell: Cell) -> list[Any]:
        flat = list(chain.from_iterable(cell))
        if not plain:
            flat[1::2] = map(encode, flat[1::2])
        return flat

    def decode(stored: Any) -> Cell:
        flat = list_of(stored, 2 * k)
        pairs = zip(map(checked_time, flat[::2]), map(decode_value, flat[1::2]), strict=True)
        return in_order(tuple(pairs))

    def size(cell: Cell) -> int:
        return value_bytes(cell) + sum(map(value_bytes, cell)) + sum(map(value_bytes, chain.from_iterable(cell)))

    cells = _list_cells(f"{kind}({k}):{type_.name}", k, collect, encode_flat, decode, size, greatest=False)
    return replace(cells, kind=kind, parameter=k)


def _sized_list_cells(kind: str, type_: DataType | None, k: Parameter, *, greatest: bool) -> CellOperation:
    if type_ is None or not isinstance(k, int):
        raise TypeError(f"{kind} needs values and a whole number k")
    encode, decode_value = value_encoder(type_), value_decoder(type_)

    def collect(_: Sequence[int], values: Sequence[Any]) -> Cell:
        return tuple(sorted(values, reverse=greatest)[:k])

    def decode(stored: Any) -> Cell:
        values = tuple(map(decode_value, list_of(stored, k)))
        in_order(values[::-1] if greatest else values)
        return values

    def size(cell: Cell) -> int:
        return value_bytes(cell) + sum(map(value_bytes, cell))

    return _list_cells(
        f"{kind}:{type_.name}",
        k,
        collect,
        lambda cell: list(map(encode, cell)),
        decode,
        size,
        greatest=greatest,
    )


def in_order(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the items, or raise ValueError if they are not in ascending order."""
    if any(left > right for left, right in pairwise(items)):
        raise ValueError("the items are not in order")
    return items


def _list_cells(
    id_: str,
    k: int,
    collect: Callable[[Sequence[int], Sequence[Any]], Cell],
    encode: Callable[[Cell], Any],
    decode: Callable[[Any], Cell],
    size: Callable[[Cell], int],
    *,
    greatest: bool,
) -> CellOperation:
    def merge(left: Cell, right: Cell) -> Cell:
        if not left or not right:
            return left or right
        return tuple(sorted(left + right, reverse=greatest)[:k])

    def merge_all(cells: Sequence[Cell]) -> Cell:
        return tuple(sorted(chain.from_iterable(cells), reverse=greatest)[:k])

    return CellOperation(
        id=id_,
        empty=(),
        suffix=False,
        plain=False,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=None,
        encode=encode,
        decode=decode,
        size=size,
    )


# Finish functions.


def _finish_pair(type_: DataType | None, _: Parameter) -> Finish:
    outward = None if type_ is None else type_.form.outward
    if outward is None:
        return lambda cell: None if cell is None else cell[1]
    return lambda cell: None if cell is None else outward(cell[1])


def _finish_pairs(type_: DataType | None, _: Parameter) -> Finish:
    outward = None if type_ is None else type_.form.outward
    if outward is None:
        return lambda cell: [value for _, value in cell] or None
    return lambda cell: [outward(value) for _, value in cell] or None


def _finish_values(type_: DataType | None, _: Parameter) -> Finish:
    outward = None if type_ is None else type_.form.outward
    if outward is None:
        return lambda cell: list(cell) or None
    return lambda cell: list(map(outward, cell)) or None


def array_of_same_type(type_: DataType, _: Parameter) -> DataType:
    """Return the type of a result that is an array of the type of the input."""
    return parse_type(f"array<{type_.name}>")


def _k_best(make: CellMaker, finisher: Callable[[DataType | None, Parameter], Finish]) -> Operation:
    return Operation((make,), SCALARS, array_of_same_type, finisher, parameter="k")


FIRST = Operation((first_cells,), SCALARS, same_type, _finish_pair)
"""The earliest value; the least one if several have that time."""

LAST = Operation((last_cells,), SCALARS, same_type, _finish_pair)
"""The latest value; the least one if several have that time."""

FIRST_K = _k_best(first_k_cells, _finish_pairs)
"""The k earliest values, the earliest first."""

LAST_K = _k_best(last_k_cells, _finish_pairs)
"""The k latest values, the latest first."""

TOP_K = _k_best(top_k_cells, _finish_values)
"""The k greatest values, the greatest first."""

BOTTOM_K = _k_best(bottom_k_cells, _finish_values)
"""The k least values, the least first."""
