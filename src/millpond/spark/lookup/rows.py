"""Batches of keys against an opened table: distinct keys in, the places and columns of their rows out.

The inside of the lookup join, in workers and in state hosts. The invariant: every distinct key of a
batch is asked for once, and gets exactly the rows that were answered for it.

Keys and rows stay in Arrow, unless the source, or a cache that the user made, has them as Python objects.
"""

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.cache import Cache, new_cache
from millpond.cache.curves.telling import Telling
from millpond.errors import DataError
from millpond.lookup import Key, LookupOptions, LookupStats, LookupTable, MappedTable, PartialCachingLookup
from millpond.lookup.caches.partial_columns import ColumnCachingLookup
from millpond.lookup.metrics import Counting, counting
from millpond.spark.environment.tracebacks import folded_texts
from millpond.spark.lookup.counts import WORKER_IDLE_MS, Counted, level_now
from millpond.spark.lookup.invalidations import Invalidated

Positions = npt.NDArray[np.int64]

MOST_OPEN_TABLES = 64
"""How many tables a process keeps open; the one joined longest ago is closed for the next."""


@dataclass(frozen=True)
class RowsWanted:
    """What of a table a join wants: its columns, the types that Spark gives them, and whether a key may fail alone."""

    table_id: str
    name: str
    columns: tuple[str, ...]
    row_fields: tuple[pa.Field, ...]
    dead_letter: bool = False


@dataclass(frozen=True)
class Matches:
    """Per distinct key where its rows begin and how many they are.

    `rows` are columns; with `places`, a key's rows lie at `places[start]` and on, else at `start` and on.
    `failures` has for the keys that failed the error, in a line and with its traceback.
    """

    starts: Positions
    counts: Positions
    rows: list[pa.Array]
    counted: Counted
    places: npt.NDArray[Any] | None = None
    failures: Mapping[int, tuple[str, str]] = field(default_factory=dict)


class Rows(Protocol):
    """An opened table as a join sees it."""

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """The rows of distinct keys, given as one array a key column."""
        ...

    def close(self) -> None:
        """Let go of what belongs to this partition alone."""
        ...


