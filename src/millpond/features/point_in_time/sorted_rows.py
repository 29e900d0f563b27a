"""Turns the sorted events and queries of many keys into the features of each query, piece by piece.

Place on the data path: the training set sorts the events and queries of a partition together, by key and then by
time, and gives them to `answers` as Arrow batches. So queries and events are never joined row by row: each row is
read once.

Batches are combined into pieces of at least `PIECE_ROWS` rows, which may begin and end inside a key. Within a
piece every window of every query is a range of events. If a key goes on in the next piece, two things are carried
over: the events that its longest window still holds, and, if a feature has no window, the cells of all other
events. A piece is at least as large as what was carried over, so no event is carried over more than a few
times.

Invariant: rows of one key lie together, in order of time. At one time queries come first: an event
at the time of a query is not before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.features.cells.cell import Ir
from millpond.features.columnar.array_inputs import check_years, in_utc
from millpond.features.compiled_cells import CompiledFeature, compile_cells
from millpond.features.definitions import GroupBy
from millpond.features.definitions.feature_types import feature_types
from millpond.features.inputs import check_time_range, row_without_time
from millpond.features.latest_rows import row_bytes
from millpond.features.point_in_time.column_features import ColumnFeatures, Ranges, feature_column, is_columnar
from millpond.features.point_in_time.exact_sums import Integers
from millpond.features.point_in_time.key_sweep import KeySweep, SweepPlan
from millpond.features.query_times import refused_time
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.features.types import DataType, parse_type
from millpond.features.windows import hop_ms, window_start

PIECE_ROWS = 1 << 18
"""The least number of rows in a piece."""


class PointInTime:
    """Computes the features of a GroupBy as of many times; immutable, picklable.

    Queries of a snapshot GroupBy must come with the batch end before them as their time.

    Args:
        group_by: what to compute.
        piece_rows: the least number of rows in a piece.
        time_column: the column with the time of the queries, for errors.
    """

    def __init__(self, group_by: GroupBy, piece_rows: int = PIECE_ROWS, time_column: str = "time_ms") -> None:
        self.group_by = group_by
        self.piece_rows = piece_rows
        self.time_column = time_column
        self.types = feature_types(group_by)
        """The type of each feature, in declared order."""
        self.columnar = ColumnFeatures(group_by)
        swept = tuple(one for one in group_by.aggregations if not is_columnar(group_by, one))
        cells = compile_cells(replace(group_by, aggregations=swept, derivations=())) if swept else None
        self.sweep = None if cells is None else SweepPlan(cells)
        self.swept_features: tuple[CompiledFeature, ...] = () if cells is None else cells.features

    def __reduce__(self) -> tuple[type["PointInTime"], tuple[GroupBy, int, str]]:
        return PointInTime, (self.group_by, self.piece_rows, self.time_column)

    def answers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the query rows, with their features after their other columns.

        Args:
            batches: sorted rows: the keys; the time, in milliseconds; whether the row is a query; the
                inputs, in declared order, null for queries; then any columns of the queries.

        Raises:
            DataError: a row has no time, or an input cannot be aggregated.
        """
        state = _Task(self)
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= max(self.piece_rows, state.carried_rows):
                yield from state.answers(waiting)
                waiting, rows = [], 0
        yield from state.answers(waiting)


