"""Asks a source for the keys of a batch, in rows or in columns, with retries.

Place on the data path: between a cache and its source. A function that answers no batches is asked key by key. Then
each key has its own retries and its own failure, which does not affect the other keys. If the source does not
answer, all keys fail. The invariant: answers that came before a failure are in the caller's `answers`, whatever is
raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import DataError
from millpond.lookup.functions.answers import Answers, Halves, checked_answer, is_of_a_key
from millpond.lookup.functions.columns import AnswersInColumns, FoundColumns
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.functions.keys import KeyCheck, python_keys
from millpond.lookup.functions.retry import Retries

Positions = npt.NDArray[np.int64]


@dataclass(slots=True)
class ColumnAnswers:
    """The results for a batch of keys, by number. A key in `answered` has its rows in `found`, or has none."""

    answered: list[Positions] = field(default_factory=list)
    found: list[FoundColumns] = field(default_factory=list)
    failures: dict[int, Exception] = field(default_factory=dict)


class Requests:
    """Requests to one source.

    Args:
        function: the source.
        where: the source's name in messages.
        retries: how failures are tried again.
    """

    def __init__(self, function: LookupFunction, where: str, retries: Retries) -> None:
        self._function = function
        self._where = where
        self._retries = retries
        self._check = KeyCheck(where, function.key_schema)

    def open(self) -> None:
        """Open the source, with retries."""
        self._retries.run(f"{self._where}: opening it", self._function.open)

    def checked(self, keys: Sequence[Key]) -> list[Key]:
        """Return the distinct keys that can match something. A `DataError` names a key of the wrong type."""
        return self._check(keys)

    def rows(self, keys: list[Key], answers: Answers, *, isolate: bool) -> None:
        """Add the results of distinct keys to `answers`. Raise a failure that is not of a single key.

        If a batched request fails and `isolate` is set, its keys are asked for again in halves, until the failing keys
        are found. Without `isolate` the failure is raised.
        """
        if not keys:
            return
        halves = Halves(keys)
        batched = self._function.batched
        parts = iter(halves.next, None) if batched else ([key] for key in keys)
        for part in parts:
            try:
                answers.rows.update(self._asked(part))
            except Exception as error:
                if not is_of_a_key(error) or (batched and not isolate):
                    raise
                if batched:
                    halves.failed(part, error)
                else:
                    answers.failures[part[0]] = error
        answers.failures.update(halves.failures)

    def columns(self, keys: Sequence[pa.Array], answers: ColumnAnswers, *, isolate: bool) -> None:
        """Do what `rows` does, for keys given as one array without nulls for each key column."""
        if not isinstance(self._function, AnswersInColumns):
            self._rows_as_columns(keys, answers, isolate=isolate)
            return
        halves = Halves(range(len(keys[0])))
        for part in iter(halves.next, None):
            numbers = np.array(part, np.int64)
            asked = keys if len(part) == len(keys[0]) else [column.take(pa.array(numbers)) for column in keys]
            try:
                found = self._asked_in_columns(self._function, asked)
            except Exception as error:
                if not is_of_a_key(error) or not isolate:
                    raise
                halves.failed(part, error)
            else:
                answers.answered.append(numbers)
                answers.found.append(FoundColumns(numbers[found.numbers], found.rows))
        answers.failures.update(halves.failures)

    @property
    def batched(self) -> bool:
        """Whether one request can answer for many keys."""
        return self._function.batched or isinstance(self._function, AnswersInColumns)

    def _rows_as_columns(self, keys: Sequence[pa.Array], answers: ColumnAnswers, *, isolate: bool) -> None:
        places, asked = python_keys(keys)
        number_of = dict(zip(asked, places, strict=True))
        in_rows = Answers()
        try:
            self.rows(self._check(asked), in_rows, isolate=isolate)
        finally:
            numbers = np.array([number_of[key] for key in in_rows.rows], np.int64)
            counts = [len(rows) for rows in in_rows.rows.values()]
            rows = [row for rows in in_rows.rows.values() for row in rows]
            schema = self._function.row_schema
            arrays = [pa.array([row[place] for row in rows], column.type) for place, column in enumerate(schema)]
            answers.answered.append(numbers)
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            answers.found.append(FoundColumns(np.repeat(numbers, counts), batch))
            answers.failures.update({number_of[key]: error for key, error in in_rows.failures.items()})

    def _asked(self, keys: list[Key]) -> dict[Key, Rows]:
        function, where = self._function, self._where
        if function.batched:
            answer = self._retries.run(where, lambda: function.lookup_many(keys))
        else:
            answer = {key: self._retries.run(where, partial(function.lookup, key)) for key in keys}
        return checked_answer(where, keys, answer, function.row_schema)

    def _asked_in_columns(self, function: AnswersInColumns, keys: Sequence[pa.Array]) -> FoundColumns:
        found = self._retries.run(self._where, lambda: function.lookup_columns(keys))
        wanted, count = self._function.row_schema, len(keys[0])
        rows, numbers = found.rows, found.numbers
        if rows.schema.names != wanted.names or len(numbers) != (rows.num_rows if len(wanted) else len(numbers)):
            raise DataError(
                f"{self._where}: expected the columns {', '.join(wanted.names)} with a number for each row, got "
                f"{', '.join(rows.schema.names)} with {rows.num_rows} rows and {len(numbers)} numbers"
            )
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
            raise DataError(
                f"{self._where}: expected numbers of the {count} keys that were asked for, from 0, got "
                f"{int(numbers.min())} to {int(numbers.max())}"
            )
        return FoundColumns(numbers, self._typed(rows))

    def _typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the declared types."""
        arrays = []
        for column, wanted in zip(rows.columns, self._function.row_schema, strict=True):
            try:
                arrays.append(column if column.type == wanted.type else column.cast(wanted.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
                raise DataError(
                    f"{self._where}, column {wanted.name!r}: expected {wanted.type} as declared, but the source "
                    f"returned a value that is not: {error}; mend the source or declare another type"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._function.row_schema) if arrays else rows
