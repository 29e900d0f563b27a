"""Requests and answers as Arrow tables, for callers with many rows.

Place on the data path: around `fetch_many`. Columns have the declared types, so a table of answers goes
into a model or a file as it is. A table has one kind of null, so the features whose null means "not
known" are named beside them, in ``unavailable``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import DataError
from millpond.features.types import DataType, parse_type
from millpond.serving.messages import FetchRequest, FetchResponse
from millpond.serving.prepared import Prepared

AT_COLUMN = "at"
UNAVAILABLE_COLUMN = "unavailable"


def requests_of(prepared: Prepared, table: pa.Table, at_ms: int) -> list[FetchRequest]:
    """Give one request for each row of a table of keys, context, and times.

    Raises:
        DataError: a column is missing or unknown.
    """
    target = prepared.target
    known = {**target.keys, **target.context}
    unknown = [name for name in table.column_names if name not in known and name != AT_COLUMN]
    missing = [name for name in target.keys if name not in table.column_names]
    if unknown or missing or len(set(table.column_names)) < len(table.column_names):
        raise DataError(
            f"the columns of a fetch of {target.name!r} are {list(known)} and, if wanted, {AT_COLUMN!r}, each "
            f"once; the table has {table.column_names}"
        )
    columns = {
        name: [_as_value(parse_type(type_), value) for value in table.column(name).to_pylist()]
        for name, type_ in known.items()
        if name in table.column_names
    }
    times = table.column(AT_COLUMN).to_pylist() if _has_times(known, table) else [None] * table.num_rows
    given = [name for name in target.context if name in columns]
    return [
        FetchRequest(
            target.name,
            {name: columns[name][row] for name in target.keys},
            at_ms if time is None else time,
            {name: columns[name][row] for name in given},
            prepared.features,
        )
        for row, time in enumerate(times)
    ]


def table_of(prepared: Prepared, answers: Sequence[FetchResponse]) -> pa.Table:
    """Give the answers as a table: keys, ``at``, a column for each feature, and ``unavailable``."""
    target = prepared.target
    arrays = {
        name: column(type_, [answer.keys[name] for answer in answers], name) for name, type_ in target.keys.items()
    }
    arrays[AT_COLUMN] = pa.array([answer.at for answer in answers], pa.int64())
    for name in prepared.features:
        arrays[name] = column(target.features[name], [answer.features.get(name) for answer in answers], name)
    arrays[UNAVAILABLE_COLUMN] = pa.array(
        [[name for name, state in answer.states.items() if state == "unavailable"] for answer in answers],
        pa.list_(pa.string()),
    )
    return pa.table(arrays)


def column(type_: str, values: Sequence[Any], name: str) -> pa.Array:
    """Give values of a declared type as an Arrow array.

    Raises:
        DataError: one does not fit, such as a sum of longs beyond 64 bits.
    """
    try:
        return pa.array(values, parse_type(type_).arrow())
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as cause:
        raise DataError(f"feature {name!r}: a value does not fit a column of type {type_}: {cause}") from cause


def _has_times(known: Mapping[str, str], table: pa.Table) -> bool:
    return AT_COLUMN in table.column_names and AT_COLUMN not in known


def _as_value(type_: DataType, value: Any) -> Any:
    """Arrow gives maps as lists of pairs."""
    return dict(value) if type_.kind == "map" and value is not None else value
