"""The lookup join inside a Python worker: whole Arrow batches in, joined batches out.

Spark hands a partition to any worker and may end a worker at any time, so what is kept here is a
cache and nothing else: the tables that this process has opened, by the id that the driver gave the
table. A worker that is used again finds them; a new one opens them anew and gives the same answers.
The invariant: the rows of one key are asked for once per batch, and every event of a key gets
exactly the rows that were answered.

A batch is joined without touching its rows: its keys are numbered (`distinct_keys`), the distinct
ones looked up, and both sides taken by position. Rows whose key has a null get number -1 and match
nothing. A fully cached table is mapped from the newest file that the driver wrote; one partition
keeps to one file, so it sees one version of the table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.cache import Cache
from millpond.errors import DataError, UnavailableError
from millpond.lookup import Key, KeyedTable, LookupStats, LookupTable, PartialCachingLookup

Positions = npt.NDArray[np.int64]

MOST_OPEN_TABLES = 64
"""How many tables a worker keeps open; the one joined longest ago is closed for the next."""


@dataclass(frozen=True)
class JoinPlan:
    """What a worker needs to know of one lookup join.

    `source` is the table to open, or the directory with the files of a fully cached one, whose
    declaration stays on the driver. `key_places` are the event's columns that make its key, in the
    order of the table's `keys`; columns from `kept` on were added only to cast a key.
    """

    table_id: str
    name: str
    source: LookupTable | Path
    keys: tuple[str, ...]
    key_places: tuple[int, ...]
    kept: int
    inner: bool
    columns: tuple[str, ...]
    row_fields: tuple[pa.Field, ...]


@dataclass(frozen=True)
class Matches:
    """Per distinct key where its rows begin in `rows` and how many they are."""

    starts: Positions
    counts: Positions
    rows: list[pa.Array]


class Rows(Protocol):
    """An opened table as a join sees it."""

    def match(self, keys: Sequence[Key]) -> Matches:
        """The rows of distinct keys."""

    def stats(self) -> LookupStats:
        """What it counted in this process."""


def join_batches(
    plan: JoinPlan, batches: Iterator[pa.RecordBatch], report: Callable[[LookupStats], None]
) -> Iterator[pa.RecordBatch]:
    """Every batch of a partition, joined; `report` gets what was counted for it."""
    rows = _opened(plan)
    for batch in batches:
        before = rows.stats()
        try:
            joined = join_batch(plan, rows, batch)
        finally:
            report(rows.stats().since(before))
        yield joined


def join_batch(plan: JoinPlan, rows: Rows, batch: pa.RecordBatch) -> pa.RecordBatch:
    """One batch with the matching rows beside its own, once per match."""
    numbers, keys = distinct_keys([batch.column(place) for place in plan.key_places])
    matches = rows.match(keys)
    has_key = numbers >= 0
    counts = np.zeros(len(numbers), np.int64)
    counts[has_key] = matches.counts[numbers[has_key]]
    starts = np.zeros(len(numbers), np.int64)
    starts[has_key] = matches.starts[numbers[has_key]]
    repeats = counts if plan.inner else np.maximum(counts, 1)
    events = np.repeat(np.arange(len(numbers)), repeats)
    within = np.arange(len(events)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    places = pa.array(starts[events] + within, pa.int64(), mask=counts[events] == 0)
    kept = batch.select(range(plan.kept))
    if len(events) != len(numbers) or not (repeats == 1).all():
        kept = kept.take(pa.array(events))
    columns = [pc.take(column, places) for column in matches.rows]
    return pa.RecordBatch.from_arrays([*kept.columns, *columns], schema=pa.schema([*kept.schema, *plan.row_fields]))


def distinct_keys(columns: Sequence[pa.Array]) -> tuple[Positions, list[Key]]:
    """Number the keys of a batch from 0; -1 where a key column is null.

    >>> numbers, keys = distinct_keys([pa.array(["b", "a", None, "b"]), pa.array([1, 2, 3, 1])])
    >>> numbers.tolist(), [keys[number] for number in numbers if number >= 0]
    ([0, 1, -1, 0], [('b', 1), ('a', 2), ('b', 1)])
    """
    numbers, values = _numbered(columns[0])
    keys: list[Key] = [(value,) for value in values]
    for column in columns[1:]:
        more, values = _numbered(column)
        known = (numbers >= 0) & (more >= 0)
        pairs, inverse = np.unique(numbers[known] * max(len(values), 1) + more[known], return_inverse=True)
        keys = [(*keys[pair // len(values)], values[pair % len(values)]) for pair in pairs.tolist()]
        numbers = np.full(len(numbers), -1, np.int64)
        numbers[known] = inverse
    return numbers, keys


def _numbered(column: pa.Array) -> tuple[Positions, list[Any]]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    encoded = column.dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers, encoded.dictionary.to_pylist()


class PartialRows:
    """A table behind a partial cache, or none: rows as Python tuples, made Arrow once per batch."""

    def __init__(self, plan: JoinPlan, lookup: PartialCachingLookup) -> None:
        self._plan = plan
        self._lookup = lookup
        self._places = [lookup.row_schema.get_field_index(name) for name in plan.columns]

    def match(self, keys: Sequence[Key]) -> Matches:
        """Ask the cache and, for what it lacks, the source."""
        found = self._lookup.lookup_many(keys)
        counts = np.fromiter((len(found[key]) for key in keys), np.int64, len(keys))
        rows = [row for key in keys for row in found[key]]
        columns = [
            self._column([row[place] for row in rows], field)
            for place, field in zip(self._places, self._plan.row_fields, strict=True)
        ]
        return Matches(np.cumsum(counts) - counts, counts, columns)

    def _column(self, values: list[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise DataError(
                f"lookup table {self._plan.name!r}, column {field.name!r}: expected {field.type} as declared, "
                f"but the source returned a value that is not: {error}; mend the source or declare another type"
            ) from error

    def stats(self) -> LookupStats:
        """What was counted in this process."""
        return self._lookup.stats()


class FullRows:
    """One version of a fully cached table: the index is asked, the rows stay where they are mapped."""

    def __init__(self, plan: JoinPlan, table: KeyedTable) -> None:
        self._table = table
        self._starts = np.frombuffer(table.starts, np.int64)
        columns = [table.table.column(name).cast(field.type) for name, field in _added(plan)]
        self._columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]
        self._hits = 0

    def match(self, keys: Sequence[Key]) -> Matches:
        """Find the keys in the index."""
        self._hits += len(keys)
        groups = np.fromiter((self._table.groups.get(key, -1) for key in keys), np.int64, len(keys))
        known = groups >= 0
        starts, counts = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        starts[known] = self._starts[groups[known]]
        counts[known] = self._starts[groups[known] + 1] - starts[known]
        return Matches(starts, counts, self._columns)

    def stats(self) -> LookupStats:
        """Every key asked for is a hit."""
        return LookupStats(hit_count=self._hits)


def _added(plan: JoinPlan) -> Iterator[tuple[str, pa.Field]]:
    return zip(plan.columns, plan.row_fields, strict=True)


@dataclass(frozen=True)
class MappedTable:
    """A version of a full table that this process has mapped."""

    path: Path
    table: KeyedTable

    def close(self) -> None:
        """The mapping goes with its last reader."""


Opened: TypeAlias = PartialCachingLookup | MappedTable


def _close(_table_id: str, opened: Opened, _cause: str) -> None:
    opened.close()


_OPEN: Cache[str, Opened] = Cache("open lookup tables", max_entries=MOST_OPEN_TABLES, on_evict=_close, shared=True)


def _opened(plan: JoinPlan) -> Rows:
    """The table as this join wants it; joins of other columns share what is open."""
    source = plan.source
    if isinstance(source, LookupTable):
        lookup = _OPEN.get_or_load(plan.table_id, lambda _: _open(source))
        return PartialRows(plan, cast("PartialCachingLookup", lookup))
    newest = _newest(plan, source)
    mapped = _OPEN.get(plan.table_id)
    if not isinstance(mapped, MappedTable) or mapped.path != newest:
        mapped = MappedTable(newest, KeyedTable.read(newest, plan.keys))
        _OPEN.put(plan.table_id, mapped)
    return FullRows(plan, mapped.table)


def _open(table: LookupTable) -> PartialCachingLookup:
    """Open a table that is not cached in full; those come as a directory."""
    return cast("PartialCachingLookup", table.open())


def _newest(plan: JoinPlan, directory: Path) -> Path:
    versions = sorted(directory.glob("*.arrow"))
    if not versions:
        raise UnavailableError(
            f"lookup table {plan.name!r}: no file of it in {directory} on this host; the driver writes it there, "
            "so the executors must see the driver's temporary folder (TMPDIR), and the table must not be closed"
        )
    return versions[-1]
