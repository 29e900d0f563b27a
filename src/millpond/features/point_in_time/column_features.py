"""The features that are computed a column at a time: counts, sums, averages and extremes of scalars.

Every window of every query is one range of the sorted events. A feature of a range takes two
look-ups in a table that is made once for its input. So the cost does not depend on how many events a
window holds.

The events of a key may come in several pieces. Such a key has a *base*: the cells of its events in earlier pieces,
which are no longer in memory. Only features without a window still need them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from millpond.errors import DataError
from millpond.features.cells.cell import Ir
from millpond.features.compiled_cells import CompiledFeature, compile_cells
from millpond.features.definitions import Aggregation, GroupBy
from millpond.features.point_in_time.exact_sums import Integers
from millpond.features.point_in_time.value_columns import LONG_DIGITS, ValueColumn, typed_column
from millpond.features.types import DataType, parse_type
from millpond.features.windows import parse_window

Ranges = Mapping[int | None, tuple[Integers, Integers]]
"""For each window length (None: all time) the range of events of each query: its starts and its ends."""

Kind = Literal["count", "max", "min", "sum"]

_CELLS: dict[str, tuple[Kind, ...]] = {
    "average": ("sum", "count"),
    "count": ("count",),
    "max": ("max",),
    "min": ("min",),
    "sum": ("sum", "count"),
}
"""The operations that are computed here, and the cells that each reads, in order."""


def is_columnar(group_by: GroupBy, aggregation: Aggregation) -> bool:
    """Return whether an aggregation is computed a column at a time."""
    if aggregation.operation not in _CELLS or aggregation.buckets or aggregation.element_wise:
        return False
    if aggregation.column is None:
        return True
    type_ = next(parse_type(field.type) for field in group_by.inputs if field.name == aggregation.column)
    return type_.element is None and (type_.kind != "decimal" or type_.precision <= LONG_DIGITS)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One feature: an operation over an input (None: the events) and a window."""

    operation: str
    column: int | None
    window_ms: int | None
    compiled: CompiledFeature
    type: DataType


class ColumnFeatures:
    """The columnar features of a GroupBy; immutable."""

    def __init__(self, group_by: GroupBy) -> None:
        mine = tuple(one for one in group_by.aggregations if is_columnar(group_by, one))
        self._whose = f"GroupBy {group_by.name!r}"
        self.fields = group_by.inputs
        compiled = compile_cells(replace(group_by, aggregations=mine, derivations=())) if mine else None
        by_name = {feature.name: feature for feature in compiled.features} if compiled else {}
        self.operations = compiled.cells if compiled else ()
        names = [field.name for field in group_by.inputs]
        self.asked: tuple[_Asked, ...] = tuple(
            _Asked(
                one.operation,
                None if one.column is None else names.index(one.column),
                None if window is None else parse_window(window),
                by_name[name],
                parse_type(by_name[name].type),
            )
            for one in mine
            for name, window, _ in one.features
        )
        cells = {
            position: (kind, feature.column)
            for feature in self.asked
            for kind, position in zip(_CELLS[feature.operation], feature.compiled.positions, strict=True)
        }
        self.cells: tuple[tuple[Kind, int | None], ...] = tuple(cells[position] for position in sorted(cells))
        self.windows: frozenset[int | None] = frozenset(feature.window_ms for feature in self.asked)
        """The window lengths that the features have."""

    def over(self, inputs: Sequence[pa.Array], count: int) -> "ColumnFeaturesOver":
        """Bind the features to the inputs of some events, sorted by key and time.

        Raises:
            DataError: a double is not finite.
        """
        columns = {
            column: ValueColumn(
                None if column is None else inputs[column],
                None if column is None else self.fields[column],
                count,
                self._whose,
            )
            for column in {feature.column for feature in self.asked}
        }
        return ColumnFeaturesOver(self, columns)


