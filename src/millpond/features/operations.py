"""The algebra of intermediate results (IRs): how events become partial answers, and those an answer.

An IR is an immutable tuple of *cells*. The cells of a GroupBy are chosen once, by its plan: an average
needs a sum and a count, a sum needs the same two (to tell no data from 0), so both share them. A cell
operation knows four things: its empty cell, the cell of some values, the cell of two cells, and the
cell of a whole column of cells. Cells only ever make new cells, so an IR that lies in a cache cannot be
changed by who reads it.

Every merge is associative and commutative *to the bit*. For counts, minima, maxima and sums of whole
numbers that comes free with Python's integers. Sums of doubles get it by exact arithmetic: each finite
double is a whole multiple of 2**-1074, so a sum is kept as that whole number and rounded once, by the
division that ends it. Upload, stream and fetcher can then add in any order, re-run and re-group, and
yet give the same bytes; and the answer is the correctly rounded one, as ``math.fsum`` gives it. The
price is an integer of about 150 bytes while in memory; adding two of them costs about what adding two
floats costs in CPython. Compensated sums (Neumaier) would be smaller but still depend on order, and
exact expansions (Shewchuk) need a Python loop where one integer addition does.

Source: J. R. Shewchuk, "Adaptive precision floating-point arithmetic" (1997), for the exact
alternatives; U. Kulisch's long accumulator for the idea of one fixed-point sum.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from millpond.errors import OptionError
from millpond.features.cells import counts_and_sums, extremes
from millpond.features.cells.cell import Operation
from millpond.features.types import parse_type

if TYPE_CHECKING:
    from millpond.features.definitions.aggregation import Aggregation
    from millpond.features.definitions.field import Field

Value = bool | int | float | str
"""One input of one event, never None: what is None is dropped before it comes here."""

Cell = bool | int | float | str | None
Ir = tuple[Cell, ...]

CellKind = Literal["count", "sum", "min", "max"]

_FRACTION_BITS = 1074


def to_fixed_point(value: float) -> int:
    """Give a finite double as its whole multiple of 2**-1074, exactly.

    >>> to_fixed_point(0.5) == 2**1073, to_fixed_point(5e-324)
    (True, 1)
    """
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_FRACTION_BITS + 1 - denominator.bit_length())


def from_fixed_point(total: int, count: int = 1) -> float:
    """Give ``total / count`` as the nearest double, or an infinity where no double is as large.

    >>> from_fixed_point(to_fixed_point(0.1) + to_fixed_point(0.2)), from_fixed_point(2**1074, count=2)
    (0.30000000000000004, 0.5)
    """
    try:
        return total / (count << _FRACTION_BITS)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class CellOperation:
    """What can be done with one cell of an IR.

    ``collect`` makes the cell of the values of some events; ``merge`` and ``merge_all`` make the cell
    of cells. None of them changes what it is given.
    """

    init: Cell
    collect: Callable[[Sequence[Any]], Any]
    merge: Callable[[Any, Any], Any]
    merge_all: Callable[[Sequence[Any]], Any]


def _sum_doubles(values: Sequence[float]) -> int:
    return sum(map(to_fixed_point, values))


def _least(left: Any, right: Any) -> Any:
    if left is None or (right is not None and right < left):
        return right
    return left


def _greatest(left: Any, right: Any) -> Any:
    if left is None or (right is not None and right > left):
        return right
    return left


def _least_of(cells: Sequence[Any]) -> Any:
    return min((cell for cell in cells if cell is not None), default=None)


def _greatest_of(cells: Sequence[Any]) -> Any:
    return max((cell for cell in cells if cell is not None), default=None)


_COUNT = CellOperation(0, len, operator.add, sum)
_SUM_WHOLE = CellOperation(0, sum, operator.add, sum)
_SUM_DOUBLES = CellOperation(0, _sum_doubles, operator.add, sum)
_MIN = CellOperation(None, _least_of, _least, _least_of)
_MAX = CellOperation(None, _greatest_of, _greatest, _greatest_of)


def cell_operation(kind: CellKind, input_type: str | None) -> CellOperation:
    """Give the operation of a cell over an input of a type (None: over events).

    >>> cell_operation("sum", "long").collect([1, 2, 3])
    6
    """
    if kind == "sum":
        return _SUM_DOUBLES if input_type == "double" else _SUM_WHOLE
    return {"count": _COUNT, "min": _MIN, "max": _MAX}[kind]


CELLS_OF: dict[str, tuple[CellKind, ...]] = {
    "average": ("sum", "count"),
    "count": ("count",),
    "max": ("max",),
    "min": ("min",),
    "sum": ("sum", "count"),
}
"""The cells that each operation reads when it is finished."""


def finisher(operation: str, input_type: str | None, positions: tuple[int, ...]) -> Callable[[Ir], Value | None]:
    """Give the function that reads an operation's answer out of an IR; no data is None.

    Args:
        operation: ``average``, ``count``, ``max``, ``min`` or ``sum``.
        input_type: the type of its input, None for a count of events.
        positions: where in the IR its cells lie, in the order of ``CELLS_OF``.

    >>> finisher("average", "long", (0, 1))((7, 2)), finisher("count", None, (0,))((0,))
    (3.5, None)
    """
    if operation in ("average", "sum"):
        total, count = positions
        return _FINISHERS[operation, input_type == "double"](total, count)
    (position,) = positions
    if operation == "count":
        return lambda ir: ir[position] or None
    return operator.itemgetter(position)


def _average_of_doubles(total: int, count: int) -> Callable[[Any], float | None]:
    return lambda ir: from_fixed_point(ir[total], ir[count]) if ir[count] else None


def _average_of_whole_numbers(total: int, count: int) -> Callable[[Any], float | None]:
    return lambda ir: ir[total] / ir[count] if ir[count] else None


def _sum_of_doubles(total: int, count: int) -> Callable[[Any], float | None]:
    return lambda ir: from_fixed_point(ir[total]) if ir[count] else None


def _sum_of_whole_numbers(total: int, count: int) -> Callable[[Any], int | None]:
    return lambda ir: ir[total] if ir[count] else None


_FINISHERS: dict[tuple[str, bool], Callable[[int, int], Callable[[Any], Any]]] = {
    ("average", True): _average_of_doubles,
    ("average", False): _average_of_whole_numbers,
    ("sum", True): _sum_of_doubles,
    ("sum", False): _sum_of_whole_numbers,
}


OPERATIONS: dict[str, Operation] = {
    "average": counts_and_sums.AVERAGE,
    "count": counts_and_sums.COUNT,
    "max": extremes.MAX,
    "min": extremes.MIN,
    "sum": counts_and_sums.SUM,
}
"""Every operation by its name."""


def check_input(aggregation: "Aggregation", field: "Field") -> None:
    """Refuse a column that an aggregation cannot take.

    Raises:
        OptionError: its type does not fit, with those that do.
    """
    operation = OPERATIONS[aggregation.operation]
    type_ = parse_type(field.type)
    if type_.scalar.kind not in operation.types:
        fitting = [name for name, other in OPERATIONS.items() if type_.scalar.kind in other.types]
        needed = "numbers" if operation.types == counts_and_sums.NUMBERS else "ordered values"
        raise OptionError(
            f"{aggregation.operation!r} of column {field.name!r} needs {needed} ({', '.join(operation.types)}, or "
            f"arrays and maps of these), its type is {field.type!r}; declare it as one of them, or ask for "
            f"{', '.join(fitting)}"
        )
    if aggregation.element_wise and type_.kind != "array":
        raise OptionError(
            f"element_wise {aggregation.operation!r} of column {field.name!r} needs an array, its type is "
            f"{field.type!r}; leave element_wise out"
        )
