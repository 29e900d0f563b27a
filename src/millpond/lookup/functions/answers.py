"""What a source answered, checked before anybody believes it.

Between the source and the cache. The invariant: **an answer is taken whole or not at all**. A row of
another width would put values under the wrong columns; a key that nobody asked for means that the
source writes keys otherwise, so that the key that was asked for would look as if it had no rows.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from millpond.errors import DataError
from millpond.lookup.functions.function import Key, Rows


def checked_answer(
    where: str, asked: Sequence[Key], answer: Mapping[Key, Rows], row_schema: pa.Schema
) -> dict[Key, Rows]:
    """The rows of every key that was asked for; keys that the answer leaves out have none.

    Raises:
        DataError: the answer is no mapping, has a key that was not asked for, or a row that has not
            one value for each declared column.
    """
    if not isinstance(answer, Mapping):
        raise DataError(f"{where}: expected a mapping from keys to rows, got {type(answer).__name__}")
    found: dict[Key, Rows] = {}
    for key in asked:
        rows = answer.get(key)
        found[key] = [] if rows is None else list(checked_rows(where, key, rows, row_schema))
    if len(answer) > len(found) or any(key not in found for key in answer):
        strange = next(key for key in answer if key not in found)
        raise DataError(
            f"{where}: the answer has key {strange!r}, which was not asked for in this form; a source that changes "
            "keys (case, padding, type) would leave rows unmatched: let it answer under the keys it was given"
        )
    return found


def checked_rows(where: str, key: Key, rows: Rows, row_schema: pa.Schema) -> Rows:
    """The rows of one key, each of the declared width."""
    width = len(row_schema)
    for row in rows if isinstance(rows, (list, tuple)) else (rows,):
        if not isinstance(row, tuple) or len(row) != width:
            raise DataError(
                f"{where}, key {key!r}: expected rows as tuples of {width} values "
                f"({', '.join(row_schema.names)}), got {type(row).__name__} {row!r}; return a list of such tuples"
            )
    return rows
