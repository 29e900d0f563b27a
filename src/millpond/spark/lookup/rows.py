"""Looks up batches of keys in an opened table: distinct keys in, the positions and columns of their rows out.

This is the core of the lookup join, in workers and in state hosts. The invariant: every distinct key of a
batch is looked up once, and gets exactly the rows of that answer.

Keys and rows stay in Arrow, unless the source or the user's own cache has them as Python objects.
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
from millpond.lookup import LookupOptions, LookupStats, LookupTable, MappedTable, PartialCachingLookup
from millpond.lookup.caches.partial_columns import ColumnCachingLookup
from millpond.lookup.functions.keys import python_keys
from millpond.lookup.metrics import Counting, counting
from millpond.spark.environment.tracebacks import folded_texts
from millpond.spark.lookup.counts import WORKER_IDLE_MS, Counted, level_now
from millpond.spark.lookup.invalidations import Invalidated

Positions = npt.NDArray[np.int64]

MOST_OPEN_TABLES = 64
"""The number of tables that a process keeps open. Above it, the least recently used one is closed."""


@dataclass(frozen=True)
class RowsWanted:
    """What a join needs of a table: columns, the types that Spark gives them, and whether single keys may fail."""

    table_id: str
    name: str
    columns: tuple[str, ...]
    row_fields: tuple[pa.Field, ...]
    dead_letter: bool = False


@dataclass(frozen=True)
class Matches:
    """The rows of distinct keys.

    Attributes:
        starts: where the rows of each key begin.
        counts: how many rows each key has.
        rows: the columns of the rows, in the types that Spark gives them or in the large ones of these.
        counted: the counters of this lookup.
        places: None if a key's rows are at `start` and following; else they are at `places[start]` and following.
        failures: by key number, the error of each failed key in one line, and with its traceback.
        ages_ms: how long ago the rows of each key were loaded, -1 if they were not in the cache; None if not asked for,
            or not known.
    """

    starts: Positions
    counts: Positions
    rows: list[pa.Array]
    counted: Counted
    places: npt.NDArray[Any] | None = None
    failures: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    ages_ms: Positions | None = None


class Rows(Protocol):
    """An opened table as a join sees it."""

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """Return the rows of distinct keys, given as one array for each key column."""
        ...

    def close(self) -> None:
        """Release what only this partition uses."""
        ...


def distinct_keys(columns: Sequence[pa.Array]) -> tuple[Positions, list[pa.Array]]:
    """Number the distinct keys of a batch from 0. Return the key number of each row, -1 with a null, and the keys.

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
        # In order of first appearance, like the dictionaries.
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        distinct = distinct[order]
        before = pa.array(distinct // max(len(values), 1))
        keys = [*(key.take(before) for key in keys), values.take(pa.array(distinct % max(len(values), 1)))]
        numbers = np.full(len(numbers), -1, np.int64)
        numbers[known] = rank[inverse]
    return numbers, keys


def one_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """Encode a record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _numbered(column: pa.Array) -> tuple[Positions, pa.Array]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    encoded = column.dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers, encoded.dictionary


class PartialRows:
    """A table with a partial cache or none, looked up in columns, or in Python rows that are converted to Arrow."""

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
        self.idle_ms = idle_ms
        self._curves = Telling(None) if curves is None else curves
        self.failed = LookupStats()
        """The failed loads of the last `match` that raised."""

    def match(self, keys: Sequence[pa.Array], *, with_ages: bool = False) -> Matches:
        """Look up the keys in the cache, and those it lacks in the source. Ages are known of rows in columns."""
        with counting() as counted:
            try:
                if isinstance(self._lookup, ColumnCachingLookup):
                    return self._matched_columns(self._lookup, keys, counted, with_ages=with_ages)
                return self._matched_rows(self._lookup, keys, counted)
            except BaseException:
                failures = counted.stats.num_load_failure
                self.failed = LookupStats(load_count=failures, num_load_failure=failures)
                raise

    @property
    def schema(self) -> pa.Schema:
        """The columns that `match` returns."""
        return pa.schema(self._wanted.row_fields)

    def forget_missing(self, keys: Sequence[pa.Array]) -> None:
        """Remove those keys that are cached as missing, so that their next lookup asks the source."""
        if isinstance(self._lookup, ColumnCachingLookup):
            self._lookup.forget_missing(keys)
        else:
            self._lookup.forget_missing(python_keys(keys)[1])

    def _matched_columns(
        self, lookup: ColumnCachingLookup, keys: Sequence[pa.Array], counted: Counting, *, with_ages: bool
    ) -> Matches:
        matched = lookup.match(keys, isolate=self._wanted.dead_letter, with_ages=with_ages)
        columns = [
            _typed(self._wanted, matched.rows.rows.column(place), field)
            for place, field in zip(self._places, self._wanted.row_fields, strict=True)
        ]
        failures = {number: folded_texts(error) for number, error in matched.failures.items()}
        return Matches(
            matched.rows.starts,
            matched.rows.counts,
            columns,
            self._counted(counted),
            failures=failures,
            ages_ms=matched.ages_ms,
        )

    def _matched_rows(self, lookup: PartialCachingLookup, keys: Sequence[pa.Array], counted: Counting) -> Matches:
        places, asked = python_keys(keys)
        failures: dict[int, tuple[str, str]] = {}
        if self._wanted.dead_letter:
            each = lookup.lookup_each(asked)
            found = each.rows
            failures = {
                number: folded_texts(each.failures[key])
                for number, key in zip(places, asked, strict=True)
                if key in each.failures
            }
        else:
            found = lookup.lookup_many(asked)
        answers = [found.get(key, []) for key in asked]
        counts = np.zeros(len(keys[0]), np.int64)
        counts[places] = [len(answer) for answer in answers]
        rows = [row for answer in answers for row in answer]
        columns = [
            self._column([row[place] for row in rows], field)
            for place, field in zip(self._places, self._wanted.row_fields, strict=True)
        ]
        return Matches(np.cumsum(counts) - counts, counts, columns, self._counted(counted), failures=failures)

    def _counted(self, counted: Counting) -> Counted:
        level = level_now(self._lookup.stats(), self.idle_ms, self._curves.now())
        return Counted(counted.stats, {self._cache_id: level})

    def _column(self, values: list[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except _NOT_OF_THE_TYPE as error:
            raise _of_another_type(self._wanted, field, error) from error

    def close(self) -> None:
        """Do nothing: the cache stays for the next partition."""


_NOT_OF_THE_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def _typed(wanted: RowsWanted, column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in the type that Spark gives it."""
    try:
        return column if column.type == field.type else column.cast(field.type)
    except _NOT_OF_THE_TYPE as error:
        raise _of_another_type(wanted, field, error) from error


def _of_another_type(wanted: RowsWanted, field: pa.Field, error: Exception) -> DataError:
    return DataError(
        f"lookup table {wanted.name!r}, column {field.name!r}: expected {field.type} as declared, "
        f"but the source returned a value that is not: {error}; mend the source or declare another type"
    )


def is_large(kind: pa.DataType) -> bool:
    """Return whether a column may be too large for the type that Spark gives it, so that only rows of it are cast."""
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


class FullRows:
    """One version of a fully cached table. Its rows stay in the mapped file."""

    def __init__(self, wanted: RowsWanted, table: MappedTable) -> None:
        self.failed = LookupStats()
        self._table: MappedTable | None = table
        columns = [table.column(name) for name in wanted.columns]
        self._columns = [
            column if column.type == field.type or is_large(column.type) else column.cast(field.type)
            for column, field in zip(columns, wanted.row_fields, strict=True)
        ]

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """Find the keys in the index. Every key counts as a hit."""
        assert self._table is not None  # noqa: S101 - until it is closed
        found = self._table.search(keys)
        counted = Counted(LookupStats(hit_count=len(keys[0]), event_hit_count=len(keys[0])))
        return Matches(found.starts, found.counts, self._columns, counted, found.places)

    def forget_missing(self, keys: Sequence[pa.Array]) -> None:
        """Do nothing: missing keys are not cached, and the next version may have them."""

    def close(self) -> None:
        """Unmap the file, so that the next partition maps the newest version."""
        self._table, self._columns = None, []


class _Opened:
    """A table that is open in this process, and the version of the last invalidation that its cache applied."""

    def __init__(self, lookup: ColumnCachingLookup | PartialCachingLookup, version: int) -> None:
        self.cache_id = uuid.uuid4().hex
        self.lookup = lookup
        self.curves = Telling(getattr(lookup, "recording", None))
        self._version = version
        self._lock = threading.Lock()

    def hear(self, invalidated: Invalidated) -> None:
        """Drop the keys that were invalidated since the last call."""
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
    """Open a table that is not fully cached, unless this process has it open already.

    Joins with the same columns and options share it. With other options, such as a share's limits, it is another table.
    """
    heard = Invalidated.decode(invalidated)
    known = _OPEN.get_or_load((wanted.table_id, table.options), lambda _: _open(table, heard.version))
    known.hear(heard)
    return PartialRows(wanted, known.lookup, known.cache_id, idle_ms, known.curves)


def _open(table: LookupTable, version: int) -> _Opened:
    return _Opened(cast("ColumnCachingLookup | PartialCachingLookup", table.open_in_columns()), version)
