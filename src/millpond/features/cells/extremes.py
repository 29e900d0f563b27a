"""The least and the greatest value: min, max.

A cell is the value itself, or None. Values are compared in their inside form, whose order is that of
the type: numbers by size, texts by code point (as in Spark), binaries by byte.
"""

from collections.abc import Sequence
from typing import Any

from millpond.features.cells.cell import Cell, CellOperation, Finish, Operation, Parameter
from millpond.features.cells.memory import value_bytes
from millpond.features.cells.stored_values import as_is, is_plain, value_decoder, value_encoder
from millpond.features.types import SCALARS, DataType


def min_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that keep the least value.

    >>> from millpond.features.types import parse_type
    >>> min_cells(parse_type("string")).merge("b", "a")
    'a'
    """
    return _extreme_cells("min", type_, _least_collected, least, _least_of)


def max_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that keep the greatest value."""
    return _extreme_cells("max", type_, _greatest_collected, greatest, _greatest_of)


def _extreme_cells(kind: str, type_: DataType | None, collect: Any, merge: Any, merge_all: Any) -> CellOperation:
    if type_ is None:
        raise TypeError(f"events have no value of which there could be a {kind}")
    encode, decode = value_encoder(type_), value_decoder(type_)
    plain = is_plain(type_)
    return CellOperation(
        id=f"{kind}:{type_.name}",
        empty=None,
        suffix=True,
        plain=plain,
        collect=collect,
        merge=merge,
        merge_all=merge_all,
        delete=None,
        encode=encode if plain else lambda cell: None if cell is None else encode(cell),
        decode=lambda stored: None if stored is None else decode(stored),
        size=value_bytes,
        kind=kind,
    )


def _least_collected(_: Sequence[int], values: Sequence[Any]) -> Cell:
    return min(values, default=None)


def _greatest_collected(_: Sequence[int], values: Sequence[Any]) -> Cell:
    return max(values, default=None)


# A fetcher writes these merges out in its own code, so they are public here.


def least(left: Cell, right: Cell) -> Cell:
    """Return the lesser of two cells; None is no value."""
    if left is None or (right is not None and right < left):
        return right
    return left


def greatest(left: Cell, right: Cell) -> Cell:
    """Return the greater of two cells; None is no value."""
    if left is None or (right is not None and right > left):
        return right
    return left


def _least_of(cells: Sequence[Cell]) -> Cell:
    try:
        return min(cells, default=None)
    except TypeError:  # None compares with nothing; looking for it in every run would take longer
        return min((cell for cell in cells if cell is not None), default=None)


def _greatest_of(cells: Sequence[Cell]) -> Cell:
    try:
        return max(cells, default=None)
    except TypeError:
        return max((cell for cell in cells if cell is not None), default=None)


def same_type(type_: DataType, _: Parameter) -> DataType:
    """Return the type of the input as the type of the result."""
    return type_


def finish_outward(type_: DataType | None, _: Parameter) -> Finish:
    """Return the function that returns the cell itself, as a value of the edge."""
    if type_ is None or type_.form.outward is None:
        return as_is
    return type_.outward


MIN = Operation((min_cells,), SCALARS, same_type, finish_outward)
"""The least value."""

MAX = Operation((max_cells,), SCALARS, same_type, finish_outward)
"""The greatest value."""
