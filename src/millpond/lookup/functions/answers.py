"""Checks of a source's answers, and the results of a batch of keys.

Place on the data path: between the source and the cache. The invariant: **an answer is accepted as a whole or not at
all**. Three mistakes are found:

- A row of another width would put values under the wrong columns.
- A key that was not requested means that the source writes keys differently. The requested key would seem to have no
  rows.
- A value of another type means that the source has changed.

A failure belongs to a key or to the source. A failure of a key does not affect the other keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup.functions.function import Key, Rows

K = TypeVar("K")
_OF_THE_SOURCE = (UnavailableError, ConnectionError, TimeoutError, OptionError)
_MOST_REQUESTS = 100
"""The most requests that may fail in the search for failing keys; with one more, the whole batch fails."""


@dataclass(slots=True)
class Answers:
    """The results for a batch of keys: for each key its rows, or its failure."""

    rows: dict[Key, Rows] = field(default_factory=dict)
    failures: dict[Key, Exception] = field(default_factory=dict)

    def add(self, other: "Answers") -> None:
        """Add the results for other keys."""
        self.rows.update(other.rows)
        self.failures.update(other.failures)

    def all_rows(self) -> dict[Key, Rows]:
        """Return the rows of every key; raise the first failure, if any."""
        for failure in self.failures.values():
            raise failure
        return self.rows


def is_of_a_key(error: BaseException) -> bool:
    """Return whether a failure may belong to a key, so that other keys can be answered. Else it is the source's."""
    return isinstance(error, Exception) and not isinstance(error, _OF_THE_SOURCE)


class Halves(Generic[K]):
    """Splits a failed request in halves, to be asked for again, until each failing key is found.

    >>> halves, seen = Halves([1, 2, 3, 4]), []
    >>> while (part := halves.next()) is not None:
    ...     seen.append(part)
    ...     if 3 in part:
    ...         halves.failed(part, ValueError("3"))
    >>> seen, list(halves.failures)
    ([[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]], [3])
    """

    def __init__(self, keys: Sequence[K]) -> None:
        self._waiting = [list(keys)]
        self._requests = 0
        self.failures: dict[K, Exception] = {}

    def next(self) -> list[K] | None:
        """Return the keys to request next; None if all are done."""
        return self._waiting.pop() if self._waiting else None

    def failed(self, keys: list[K], error: Exception) -> None:
        """Split these keys, whose request failed. Raise the error if it is the source's, or one too many."""
        self._requests += 1
        if not is_of_a_key(error) or self._requests > _MOST_REQUESTS:
            raise error
        if len(keys) == 1:
            self.failures[keys[0]] = error
            return
        half = len(keys) // 2
        self._waiting += [keys[half:], keys[:half]]


def checked_answer(
    where: str, asked: Sequence[Key], answer: Mapping[Key, Rows], row_schema: pa.Schema
) -> dict[Key, Rows]:
    """Return the rows of every requested key; a key that the answer leaves out has none.

    Raises:
        DataError: the answer is not a mapping, has a key that was not requested, or a row that does not have
            one value of the declared type for each column.
    """
    if not isinstance(answer, Mapping):
        raise DataError(f"{where}: expected a mapping from keys to rows, got {type(answer).__name__}")
    found: dict[Key, Rows] = {}
    for key in asked:
        rows = answer.get(key)
        found[key] = [] if rows is None else list(checked_rows(where, key, rows, row_schema))
    _check_types(where, found, row_schema)
    if len(answer) > len(found) or any(key not in found for key in answer):
        strange = next(key for key in answer if key not in found)
        raise DataError(
            f"{where}: the answer has key {strange!r}, which was not asked for in this form; a source that changes "
            "keys (case, padding, type) would leave rows unmatched: let it answer under the keys it was given"
        )
    return found


def checked_rows(where: str, key: Key, rows: Rows, row_schema: pa.Schema) -> Rows:
    """Check the rows of one key and return them. Each must be a tuple of the declared width."""
    width = len(row_schema)
    for row in rows if isinstance(rows, (list, tuple)) else (rows,):
        if not isinstance(row, tuple) or len(row) != width:
            raise DataError(
                f"{where}, key {key!r}: expected rows as tuples of {width} values "
                f"({', '.join(row_schema.names)}), got {type(row).__name__} {row!r}; return a list of such tuples"
            )
    return rows


def _check_types(where: str, found: Mapping[Key, Rows], row_schema: pa.Schema) -> None:
    rows = [row for rows in found.values() for row in rows]
    for place, column in enumerate(row_schema):
        # A column of type null may hold anything, such as the result of a cached function.
        if not pa.types.is_null(column.type):
            _as_column(where, [row[place] for row in rows], column)


def _as_column(where: str, values: Sequence[object], column: pa.Field) -> None:
    try:
        pa.array(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
        raise DataError(
            f"{where}, column {column.name!r}: expected {column.type} as declared, but the source returned a value "
            f"that is not: {error}; mend the source or declare another type"
        ) from error