class ColumnFeaturesOver:
    """Columnar features over the events of one piece."""

    def __init__(self, features: ColumnFeatures, columns: Mapping[int | None, ValueColumn]) -> None:
        self._of = features
        self._columns = columns

    def answers(self, ranges: Ranges) -> dict[str, pa.Array]:
        """Return each feature of each query.

        Raises:
            DataError: a sum does not fit into its type.
        """
        return {feature.compiled.name: self._answer(feature, *ranges[feature.window_ms]) for feature in self._of.asked}

    def cells(self, low: int, high: int) -> Ir:
        """Return the cells of one range of events."""
        found: list[Any] = []
        for kind, number in self._of.cells:
            column = self._columns[number]
            start, end = (int(place[0]) for place in column.ranges(np.array([low]), np.array([high])))
            if kind == "count":
                found.append(end - start)
            elif kind == "sum":
                found.append(column.total(start, end))
            else:
                found.append(column.extreme(start, end, kind))
        return tuple(found)

    def merged(self, base: Ir | None, low: int, high: int) -> Ir:
        """Return the cells of one range of events, merged with a base."""
        cells = self.cells(low, high)
        if base is None:
            return cells
        return tuple(
            operation.merge(one, other) for operation, one, other in zip(self._of.operations, base, cells, strict=True)
        )

    def answers_of_all_time(self, base: Ir, ranges: tuple[Integers, Integers], count: int) -> dict[str, pa.Array]:
        """Return the features without a window of the first ``count`` queries, with a base before their ranges."""
        features = [feature for feature in self._of.asked if feature.window_ms is None]
        values: dict[str, list[Any]] = {feature.compiled.name: [] for feature in features}
        for low, high in zip(ranges[0][:count].tolist(), ranges[1][:count].tolist(), strict=True):
            ir = self.merged(base, low, high)
            for feature in features:
                compiled = feature.compiled
                values[compiled.name].append(compiled.finish(*[ir[position] for position in compiled.positions]))
        return {
            feature.compiled.name: feature_column(values[feature.compiled.name], feature.compiled)
            for feature in features
        }

    def _answer(self, feature: _Asked, low: Integers, high: Integers) -> pa.Array:
        column = self._columns[feature.column]
        start, end = column.ranges(low, high)
        counts = end - start
        if feature.operation == "count":
            return pa.array(counts, mask=counts == 0)
        if feature.operation in ("min", "max"):
            return column.extremes(start, end, "min" if feature.operation == "min" else "max")
        missing = counts == 0
        if feature.operation == "average":
            input_type = parse_type(self._of.fields[feature.column or 0].type)
            averages = column.averages(start, end, np.maximum(counts, 1), input_type.scale)
            return pa.array(averages, mask=missing)
        if column.is_fraction:
            return pa.array(column.averages(start, end, np.ones(len(counts), np.int64)), mask=missing)
        totals, too_large = column.totals(start, end)
        if feature.type.kind == "decimal" or too_large.any():
            rows = zip(start.tolist(), end.tolist(), strict=True)
            finished = [feature.compiled.finish(column.total(one, other), other - one) for one, other in rows]
            return feature_column(finished, feature.compiled)
        return typed_column(totals, missing, feature.type)


def feature_column(values: Sequence[Any], feature: CompiledFeature) -> pa.Array:
    """Return finished values of a feature as an Arrow column of the feature's type.

    Raises:
        DataError: a value does not fit, such as a sum of more than 64 bits.
    """
    type_ = parse_type(feature.type)
    if type_.element is not None:
        values = [arrow_value(value, type_) for value in values]
    try:
        return pa.array(values, type_.arrow())
    except (pa.ArrowInvalid, OverflowError) as cause:
        raise DataError(
            f"feature {feature.name!r}: a value does not fit into {feature.type}: {cause}; "
            "declare its input decimal(19,0) if sums grow beyond 64 bits"
        ) from cause


def arrow_value(value: Any, type_: DataType) -> Any:
    """Return an edge value in the form that Arrow takes: a map as its pairs.

    >>> arrow_value({"a": 1}, parse_type("map<string,long>"))
    [('a', 1)]
    """
    if value is None or type_.element is None:
        return value
    if type_.key is None:
        return [arrow_value(one, type_.element) for one in value]
    return [(key, arrow_value(one, type_.element)) for key, one in value.items()]
