"""The cells of one GroupBy: which it needs, what each collects, and how each feature is finished.

Aggregations share their cells: an average and a sum over one column read the same sum and the same
count. A cell is known by its id, which names kind, parameter, type, column with its SQL, shape and bucket. So the
cells that are stored under an id mean the same in every definition.

Collecting checks and converts each input column once, drops nulls together with their times, and then
runs one loop for each cell, in C where the cell can.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from millpond.features.cells.cell import Cell, CellOperation, Finish, Ir, Operation
from millpond.features.cells.shapes import (
    bucketed,
    by_own_time,
    element_wise,
    exploded,
    finish_dict,
    finish_list,
    keyed,
    limit_met_in,
)
from millpond.features.definitions import Aggregation, GroupBy
from millpond.features.definitions.feature_types import feature_type
from millpond.features.inputs import EVENTS, Column, EventColumns, Inputs, check_times
from millpond.features.operations import OPERATIONS
from millpond.features.row_rules import input_name
from millpond.features.types import DataType, parse_type


@dataclass(frozen=True, slots=True)
class CompiledFeature:
    """One feature of a plan.

    Args:
        name: the name of the feature.
        window: as declared; None is all time.
        positions: the positions of its cells in the IR, in the order in which ``finish`` takes them.
        finish: returns the value of the cells; None is no data.
        type: the type of the value, as text.
        deletes: whether all of its cells can delete.
        exact: whether equal events give values that are equal to the bit.
        limit_met: returns for its only cell whether the value is only a bound, because a key has more distinct
            values than are kept; None if the operation has no such limit.
    """

    name: str
    window: str | None
    positions: tuple[int, ...]
    finish: Finish
    type: str
    deletes: bool
    exact: bool
    limit_met: Callable[[Cell], bool] | None = None


@dataclass(frozen=True, slots=True)
class CellRows:
    """What a cell collects: the position of its input column (or `EVENTS`), and of the column of its buckets."""

    column: int
    bucket: int | None

    def aligned(self, times: Sequence[int], columns: list[Column]) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the times and the values of the events that have both value and bucket."""
        if self.bucket is None:
            if self.column == EVENTS:
                return times, times
            column = columns[self.column]
            return (times if column.present is None else list(compress(times, column.present))), column.values
        buckets = columns[self.bucket].aligned()
        values = buckets if self.column == EVENTS else columns[self.column].aligned()
        rows = [
            (time, (bucket, value))
            for time, bucket, value in zip(times, buckets, values, strict=True)
            if bucket is not None and value is not None
        ]
        return [time for time, _ in rows], [pair for _, pair in rows]


class CompiledCells:
    """The cells and features of one GroupBy; immutable. Made by `compile_cells`."""

    __slots__ = ("_columns", "_places", "_rows", "cells", "empty_ir", "features", "group_by", "inputs", "rows_of_cells")

    def __init__(self, group_by: GroupBy, span_ms: int | None = None) -> None:
        self.group_by = group_by.name
        """The name of the GroupBy."""
        self.inputs = group_by.inputs
        """The columns that are collected."""
        self._columns = EventColumns(group_by.name, group_by.inputs)
        names = [field.name for field in group_by.inputs]
        cells: dict[str, tuple[int, CellOperation, CellRows]] = {}
        features = []
        for aggregation in group_by.aggregations:
            for bucket in aggregation.buckets or (None,):
                column = EVENTS if aggregation.column is None else names.index(aggregation.column)
                rows = CellRows(column, None if bucket is None else names.index(bucket))
                type_ = None if column == EVENTS else parse_type(group_by.inputs[column].type)
                made = [_shaped(cell, aggregation, type_, bucket, group_by) for cell in _cells(aggregation, type_)]
                positions = tuple(cells.setdefault(cell.id, (len(cells), cell, rows))[0] for cell in made)
                features += [
                    replace(feature, name=name, window=window)
                    for feature in [_feature(aggregation, type_, bucket, made, positions)]
                    for name, window, of_bucket in aggregation.features
                    if of_bucket == bucket
                ]
        self.features = tuple(features)
        """Every feature, in declared order."""
        self.cells = tuple(cell if span_ms is None else by_own_time(cell, span_ms) for _, cell, _ in cells.values())
        """Each distinct cell once, in the order in which the features first need them."""
        self.empty_ir: Ir = tuple(cell.empty for cell in self.cells)
        """The IR of no events."""
        self.rows_of_cells = tuple(rows for _, _, rows in cells.values())
        """What each cell collects."""
        self._rows = tuple(dict.fromkeys(self.rows_of_cells))
        self._places = tuple(map(self._rows.index, self.rows_of_cells))

    def collect(self, times: Sequence[int], events: Sequence[Inputs]) -> Ir:
        """Return the IR of some events, in any order.

        Args:
            times: the time of each event, in milliseconds UTC.
            events: the inputs of each event, in declared order.

        Raises:
            DataError: an event has no time, too many or too few inputs, or one that is not of its declared type.
        """
        if not events:
            return self.empty_ir
        check_times(self.group_by, times)
        columns = self._columns.columns(events)
        rows = [one.aligned(times, columns) for one in self._rows]
        return tuple([cell.collect(*rows[position]) for cell, position in zip(self.cells, self._places, strict=True)])


