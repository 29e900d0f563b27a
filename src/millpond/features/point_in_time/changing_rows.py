"""Features of rows that come and go, as of many times: changes of entities, and events by their arrival.

A row here has two times: its own, which windows look at, and the one from which it counts. So in no order of
the rows is a window one range. Instead the rows of a key are kept by tile. A change touches one tile. A query
merges the tiles of its windows, and of the last one only the rows before the query.

Operations that can delete see the table as it is at the query. The others cannot remove a row. They see the same
as online: the table as it was at the midnight before the query, and the rows that came since. So at the first
query of a new day the key's tiles are collected again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millpond.errors import DataError
from millpond.features.cells.cell import Ir
from millpond.features.columnar.array_inputs import check_years
from millpond.features.definitions import GroupBy
from millpond.features.definitions.feature_types import feature_types
from millpond.features.inputs import Inputs, row_without_time
from millpond.features.latest_rows import latest_row, row_bytes
from millpond.features.plan import GroupByPlan, compile_group_by
from millpond.features.point_in_time.column_features import arrow_value
from millpond.features.point_in_time.sorted_rows import edge_values, key_part
from millpond.features.query_times import refused_time
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.features.tiles import Tile
from millpond.features.types import DataType, parse_type
from millpond.features.windows import DAY_MS


class ChangingRows:
    """Computes the features of a GroupBy whose rows come and go; immutable, picklable.

    Queries of a snapshot GroupBy must come with the batch end before them as their time.

    Args:
        group_by: what to compute.
        time_column: the column with the time of the queries, for errors.
    """

    def __init__(self, group_by: GroupBy, time_column: str = "time_ms") -> None:
        self.group_by = group_by
        self.time_column = time_column
        # This plan keeps its tiles by the rows' own times, as tiles of events are.
        self.plan = compile_group_by(replace(group_by, sources=(), derivations=()))
        self.types = feature_types(group_by)
        """The type of each feature, in declared order."""

    def __reduce__(self) -> tuple[type["ChangingRows"], tuple[GroupBy, str]]:
        return ChangingRows, (self.group_by, self.time_column)

    def answers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the query rows, with their features after their other columns.

        Args:
            batches: rows sorted by key, and then by the time from which they count, null first, and at
                one time queries first. Their columns: the keys; that time; whether the row is a query; the
                inputs; the row's own time; whether the row is removed; then any columns of the queries.

        Raises:
            DataError: a row has no time, or an input cannot be aggregated.
        """
        width = len(self.group_by.keys)
        types = [parse_type(field.type) for field in self.group_by.inputs]
        last_key: tuple[Any, ...] | None = None
        rows = _KeyRows(self.plan, self.time_column)
        for batch in batches:
            columns = batch.columns
            for field, column in zip(self.group_by.inputs, columns[width + 2 :], strict=False):
                check_years(f"GroupBy {self.group_by.name!r}", field, column)
            keys = list(zip(*map(key_part, columns[:width]), strict=True))
            counting, is_query, *inputs = (
                columns[width].to_pylist(),
                columns[width + 1].to_pylist(),
                *(edge_values(columns[width + 2 + n], type_) for n, type_ in enumerate(types)),
            )
            after = width + 2 + len(types)
            times, deletes = columns[after].to_pylist(), columns[after + 1].to_pylist()
            events = list(zip(*inputs, strict=True)) if inputs else [()] * batch.num_rows
            answers: list[dict[str, Any]] = []
            for row, key in enumerate(keys):
                if key != last_key:
                    last_key, rows = key, _KeyRows(self.plan, self.time_column)
                if is_query[row]:
                    answers.append(rows.answer(counting[row]))
                else:
                    rows.change(counting[row], times[row], events[row], is_delete=deletes[row])
            if answers:
                asked = pa.Table.from_batches([batch]).filter(columns[width + 1])
                yield self._with_features(asked.select(asked.column_names[after + 2 :]), answers)

    def _with_features(self, table: pa.Table, answers: list[dict[str, Any]]) -> pa.Table:
        for name, text in self.types.items():
            type_ = parse_type(text)
            try:
                column = pa.array([arrow_value(answer[name], type_) for answer in answers], type_.arrow())
            except (pa.ArrowInvalid, OverflowError) as cause:
                raise DataError(f"feature {name!r}: a value does not fit into {text}: {cause}") from cause
            table = table.append_column(name, column)
        return table


