"""Which of several rows is the latest: that of the greatest time, and at one time of the greatest bytes.

A GroupBy without aggregations gives the values of its key's latest row. Rows of one time have no order of
their own, and arrive in any; their canonical bytes give them one, so upload and training set choose the
same row.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from millpond.features.inputs import Inputs

_encoder = msgspec.msgpack.Encoder(order="deterministic", decimal_format="string")


def row_bytes(inputs: Inputs) -> bytes:
    """Give the canonical bytes of a row: equal rows have equal bytes.

    >>> row_bytes(({"b": 1, "a": 2},)) == row_bytes(({"a": 2, "b": 1},))
    True
    >>> row_bytes(({7: 1, -1: 2},)) == row_bytes(({-1: 2, 7: 1},))
    True
    """
    return _encoder.encode([_with_text_keys(value) if type(value) is dict else value for value in inputs])


def _with_text_keys(value: dict[Any, Any]) -> dict[str, Any]:
    """Name a map's keys by texts: msgspec orders no others."""
    return {str(key): one for key, one in value.items()}


def latest_row(rows: Iterable[tuple[int, Inputs]]) -> tuple[int, Inputs] | None:
    """Give the time and the inputs of the latest row; None if there is none.

    >>> latest_row([(1, ("old",)), (2, ("b",)), (2, ("a",))])
    (2, ('b',))
    """
    latest: tuple[int, Any] | None = None
    for row in rows:
        if latest is None or row[0] > latest[0] or (row[0] == latest[0] and row_bytes(row[1]) > row_bytes(latest[1])):
            latest = row
    return latest
