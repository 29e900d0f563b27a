"""Cells, and the operations on them.

A *cell* is one immutable part of an intermediate result: a count, an exact sum, a set. A
`CellOperation` is everything that can be done with cells of one kind over one column. An `Operation`
is what a user asks for by name: it reads one or more cells and computes a value.

The invariant: a merge is associative and commutative, to the bit where the operation is exact, and
nothing changes a cell that it is given. So upload, stream and fetcher may merge in any order, and a
cell may be in a cache while others read it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.features.types import DataType

Cell = Any
"""A cell: None, a number, a text, bytes, a tuple, a frozenset or a dict. Never changed once made."""

Ir = tuple[Cell, ...]
"""An intermediate result: one cell for each cell operation of a plan."""


Parameter = int | tuple[float, ...] | None
"""What some operations need besides their column: ``k``, or percentiles."""


@dataclass(frozen=True, slots=True)
class CellOperation:
    """What can be done with the cells of one kind over one column; immutable.

    Args:
        id: the stable name of the stored form, as in ``"sum:double:price"``.
        empty: the cell of no events; merging with it changes nothing.
        suffix: whether a batch row stores suffixes of its timeline (scalars do), or each segment's own
            cell, to be folded when read (sets, lists, maps and sketches do).
        plain: whether ``encode`` and ``decode`` return what they are given, so that a codec may skip them.
        collect: returns the cell of some events, from their times and their values, aligned, without nulls.
        merge: returns the cell of the events of two cells.
        merge_all: returns the cell of the events of any number of cells.
        delete: returns the cell of the first's events without those of the second; None if cells cannot delete.
            Deleting what was never collected is legal: a count may fall below 0 and rise again.
        encode: returns what MessagePack takes; equal cells give equal bytes.
        decode: returns the cell of a stored form; raises ValueError or TypeError on anything else, and needs
            no more memory than a small multiple of what it is given.
        size: returns about how many bytes the cell takes in memory.
        decode_all: returns the cells of many stored forms, as ``decode`` does for each, in one loop; may be None.
        kind: the kind of cell, such as ``"sum"``, by which array operations that collect whole tables are chosen;
            empty for kinds that have none.
        parameter: the parameter that its maker was given.
    """

    id: str
    empty: Cell
    suffix: bool
    plain: bool
    collect: Callable[[Sequence[int], Sequence[Any]], Cell]
    merge: Callable[[Cell, Cell], Cell]
    merge_all: Callable[[Sequence[Cell]], Cell]
    delete: Callable[[Cell, Cell], Cell] | None
    encode: Callable[[Cell], Any]
    decode: Callable[[Any], Cell]
    size: Callable[[Cell], int]
    decode_all: Callable[[Sequence[Any]], list[Cell]] | None = None
    kind: str = ""
    parameter: Parameter = None


CellMaker = Callable[[DataType | None, Parameter], CellOperation]
"""Makes a cell operation for values of a scalar type (None: for events) and a parameter."""

Finish = Callable[..., Any]
"""Takes an operation's cells as positional arguments and returns the value; None is no data."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that an aggregation can ask for, by name.

    Args:
        cells: makes each cell that the operation reads, in the order in which ``finish`` takes them.
        types: the kinds of scalar types that it takes.
        result: returns the type of its value, from the type of its input and its parameter.
        finisher: makes the function that computes the value, from the same two.
        parameter: the field of an aggregation that it needs, ``k`` or ``percentiles``; None for none.
        exact: whether equal events give values that are equal to the bit, however they are split.
        limit_met: returns for the operation's only cell whether the value is only a bound, because a key has
            more distinct values than are kept; None for operations without such a limit.
        of_events: whether it also works without a column.
    """

    cells: tuple[CellMaker, ...]
    types: tuple[str, ...]
    result: Callable[[DataType, Parameter], DataType]
    finisher: Callable[[DataType | None, Parameter], Finish]
    parameter: str | None = None
    exact: bool = True
    limit_met: Callable[[Cell], bool] | None = None
    of_events: bool = False