def compile_cells(group_by: GroupBy, span_ms: int | None = None) -> CompiledCells:
    """Find the cells that a GroupBy needs, and how its features read them.

    Args:
        group_by: the definition.
        span_ms: if given, each cell keeps its values apart by time, in spans of this length. The features then
            read not these cells but what `own_times.irs_since` makes of them.

    >>> from millpond.features.definitions import Field
    >>> route = GroupBy(
    ...     "route",
    ...     keys=(Field("origin", "string"),),
    ...     inputs=(Field("delay", "double"),),
    ...     aggregations=(Aggregation("average", "delay", ("1h",)), Aggregation("count", "delay")),
    ... )
    >>> compiled = compile_cells(route)
    >>> [cell.id for cell in compiled.cells]
    ['sum:double:delay', 'count:double:delay']
    >>> ir = compiled.collect([0, 1], [(0.5,), (None,)])
    >>> [feature.finish(*[ir[position] for position in feature.positions]) for feature in compiled.features]
    [0.5, 1]
    """
    return CompiledCells(group_by, span_ms)


def _operation(aggregation: Aggregation) -> Operation:
    return OPERATIONS[aggregation.operation]


def _parameter(aggregation: Aggregation) -> Any:
    name = _operation(aggregation).parameter
    return None if name is None else getattr(aggregation, name)


def _cells(aggregation: Aggregation, type_: DataType | None) -> list[CellOperation]:
    scalar = None if type_ is None else type_.scalar
    return [make(scalar, _parameter(aggregation)) for make in _operation(aggregation).cells]


def _shaped(
    cell: CellOperation, aggregation: Aggregation, type_: DataType | None, bucket: str | None, group_by: GroupBy
) -> CellOperation:
    """Wrap a cell in the shapes of its column, and complete its id."""
    if type_ is not None and aggregation.column is not None:
        cell = replace(cell, id=f"{cell.id}:{input_name(group_by, aggregation.column)}")
        if type_.key is not None:
            cell = keyed(cell, type_.key)
        elif type_.kind == "array":
            cell = element_wise(cell) if aggregation.element_wise else exploded(cell)
    if bucket is None:
        return cell
    return replace(bucketed(cell), id=f"{cell.id} by {input_name(group_by, bucket)}")


def _feature(
    aggregation: Aggregation,
    type_: DataType | None,
    bucket: str | None,
    cells: list[CellOperation],
    positions: tuple[int, ...],
) -> CompiledFeature:
    operation, parameter = _operation(aggregation), _parameter(aggregation)
    scalar = None if type_ is None else type_.scalar
    finish = operation.finisher(scalar, parameter)
    empties = [make.empty for make in _cells(aggregation, type_)]
    limit_met = operation.limit_met
    if type_ is not None and type_.key is not None:
        finish, empties = finish_dict(finish, empties), [{} for _ in cells]
        limit_met = limit_met and limit_met_in(limit_met)
    elif aggregation.element_wise:
        finish, empties = finish_list(finish, empties), [() for _ in cells]
        limit_met = limit_met and limit_met_in(limit_met)
    if bucket is not None:
        finish = finish_dict(finish, empties)
        limit_met = limit_met and limit_met_in(limit_met)
    return CompiledFeature(
        name="",
        window=None,
        positions=positions,
        finish=finish,
        type=feature_type(aggregation, type_, bucket),
        deletes=all(cell.delete is not None for cell in cells),
        exact=operation.exact,
        limit_met=limit_met,
    )
