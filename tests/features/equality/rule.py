"""What every feature must be, from the raw events: the rule of windows and the plainest code of each operation."""

from datetime import datetime

from millpond.features.compiled_cells import compile_cells
from tests.features import operation_oracle
from tests.features.oracle import is_in_window

UNIQUE_ERROR = 0.016
"""The standard error of ``approx_unique_count``; answers lie within four of them."""


def answers(group_by, events, query_ms, *, gone=(), sees_until_ms=None):
    """Give every feature of one key.

    Args:
        group_by: the definition.
        events: (time, inputs) of the key.
        query_ms: as of when.
        gone: which of them were taken away again; operations that cannot delete ignore that.
        sees_until_ms: where the tile ends that holds the query, if it counts whole.
    """
    deletes = {feature.name: feature.deletes for feature in compile_cells(group_by).features}
    standing = list(events)
    for one in gone:
        standing.remove(one)
    return {
        name: _answer(
            group_by,
            aggregation,
            bucket,
            [
                (time, inputs)
                for time, inputs in (standing if deletes[name] else events)
                if (time < query_ms or time < (sees_until_ms or query_ms))
                and is_in_window(min(time, query_ms - 1), query_ms, window)
            ],
        )
        for aggregation in group_by.aggregations
        for name, window, bucket in aggregation.features
    }


def _answer(group_by, aggregation, bucket, rows):
    columns = [field.name for field in group_by.inputs]
    if aggregation.column is None:
        values, type_ = [(time, True) for time, _ in rows], "boolean"
    else:
        place = columns.index(aggregation.column)
        values, type_ = [(time, inputs[place]) for time, inputs in rows], group_by.inputs[place].type
    if bucket is None:
        present = [(time, _as_held(value)) for time, value in values if value is not None]
        return operation_oracle.shaped_answer(
            aggregation.operation, present, type_, element_wise=aggregation.element_wise
        )
    place = columns.index(bucket)
    by_bucket = [
        (time, None if value is None else _as_held(value), inputs[place])
        for (time, value), (_, inputs) in zip(values, rows, strict=True)
    ]
    return operation_oracle.bucketed_answer(
        aggregation.operation, by_bucket, type_, element_wise=aggregation.element_wise
    )


def _as_held(value):
    """What an answer never shows: that a zero was -0.0, or which of two clock readings a timestamp was."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, datetime):
        return value.replace(fold=0)
    if isinstance(value, list):
        return [None if one is None else _as_held(one) for one in value]
    if isinstance(value, dict):
        return {key: None if one is None else _as_held(one) for key, one in value.items()}
    return value


def differences(group_by, found, expected):
    """Name the features that differ: to the bit where the operation is exact, else by more than its bound."""
    estimates = {
        name
        for aggregation in group_by.aggregations
        if aggregation.operation == "approx_unique_count"
        for name in aggregation.feature_names
    }
    wrong = {}
    for name, value in expected.items():
        if name not in found:
            wrong[name] = ("missing", value)
        elif not (
            _near(found[name], value) if name in estimates else repr(_in_order(found[name])) == repr(_in_order(value))
        ):
            wrong[name] = (found[name], value)
    return wrong | {name: (value, "not expected") for name, value in found.items() if name not in expected}


def _in_order(value):
    """A value whose maps are in the order of their keys: a map has none of its own."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(one) for one in value] if isinstance(value, list) else value


def _near(found, expected):
    if found is None or expected is None:
        return found is expected
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(_near(found[key], one) for key, one in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_near, found, expected))
    return abs(found - expected) <= max(1, 4 * UNIQUE_ERROR * expected)
