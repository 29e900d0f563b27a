"""One call of the fetcher from Arrow to Arrow, column by column.

Place on the data path: beside `FetchCall`, for tables without derivations. Keys are encoded a column at a
time. Equal keys at one time are read and finished once. No row needs a request or an answer object. The same
rounds read the keys, and a test compares the answers of both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from millpond.features.query_times import refused_time
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.serving.answers.answer_columns import AnswerColumns
from millpond.serving.answers.answer_values import response
from millpond.serving.answers.fetch_call import Shared, want
from millpond.serving.answers.prepared import Prepared
from millpond.serving.counters import Tally
from millpond.serving.reads.fetch_rounds import Rounds, WantedKey, rounds

Row = tuple[WantedKey | None, ...]
"""What is read for each part of one row."""


class TableCall:
    """The rows of a table, and the keys that they want.

    Args:
        shared: what all calls share.
        prepared: the target and the features wanted of it, without derivations.
        columns: the key columns, by name, as Python values.
        times: the time of each row.

    Raises:
        DataError: a key is not of its declared type, or a time is not a whole number of milliseconds.
    """

    def __init__(
        self, shared: Shared, prepared: Prepared, columns: Mapping[str, Sequence[Any]], times: Sequence[int]
    ) -> None:
        for time in times:
            if type(time) is not int or time >= MAX_QUERY_MS:
                raise refused_time(prepared.target.name, time)
        self._shared = shared
        self._prepared = prepared
        self._times = times
        self._now_ms = shared.now()
        self._tally = Tally()
        self.wanted: dict[Any, WantedKey] = {}
        by_part = []
        for part in prepared.parts:
            keys = part.group.plan.encode_keys([columns[column] for column in part.columns])
            by_part.append(
                [None if key is None else want(self.wanted, part, key, at) for key, at in zip(keys, times, strict=True)]
            )
        self._rows: list[Row] = list(zip(*by_part, strict=True))

    def rounds(self) -> Rounds:
        """Read all wanted keys, as rounds of gets."""
        return rounds(self.wanted.values(), self._shared.infos, self._now_ms, self._tally)

    def answer(self) -> AnswerColumns:
        """Return the values, and the reasons for those that are unavailable."""
        prepared, stale = self._prepared, self._shared.stale
        known: dict[tuple[Row, int], tuple[dict[str, Any], dict[str, str]]] = {}
        rows = []
        for wanted, at in zip(self._rows, self._times, strict=True):
            found = known.get((wanted, at))
            if found is None:
                answer = response(prepared, {}, at, wanted, stale, {})
                found = known[wanted, at] = (answer.features, answer.errors)
            rows.append(found)
        columns = AnswerColumns(prepared.target, prepared.features, rows)
        self._count(columns)
        return columns

    def _count(self, columns: AnswerColumns) -> None:
        tally, unavailable = self._tally, columns.unavailable
        tally.requests = len(unavailable)
        tally.unavailable = sum(map(len, unavailable))
        tally.errors = sum(map(bool, unavailable))
        nulls: int = sum(array.null_count for array in columns.arrays.values())
        tally.null = nulls - tally.unavailable
        tally.present = len(unavailable) * len(columns.arrays) - nulls
        self._shared.counters.add(tally)