def distinct_keys(columns: Sequence[pa.Array]) -> tuple[Positions, list[pa.Array]]:
    """Number the keys of a batch from 0; -1 where a key column is null.

    >>> numbers, keys = distinct_keys([pa.array(["b", "a", None, "b"]), pa.array([1, 2, 3, 1])])
    >>> numbers.tolist(), [column.to_pylist() for column in keys]
    ([0, 1, -1, 0], [['b', 'a'], [1, 2]])
    """
    numbers, values = _numbered(columns[0])
    keys = [values]
    for column in columns[1:]:
        more, values = _numbered(column)
        known = (numbers >= 0) & (more >= 0)
        pairs = numbers[known] * max(len(values), 1) + more[known]
        distinct, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        # In the order in which they came, as dictionaries are.
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        distinct = distinct[order]
        before = pa.array(distinct // max(len(values), 1))
        keys = [*(key.take(before) for key in keys), values.take(pa.array(distinct % max(len(values), 1)))]
        numbers = np.full(len(numbers), -1, np.int64)
        numbers[known] = rank[inverse]
    return numbers, keys


def _numbered(column: pa.Array) -> tuple[Positions, pa.Array]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    encoded = column.dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers, encoded.dictionary


class PartialRows:
    """A table behind a partial cache, or none: what looks it up in columns, or in rows that are made Arrow here."""

    def __init__(
        self,
        wanted: RowsWanted,
        lookup: ColumnCachingLookup | PartialCachingLookup,
        cache_id: str = "",
        idle_ms: int = WORKER_IDLE_MS,
        curves: Telling | None = None,
    ) -> None:
        self._wanted = wanted
        self._lookup = lookup
        self._places = [lookup.row_schema.get_field_index(name) for name in wanted.columns]
        self._cache_id = cache_id
        self._idle_ms = idle_ms
        self._curves = Telling(None) if curves is None else curves
        self.failed = LookupStats()
        """The loads that failed in the last `match` that raised."""

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """Ask the cache and, for what it lacks, the source."""
        with counting() as counted:
            try:
                if isinstance(self._lookup, ColumnCachingLookup):
                    return self._matched_columns(self._lookup, keys, counted)
                return self._matched_rows(self._lookup, keys, counted)
            except BaseException:
                failures = counted.stats.num_load_failure
                self.failed = LookupStats(load_count=failures, num_load_failure=failures)
                raise

    def forget_missing(self, keys: Sequence[pa.Array]) -> None:
        """Have the source asked for those of the keys that are cached as missing."""
        if isinstance(self._lookup, ColumnCachingLookup):
            self._lookup.forget_missing(keys)
        else:
            self._lookup.forget_missing(list(zip(*(column.to_pylist() for column in keys), strict=True)))

    def _matched_columns(self, lookup: ColumnCachingLookup, keys: Sequence[pa.Array], counted: Counting) -> Matches:
        matched = lookup.match(keys, isolate=self._wanted.dead_letter)
        columns = [
            _typed(self._wanted, matched.rows.rows.column(place), field)
            for place, field in zip(self._places, self._wanted.row_fields, strict=True)
        ]
        failures = {number: folded_texts(error) for number, error in matched.failures.items()}
        return Matches(matched.rows.starts, matched.rows.counts, columns, self._counted(counted), failures=failures)

    def _matched_rows(self, lookup: PartialCachingLookup, keys: Sequence[pa.Array], counted: Counting) -> Matches:
        asked: list[Key] = list(zip(*(column.to_pylist() for column in keys), strict=True))
        failures: dict[int, tuple[str, str]] = {}
        if self._wanted.dead_letter:
            each = lookup.lookup_each(asked)
            found = each.rows
            failures = {
                number: folded_texts(each.failures[key]) for number, key in enumerate(asked) if key in each.failures
            }
        else:
            found = lookup.lookup_many(asked)
        answers = [found.get(key, []) for key in asked]
        counts = np.fromiter(map(len, answers), np.int64, len(asked))
        rows = [row for answer in answers for row in answer]
        columns = [
            self._column([row[place] for row in rows], field)
            for place, field in zip(self._places, self._wanted.row_fields, strict=True)
        ]
        return Matches(np.cumsum(counts) - counts, counts, columns, self._counted(counted), failures=failures)

    def _counted(self, counted: Counting) -> Counted:
        level = level_now(self._lookup.stats(), self._idle_ms, self._curves.now())
        return Counted(counted.stats, {self._cache_id: level})

    def _column(self, values: list[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except _NOT_OF_THE_TYPE as error:
            raise _of_another_type(self._wanted, field, error) from error

    def close(self) -> None:
        """Nothing: the cache stays for the next partition."""


_NOT_OF_THE_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def _typed(wanted: RowsWanted, column: pa.Array, field: pa.Field) -> pa.Array:
    """A column in the type that Spark gives it."""
    try:
        return column if column.type == field.type else column.cast(field.type)
    except _NOT_OF_THE_TYPE as error:
        raise _of_another_type(wanted, field, error) from error


def _of_another_type(wanted: RowsWanted, field: pa.Field, error: Exception) -> DataError:
    return DataError(
        f"lookup table {wanted.name!r}, column {field.name!r}: expected {field.type} as declared, "
        f"but the source returned a value that is not: {error}; mend the source or declare another type"
    )


class FullRows:
    """One version of a fully cached table: the index is asked, the rows stay where they are mapped."""

    def __init__(self, wanted: RowsWanted, table: MappedTable) -> None:
        self.failed = LookupStats()
        self._table: MappedTable | None = table
        columns = [table.column(name) for name in wanted.columns]
        self._columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, wanted.row_fields, strict=True)
        ]

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """Find the keys in the index; every one is a hit."""
        assert self._table is not None  # noqa: S101 - until it is closed
        found = self._table.search(keys)
        counted = Counted(LookupStats(hit_count=len(keys[0]), event_hit_count=len(keys[0])))
        return Matches(found.starts, found.counts, self._columns, counted, found.places)

    def forget_missing(self, keys: Sequence[pa.Array]) -> None:
        """Nothing: what is missing is in no cache, and may be in the next version."""

    def close(self) -> None:
        """Unmap the file, which may be outdated: the next partition maps the newest."""
        self._table, self._columns = None, []


class _Opened:
    """A table that is open in this process, and which invalidations its cache has heard of."""

    def __init__(self, lookup: ColumnCachingLookup | PartialCachingLookup, version: int) -> None:
        self.cache_id = uuid.uuid4().hex
        self.lookup = lookup
        self.curves = Telling(getattr(lookup, "recording", None))
        self._version = version
        self._lock = threading.Lock()

    def hear(self, invalidated: Invalidated) -> None:
        """Forget the keys that were invalidated since the last time."""
        with self._lock:
            if invalidated.version > self._version:
                self.lookup.invalidate(invalidated.since(self._version))
                self._version = invalidated.version


def _close(_key: tuple[str, LookupOptions], opened: _Opened, _cause: str) -> None:
    opened.lookup.close()


_OPEN: Cache[tuple[str, LookupOptions], _Opened] = new_cache(
    "open lookup tables", max_entries=MOST_OPEN_TABLES, on_evict=_close, shared=True
)


def opened(
    wanted: RowsWanted, table: LookupTable, idle_ms: int = WORKER_IDLE_MS, invalidated: bytes = b""
) -> PartialRows:
    """A table that is not cached in full, opened now or before in this process.

    Joins of the same columns with the same options share it; with other options, as those of a share, it is another.
    """
    heard = Invalidated.decode(invalidated)
    known = _OPEN.get_or_load((wanted.table_id, table.options), lambda _: _open(table, heard.version))
    known.hear(heard)
    return PartialRows(wanted, known.lookup, known.cache_id, idle_ms, known.curves)


def _open(table: LookupTable, version: int) -> _Opened:
    return _Opened(cast("ColumnCachingLookup | PartialCachingLookup", table.open_in_columns()), version)
