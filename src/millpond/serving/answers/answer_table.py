"""Requests and answers as Arrow tables, for callers with many rows.

Place on the data path: around the fetcher. Columns have the declared types, so a table of answers goes
into a model or a file as it is. A table has one kind of null. So ``unavailable`` names the features whose null
means "not known", and ``errors`` has the reasons.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import DataError
from millpond.features.types import DataType, parse_type
from millpond.serving.answers.answer_columns import AnswerColumns
from millpond.serving.answers.prepared import Prepared
from millpond.serving.messages import FetchRequest, FetchResponse

AT_COLUMN = "at"
UNAVAILABLE_COLUMN = "unavailable"
ERRORS_COLUMN = "errors"


def key_columns(prepared: Prepared, table: pa.Table) -> dict[str, list[Any]]:
    """Return the key and context columns of a table as Python values.

    Raises:
        DataError: a column is missing or unknown, or it is no table.
    """
    target = prepared.target
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise DataError(
            f"{target.name!r}: table is of type {type(table).__name__}; expected a pyarrow.Table with the columns "
            f"{list(target.keys)}, such as pyarrow.Table.from_pylist(keys)"
        )
    known = {**target.keys, **target.context}
    unknown = [name for name in table.column_names if name not in known and name != AT_COLUMN]
    missing = [name for name in target.keys if name not in table.column_names]
    if unknown or missing or len(set(table.column_names)) < len(table.column_names):
        raise DataError(
            f"the columns of a fetch of {target.name!r} are {list(known)} and, if wanted, {AT_COLUMN!r}, each "
            f"once; the table has {table.column_names}"
        )
    return {
        name: as_values(parse_type(type_), table.column(name).to_pylist())
        for name, type_ in known.items()
        if name in table.column_names
    }


def times_of(prepared: Prepared, table: pa.Table, at_ms: int) -> list[int]:
    """Return the time of each row: its own, or the given one if it has none."""
    target = prepared.target
    if AT_COLUMN not in table.column_names or AT_COLUMN in target.keys or AT_COLUMN in target.context:
        return [at_ms] * table.num_rows
    return [at_ms if time is None else time for time in table.column(AT_COLUMN).to_pylist()]


def requests_of(prepared: Prepared, columns: dict[str, list[Any]], times: Sequence[int]) -> list[FetchRequest]:
    """Return one request for each row of the columns of a table."""
    target = prepared.target
    given = [name for name in target.context if name in columns]
    return [
        FetchRequest(
            target.name,
            {name: columns[name][row] for name in target.keys},
            time,
            {name: columns[name][row] for name in given},
            prepared.features,
        )
        for row, time in enumerate(times)
    ]


def table_of(prepared: Prepared, answers: Sequence[FetchResponse]) -> pa.Table:
    """Return answers as a table; a key that a request did not need may be missing, and is null."""
    keys = {name: [answer.keys.get(name) for answer in answers] for name in prepared.target.keys}
    columns = AnswerColumns(
        prepared.target, prepared.features, [(answer.features, answer.errors) for answer in answers]
    )
    return table_of_columns(prepared, keys, [answer.at for answer in answers], columns)


def table_of_columns(
    prepared: Prepared, keys: dict[str, list[Any]], times: Sequence[int], answers: AnswerColumns
) -> pa.Table:
    """Return a table of keys, ``at``, a column for each feature, ``unavailable`` and ``errors``.

    A key or feature with the name of one of the table's own columns is in the column that `column_name` names.
    """
    arrays = {column_name("key", name): column(type_, keys[name], name) for name, type_ in prepared.target.keys.items()}
    arrays[AT_COLUMN] = pa.array(times, pa.int64())
    arrays |= {column_name("feature", name): values for name, values in answers.arrays.items()}
    arrays[UNAVAILABLE_COLUMN] = pa.array(answers.unavailable, pa.list_(pa.string()))
    arrays[ERRORS_COLUMN] = pa.array(
        [list(errors.items()) for errors in answers.errors], pa.map_(pa.string(), pa.string())
    )
    return pa.table(arrays)


def column_name(kind: str, name: str) -> str:
    """Return the name of the column of a key or feature: with a prefix if one of the table's own columns has its name.

    >>> column_name("key", "origin"), column_name("feature", "errors")
    ('origin', 'feature_errors')
    """
    return f"{kind}_{name}" if name in (AT_COLUMN, UNAVAILABLE_COLUMN, ERRORS_COLUMN) else name


def column(type_: str, values: Sequence[Any], name: str) -> pa.Array:
    """Return values of a declared type as an Arrow array.

    Raises:
        DataError: one does not fit.
    """
    try:
        return pa.array(values, parse_type(type_).arrow())
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as cause:
        raise DataError(f"column {name!r}: a value does not fit a column of type {type_}: {cause}") from cause


def as_values(type_: DataType, values: list[Any]) -> list[Any]:
    """Return the values with maps as dicts: Arrow returns them as lists of pairs."""
    return [None if value is None else dict(value) for value in values] if type_.kind == "map" else values
