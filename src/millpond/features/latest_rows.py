"""The latest of several rows: the one with the greatest time, and among equal times the least stored bytes.

A GroupBy without aggregations returns the values of its key's latest row. Rows of one time arrive in any order.
Their stored bytes order them, so the training set chooses the row that the upload stores.
"""

from collections.abc import Iterable, Sequence

import msgspec

from millpond.features.inputs import Inputs
from millpond.features.stored.stored_features import to_stored
from millpond.features.types import DataType

_encode = msgspec.msgpack.Encoder().encode


def row_bytes(types: Sequence[DataType], inputs: Inputs) -> bytes:
    """Return the stored bytes of a row's values: equal rows have equal bytes.

    >>> from millpond.features.types import parse_type
    >>> types = [parse_type("map<string,long>")]
    >>> row_bytes(types, ({"b": 1, "a": 2},)) == row_bytes(types, ({"a": 2, "b": 1},))
    True
    """
    stored = [None if value is None else to_stored(type_, value) for type_, value in zip(types, inputs, strict=True)]
    return _encode(stored)


def latest_row(types: Sequence[DataType], rows: Iterable[tuple[int, Inputs]]) -> tuple[int, Inputs] | None:
    """Return the time and the inputs of the latest row; None if there is none.

    >>> from millpond.features.types import parse_type
    >>> latest_row([parse_type("string")], [(1, ("old",)), (2, ("b",)), (2, ("a",))])
    (2, ('a',))
    """
    latest: tuple[int, Inputs] | None = None
    for row in rows:
        if (
            latest is None
            or row[0] > latest[0]
            or (row[0] == latest[0] and row_bytes(types, row[1]) < row_bytes(types, latest[1]))
        ):
            latest = row
    return latest