class _TileRows:
    """The rows of one tile: those there at midnight, those that came since and those that went since."""

    __slots__ = ("came", "ir", "stood", "went")

    def __init__(self) -> None:
        self.stood: dict[tuple[int, bytes], tuple[int, int, Inputs]] = {}
        """By time and stored bytes of a row: its count, its time, its inputs."""
        self.came: list[tuple[int, Inputs]] = []
        self.went: list[tuple[int, Inputs]] = []
        self.ir: Ir | None = None

    def settle(self, types: Sequence[DataType]) -> None:
        """Apply the rows that came and went to `stood`."""
        if not self.came and not self.went:
            return
        for rows, step in ((self.came, 1), (self.went, -1)):
            for time_ms, inputs in rows:
                row = (time_ms, row_bytes(types, inputs))
                count = self.stood.get(row, (0,))[0] + step
                self.stood[row] = (count, time_ms, inputs)
        self.stood = {row: stands for row, stands in self.stood.items() if stands[0]}
        self.came, self.went, self.ir = [], [], None

    def collect(self, plan: GroupByPlan, before_ms: int) -> Ir:
        """Return the IR of the rows before a time."""
        added = [(t, inputs) for count, t, inputs in self.stood.values() for _ in range(count)] + self.came
        gone = [(t, inputs) for count, t, inputs in self.stood.values() for _ in range(-count)] + self.went
        ir = _collected(plan, added, before_ms)
        return plan.delete(ir, _collected(plan, gone, before_ms)) if gone else ir


class _KeyRows:
    """The rows of one key by tile. Changes and queries must come in order of the time from which they count."""

    def __init__(self, plan: GroupByPlan, time_column: str) -> None:
        self._plan = plan
        self._time_column = time_column
        self._types = [parse_type(field.type) for field in plan.group_by.inputs]
        self._tiles: dict[int, _TileRows] = {}
        self._day_ms: int | None = None

    def change(self, counting_ms: int | None, time_ms: int | None, inputs: Inputs, *, is_delete: bool) -> None:
        """Add or remove a row."""
        if time_ms is None:
            raise row_without_time(self._plan.name, None)
        if counting_ms is not None:
            self._begin(counting_ms)
        start_ms = time_ms // self._plan.tile_ms * self._plan.tile_ms
        tile = self._tiles.setdefault(start_ms, _TileRows())
        (tile.went if is_delete else tile.came).append((time_ms, inputs))
        tile.ir = None

    def answer(self, query_ms: int | None) -> dict[str, Any]:
        """Return every feature as of a time; no data is None."""
        if query_ms is None:
            raise row_without_time(self._plan.name, self._time_column)
        if query_ms >= MAX_QUERY_MS:
            raise refused_time(self._plan.name, query_ms, self._time_column)
        self._begin(query_ms)
        if not self._plan.group_by.aggregations:
            return self._latest(query_ms)
        tile_ms = self._plan.tile_ms
        tiles = []
        for start_ms, tile in self._tiles.items():
            if start_ms + tile_ms <= query_ms:
                if tile.ir is None:
                    tile.ir = tile.collect(self._plan, query_ms)
                tiles.append(Tile(start_ms, tile_ms, ir=tile.ir))
            elif start_ms < query_ms:
                tiles.append(Tile(start_ms, tile_ms, ir=tile.collect(self._plan, query_ms)))
        begin_ms = min((tile.start_ms for tile in tiles), default=query_ms)
        step_ms = max(DAY_MS, tile_ms)
        return self._plan.finish(query_ms, begin_ms // step_ms * step_ms, None, tiles)

    def _latest(self, query_ms: int) -> dict[str, Any]:
        """Return the values of the latest row that is in the table."""
        for tile in self._tiles.values():
            tile.settle(self._types)
        standing = (
            (time_ms, inputs)
            for tile in self._tiles.values()
            for count, time_ms, inputs in tile.stood.values()
            if time_ms < query_ms and count > 0
        )
        latest = latest_row(self._types, standing)
        names = self._plan.feature_names
        return dict.fromkeys(names) if latest is None else dict(zip(names, latest[1], strict=True))

    def _begin(self, now_ms: int) -> None:
        """Settle all tiles if a time is on a new day."""
        day_ms = now_ms // DAY_MS
        if day_ms != self._day_ms:
            self._day_ms = day_ms
            for tile in self._tiles.values():
                tile.settle(self._types)


def _collected(plan: GroupByPlan, rows: list[tuple[int, Inputs]], before_ms: int) -> Ir:
    rows = [row for row in rows if row[0] < before_ms]
    return plan.collect([time_ms for time_ms, _ in rows], [inputs for _, inputs in rows])