class _Task:
    """Works through the pieces of one sorted partition."""

    def __init__(self, of: PointInTime) -> None:
        self._of = of
        self._width = len(of.group_by.keys)
        self._inputs = slice(self._width + 2, self._width + 2 + len(of.group_by.inputs))
        self._carried: pa.Table | None = None  # events of the last key that its windows still hold
        self._key: tuple[Any, ...] | None = None  # the last key
        self._base: Ir | None = None  # the cells of the events of the last key that are not carried
        self._sweep: KeySweep | None = None

    @property
    def carried_rows(self) -> int:
        """How many events of the last key are carried over."""
        return 0 if self._carried is None else self._carried.num_rows

    def answers(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the answers of one piece."""
        if not any(batch.num_rows for batch in batches):
            return
        fresh = pa.Table.from_batches(batches)
        goes_on = _key_of(fresh, self._width, 0) == self._key
        if not goes_on:
            self._base, self._sweep, self._carried = None, None, None
        table = (fresh if self._carried is None else pa.concat_tables([self._carried, fresh])).combine_chunks()
        piece = _Piece(table, self._width, self._of)
        features = self._features(piece, self.carried_rows)
        self._take_along(piece)
        if len(piece.queries):
            rows = table.take(pa.array(piece.queries)).select(table.column_names[self._inputs.stop :])
            for name, column in features.items():
                rows = rows.append_column(name, column)
            yield rows

    def _features(self, piece: "_Piece", carried: int) -> dict[str, pa.Array]:
        """Return every feature of every query of the piece, in declared order."""
        of = self._of
        for field, column in zip(of.group_by.inputs, piece.table.columns[self._inputs], strict=True):
            check_years(f"GroupBy {of.group_by.name!r}", field, column)
        if not of.group_by.aggregations:
            return self._latest(piece)
        inputs = [column.combine_chunks() for column in piece.events_of(piece.table.columns[self._inputs])]
        self._over = of.columnar.over(inputs, len(piece.events))
        ranges = piece.ranges(of.columnar.windows)
        features = self._over.answers(ranges)
        if self._base is not None and None in of.columnar.windows:
            continued = int(np.searchsorted(piece.query_groups, 0, side="right"))
            for name, first in self._over.answers_of_all_time(self._base, ranges[None], continued).items():
                features[name] = pa.concat_arrays([first, features[name][continued:]])
        if of.sweep is not None:
            features |= self._swept(piece, inputs, carried)
        return {name: features[name] for name in of.types}

    def _latest(self, piece: "_Piece") -> dict[str, pa.Array]:
        """Return the inputs of the latest event before each query."""
        columns = [column.combine_chunks() for column in piece.table.columns[self._inputs]]
        latest = self._latest_of_their_time(piece, columns)
        found = np.where(piece.before > piece.first_events[piece.query_groups], piece.before - 1, -1)
        rows = pa.array(latest[found] if len(latest) else np.zeros(len(found), np.int64), mask=found < 0)
        return {
            name: column.take(rows).cast(parse_type(type_).arrow())
            for (name, type_), column in zip(self._of.types.items(), columns, strict=True)
        }

    def _latest_of_their_time(self, piece: "_Piece", columns: Sequence[pa.Array]) -> Integers:
        """Return the row of each event; for the last event of a key at a time, the latest of that time's rows."""
        events = piece.events.copy()
        ties = piece.ties
        if not ties.any():
            return events
        types = [parse_type(field.type) for field in self._of.group_by.inputs]
        last = np.flatnonzero(ties[1:] & ~np.append(ties[2:], False)) + 1  # where runs of one time end
        begin = np.flatnonzero(~ties)
        for end in last.tolist():
            first = int(begin[np.searchsorted(begin, end) - 1])
            rows = piece.events[first : end + 1]
            taken = [
                edge_values(column.take(pa.array(rows)), type_) for column, type_ in zip(columns, types, strict=True)
            ]
            encoded = [row_bytes(types, inputs) for inputs in zip(*taken, strict=True)]
            events[end] = rows[encoded.index(min(encoded))]
        return events

    def _swept(self, piece: "_Piece", inputs: Sequence[pa.Array], carried: int) -> dict[str, pa.Array]:
        plan = self._of.sweep
        assert plan is not None  # noqa: S101 - asked for only then
        types = [parse_type(field.type) for field in self._of.group_by.inputs]
        events = list(
            zip(*(edge_values(column, type_) for column, type_ in zip(inputs, types, strict=True)), strict=True)
        )
        if not inputs:
            events = [()] * len(piece.events)
        times = piece.times.tolist()
        groups = piece.groups.tolist()
        is_query = piece.is_query.tolist()
        values: dict[str, list[Any]] = {feature.name: [] for feature in self._of.swept_features}
        group, event = 0, carried
        sweep = self._sweep or KeySweep(plan)
        for row in range(carried, len(times)):  # carried events were swept with an earlier piece
            if groups[row] != group:
                group, sweep = groups[row], KeySweep(plan)
            if is_query[row]:
                for name, value in sweep.answer(times[row]).items():
                    values[name].append(value)
            else:
                sweep.add(times[row], events[event])
                event += 1
        self._sweep = sweep
        return {feature.name: feature_column(values[feature.name], feature) for feature in self._of.swept_features}

    def _take_along(self, piece: "_Piece") -> None:
        """Keep what the last key needs in the next piece."""
        table = piece.table
        group = int(piece.groups[-1])
        self._key = _key_of(table, self._width, table.num_rows - 1)
        first, end = int(piece.first_events[group]), len(piece.events)
        kept = end
        windows = [window for window in self._of.columnar.windows if window is not None]
        if not self._of.group_by.aggregations:
            kept = int(np.flatnonzero(~piece.ties)[-1]) if end > first else end
        elif windows:
            start_ms = window_start(int(piece.times[-1]), max(windows))
            kept = first + int(np.searchsorted(piece.event_times[first:], start_ms))
        if None in self._of.columnar.windows:
            base = self._base if group == 0 else None
            self._base = self._over.merged(base, first, kept)
        self._carried = table.take(pa.array(piece.events[kept:])) if kept < end else None


class _Piece:
    """One piece of sorted rows: which rows are events, which are queries, and the key of each."""

    def __init__(self, table: pa.Table, key_width: int, of: PointInTime) -> None:
        self.table = table
        times = table.column(key_width)
        self.is_query: npt.NDArray[np.bool_] = table.column(key_width + 1).to_numpy()
        if times.null_count:
            name = of.group_by.name
            raise row_without_time(name, of.time_column if self.is_query[times.is_null().to_numpy()].any() else None)
        self.times: Integers = times.to_numpy()
        if len(self.times):
            check_time_range(of.group_by.name, int(self.times.min()), int(self.times.max()))
        self.groups = _groups(table.columns[:key_width], table.num_rows)
        """The number of each row's key within the piece."""
        self.events = np.flatnonzero(~self.is_query)
        self.queries = np.flatnonzero(self.is_query)
        latest_ms = int(self.times[self.queries].max(initial=0))
        if latest_ms >= MAX_QUERY_MS:
            raise refused_time(of.group_by.name, latest_ms, of.time_column)
        self.event_times = self.times[self.events]
        self.query_groups = self.groups[self.queries]
        self.first_events = np.searchsorted(self.groups[self.events], np.arange(int(self.groups[-1]) + 2))
        """For each key the number of its first event among all events, followed by the number of events."""
        same = (np.diff(self.event_times) == 0) & (np.diff(self.groups[self.events]) == 0)
        self.ties = np.append(np.zeros(min(1, len(self.events)), bool), same)
        """For each event, whether the one before it has the same key and time."""
        self.before = np.cumsum(~self.is_query)[self.queries]
        """For each query, how many events come before its row."""

    def events_of(self, columns: Sequence[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
        """Return the rows of the events in some columns."""
        if not len(self.queries):
            return list(columns)
        events = pa.array(self.events)
        return [column.take(events) for column in columns]

    def ranges(self, windows: Iterable[int | None]) -> Ranges:
        """Return for each window length the range of events of each query."""
        search = _KeyedTimes(self.groups[self.events], self.event_times)
        queries = self.times[self.queries]
        ranges = {}
        for window_ms in windows:
            if window_ms is None:
                low = self.first_events[self.query_groups]
            else:
                hop = hop_ms(window_ms)
                low = search.first_from(self.query_groups, (queries - window_ms) // hop * hop)
            ranges[window_ms] = (low, self.before)
        return ranges


class _KeyedTimes:
    """Finds the first event of a key at or after a time, by one search over numbers that combine key and time."""

    def __init__(self, groups: Integers, times: Integers) -> None:
        self._ordered: Integers | None = None
        self._least = int(times.min()) if len(times) else 0
        self._span = (int(times.max()) if len(times) else 0) - self._least + 2
        if (int(groups[-1]) + 2 if len(groups) else 1) * self._span > np.iinfo(np.int64).max:
            self._ordered = np.unique(times)
            self._span = len(self._ordered) + 1
        self._numbers = self._number(groups, times)

    def first_from(self, groups: Integers, times: Integers) -> Integers:
        """Return the number of the first event of each key at or after each time; of the next key if there is none."""
        return np.searchsorted(self._numbers, self._number(groups, times))

    def _number(self, groups: Integers, times: Integers) -> Integers:
        if self._ordered is not None:
            return groups * self._span + np.searchsorted(self._ordered, times)
        return groups * self._span + np.clip(times - self._least, 0, self._span - 1)


def edge_values(column: pa.Array, type_: DataType) -> list[Any]:
    """Return the values of an Arrow column as Python values of the edge: maps as dicts, timestamps in UTC.

    >>> edge_values(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), parse_type("map<string,long>"))
    [{'a': 1}]
    """
    values: list[Any] = in_utc(column, type_).to_pylist()
    if type_.element is None and type_.kind != "timestamp":
        return values
    return [_edge_value(value, type_) for value in values]


def _edge_value(value: Any, type_: DataType) -> Any:
    if value is None:
        return None
    if type_.element is None:
        return value.astimezone(UTC) if type_.kind == "timestamp" else value
    if type_.key is None:
        return [_edge_value(one, type_.element) for one in value]
    return {key: _edge_value(one, type_.element) for key, one in value}


def _key_of(table: pa.Table, width: int, row: int) -> tuple[Any, ...]:
    return tuple(map(key_part, (column[row] for column in table.columns[:width])))


def key_part(value: Any) -> Any:
    """Return a part of a key, an Arrow scalar or column, as Python values that are equal exactly if it is."""
    # As numbers, because the years of Spark and Arrow do not end with Python's.
    if pa.types.is_timestamp(value.type):
        value = value.cast(pa.int64())
    elif pa.types.is_date(value.type):
        value = value.cast(pa.int32())
    return value.as_py() if isinstance(value, pa.Scalar) else value.to_pylist()


def _groups(keys: Sequence[pa.ChunkedArray], rows: int) -> Integers:
    """Number the keys of rows that are sorted by key; null equals null."""
    changes = np.zeros(rows, bool)
    for column in keys:
        key = column.combine_chunks()
        left, right = key[:-1], key[1:]
        differs = pc.fill_null(pc.not_equal(left, right), True)
        both_null = pc.and_(left.is_null(), right.is_null())
        changes[1:] |= pc.and_(differs, pc.invert(both_null)).to_numpy(zero_copy_only=False)
    return np.cumsum(changes)
