"""The compiled plan of a GroupBy: everything that can be known before the first event or request.

Upload, stream and fetcher share one plan, made once. It has resolved which cells an IR has and who
shares them, where each feature reads its answer, where the timeline of the batch is cut, how keys and
values are written, and what the features are called. A request only runs it: it looks up no name,
parses no window and decides nothing.

``finish`` costs one merge of each tile however many windows there are: windows all end at the query,
so a longer one is a shorter one plus older tiles. It walks from the shortest window to the longest,
each time merging only the tiles that come new (a column of cells at a time, in C), and adds the one
suffix of the batch that the window reaches into.
"""

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from millpond.errors import DataError, OptionError
from millpond.features.batch import BatchIr, Timeline, check_batch_end
from millpond.features.codec import KEY_FORMAT_VERSION, IrCodec, KeyCodec
from millpond.features.definitions import GroupBy
from millpond.features.inputs import EVENTS, InputColumns, Inputs
from millpond.features.operations import CELLS_OF, CellKind, Ir, Value, cell_operation, finisher
from millpond.features.tiles import Tile, tiles_between
from millpond.features.windows import TILE_MS, hop_ms, parse_window, window_start

_COLLECTED_AT_ONCE = 4096
"""How many events of a segment wait to be collected together: a key may have more than memory holds."""


@dataclass(frozen=True, slots=True)
class _Window:
    """One window length, and the features that read it: their positions and how each is finished."""

    window_ms: int | None
    features: tuple[tuple[int, Callable[[Ir], Value | None]], ...]


class GroupByPlan:
    """A GroupBy made ready to run; immutable, picklable, safe to share between threads.

    Made by `compile_group_by`.
    """

    tile_ms = TILE_MS
    """The size of a tile, in milliseconds."""

    def __init__(self, group_by: GroupBy) -> None:
        self.group_by = group_by
        self.name = group_by.name
        self.feature_names = group_by.feature_names
        self.definition_hash = _definition_hash(group_by)
        self._inputs = InputColumns(group_by)
        cells = _cells(group_by)
        self._cells = tuple(cells)
        types = [field.type for field in group_by.inputs]
        typed: list[tuple[CellKind, str | None]] = [
            (kind, None if column == EVENTS else types[column]) for kind, column in cells
        ]
        self._operations = tuple(cell_operation(*cell) for cell in typed)
        self._columns = tuple(column for _, column in cells)
        self._windows = _windows(group_by, cells, types)
        self._timeline = Timeline(window.window_ms for window in self._windows if window.window_ms is not None)
        self._keeps_all = any(window.window_ms is None for window in self._windows)
        self._keys = KeyCodec(group_by.name, group_by.keys)
        self._codec = IrCodec(group_by.name, self.definition_hash, tuple(typed))
        self._empty: Ir = tuple(operation.init for operation in self._operations)

    def __reduce__(self) -> tuple[Callable[[GroupBy], "GroupByPlan"], tuple[GroupBy]]:
        return compile_group_by, (self.group_by,)

    def __repr__(self) -> str:
        return f"GroupByPlan({self.name!r}, {len(self.feature_names)} features, {self.definition_hash})"

    # Keys and values as bytes.

    def encode_key(self, key: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """Give the bytes of a key, given by name or in declared order.

        Raises:
            DataError: a part is missing, unknown, or not of its declared type.
        """
        return self._keys.encode(key)

    def encode_batch(self, batch_ir: BatchIr) -> bytes:
        """Give the bytes of a batch IR; equal IRs give equal bytes."""
        return self._codec.encode_batch(batch_ir)

    def decode_batch(self, data: bytes) -> BatchIr:
        """Give the batch IR that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another format or definition.
        """
        return self._codec.decode_batch(data)

    def encode_tile(self, tile: Tile) -> bytes:
        """Give the bytes of a tile; equal tiles give equal bytes."""
        return self._codec.encode_tile(tile)

    def decode_tile(self, data: bytes) -> Tile:
        """Give the tile that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another format or definition.
        """
        return self._codec.decode_tile(data)

    # The algebra.

    def new_ir(self) -> Ir:
        """Give the IR of no events."""
        return self._empty

    def collect(self, events: Sequence[Inputs]) -> Ir:
        """Give the IR of some events, in any order.

        Raises:
            DataError: an event has too many or too few inputs, or one that is not of its declared type.
        """
        if not events:
            return self._empty
        columns = self._inputs.columns(events)
        return tuple(
            operation.collect(columns[column])
            for operation, column in zip(self._operations, self._columns, strict=True)
        )

    def update(self, ir: Ir, inputs: Inputs) -> Ir:
        """Give the IR of one more event; ``ir`` stays as it is.

        Raises:
            DataError: as `collect`.
        """
        return self.merge(ir, self.collect((inputs,)))

    def merge(self, left: Ir, right: Ir) -> Ir:
        """Give the IR of the events of both, a fresh one; any order gives the same."""
        return tuple(
            operation.merge(one, other) for operation, one, other in zip(self._operations, left, right, strict=True)
        )

    def batch_ir(self, events: Iterable[tuple[int, Inputs]], batch_end_ms: int) -> BatchIr:
        """Give what a batch keeps of one key.

        Args:
            events: the time and the inputs of each event of the key, in any order. Those at or after
                the batch end belong to the stream, and those before every window to nobody: both are
                left out.
            batch_end_ms: a midnight UTC.

        Raises:
            OptionError: the batch end is not a midnight.
            DataError: as `collect`.
        """
        check_batch_end(batch_end_ms)
        segment_of = self._timeline.segment
        irs: dict[int, Ir] = {}
        pending: dict[int, list[Inputs]] = {}
        for time_ms, inputs in events:
            if time_ms < batch_end_ms:
                segment = segment_of(time_ms - batch_end_ms)
                waiting = pending.setdefault(segment, [])
                waiting.append(inputs)
                if len(waiting) == _COLLECTED_AT_ONCE:
                    irs[segment] = self.merge(irs.get(segment, self._empty), self.collect(waiting))
                    waiting.clear()
        if not self._keeps_all:
            pending.pop(0, None)
        segments = sorted(pending)
        suffixes: list[Ir] = []
        suffix = self._empty
        for segment in reversed(segments):
            ir = self.merge(irs.get(segment, self._empty), self.collect(pending[segment]))
            suffix = self.merge(suffix, ir)
            suffixes.append(suffix)
        return BatchIr(batch_end_ms, tuple(segments), tuple(reversed(suffixes)))

    # Answers.

    def finish(
        self, query_ms: int, batch_end_ms: int, batch_ir: BatchIr | None, tiles: Iterable[Tile]
    ) -> dict[str, Value | None]:
        """Give every feature of one key as of a time, in declared order; no data is None, for counts too.

        A tile cannot tell what came before a moment inside it: one that starts before the query counts
        whole. On a five-minute mark the answer is therefore exact. Off a mark it is exact too for a
        query about now (no later event exists yet), but a query about the past also sees the events
        from it up to the next mark.

        More than two days after the batch end, the windows that `stale_features` names reach further
        back than they should: to the last point that the batch can still tell apart.

        Args:
            query_ms: as of when; at or after the batch end.
            batch_end_ms: the batch end being served, a midnight UTC.
            batch_ir: what the batch has of the key; None if nothing.
            tiles: the key's tiles, in any order; those outside of [batch end, query) are left out.

        Raises:
            OptionError: the query is before the batch end, or that is not a midnight.
            DataError: the batch IR is of another batch end, or tiles overlap or reach across the start
                of a window.
        """
        self._check_query(query_ms, batch_end_ms, batch_ir)
        chosen = tiles_between(tiles, batch_end_ms, query_ms)
        starts = [tile.start_ms for tile in chosen]
        newest = len(chosen)
        recent: Ir | None = None
        values: list[Value | None] = [None] * len(self.feature_names)
        for window in self._windows:
            start_ms = None if window.window_ms is None else window_start(query_ms, window.window_ms)
            oldest = 0 if start_ms is None else bisect_left(starts, start_ms)
            if oldest and start_ms is not None and chosen[oldest - 1].end_ms > start_ms:
                raise self._straddling(chosen[oldest - 1], start_ms)
            if oldest < newest:
                recent = self._merge_tiles(recent, chosen[oldest:newest])
                newest = oldest
            total = recent
            if batch_ir is not None and (start_ms is None or start_ms < batch_end_ms):
                segment = 0 if start_ms is None else self._timeline.segment(start_ms - batch_end_ms)
                past = batch_ir.since(segment)
                if past is not None:
                    total = past if total is None else self.merge(total, past)
            if total is not None:
                for position, finished in window.features:
                    values[position] = finished(total)
        return dict(zip(self.feature_names, values, strict=True))

    def stale_features(self, query_ms: int, batch_end_ms: int) -> tuple[str, ...]:
        """Name the features that a batch is too old to answer exactly; none within two days of its end."""
        return tuple(
            self.feature_names[position]
            for window in self._windows
            if window.window_ms is not None
            and not self._timeline.is_cut(window_start(query_ms, window.window_ms) - batch_end_ms)
            for position, _ in window.features
        )

    def explain(self) -> str:
        """Tell in plain text what was compiled: the key, the cells and who reads them, the windows and their hops."""
        names = [field.name for field in self.group_by.inputs]
        lines = [
            f"GroupBy {self.name}, definition {self.definition_hash}",
            "  key: " + ", ".join(f"{field.name} {field.type}" for field in self.group_by.keys),
            "  cells of an IR:",
        ]
        for position, (kind, column) in enumerate(self._cells):
            lines.append(f"    {position}: {kind} of {'events' if column == EVENTS else names[column]}")
        lines.append(f"  batch timeline: {len(self._timeline.cuts_ms) + 1} segments; tiles of {self.tile_ms} ms")
        lines.append("  windows, shortest first:")
        for window in self._windows:
            span = (
                "all time" if window.window_ms is None else f"{window.window_ms} ms, hop {hop_ms(window.window_ms)} ms"
            )
            features = ", ".join(self.feature_names[position] for position, _ in window.features)
            lines.append(f"    {span}: {features}")
        return "\n".join(lines)

    def _merge_tiles(self, newer: Ir | None, tiles: Sequence[Tile]) -> Ir:
        irs = [tile.ir for tile in tiles]
        if newer is not None:
            irs.append(newer)
        if len(irs) == 1:
            return irs[0]
        return tuple(
            operation.merge_all(cells)
            for operation, cells in zip(self._operations, zip(*irs, strict=True), strict=True)
        )

    def _check_query(self, query_ms: int, batch_end_ms: int, batch_ir: BatchIr | None) -> None:
        check_batch_end(batch_end_ms)
        if query_ms < batch_end_ms:
            raise OptionError(
                f"GroupBy {self.name!r}: query_ms {query_ms} is before the batch end {batch_end_ms}, "
                "and a batch cannot take events back; ask for a time at or after it"
            )
        if batch_ir is not None and batch_ir.batch_end_ms != batch_end_ms:
            raise DataError(
                f"GroupBy {self.name!r}: the batch IR ends at {batch_ir.batch_end_ms}, expected {batch_end_ms}; "
                "read the batch and its end from the same serving info"
            )

    def _straddling(self, tile: Tile, start_ms: int) -> DataError:
        return DataError(
            f"GroupBy {self.name!r}: the tile of {tile.size_ms} ms at {tile.start_ms} reaches across {start_ms}, where "
            "a window starts; merged tiles serve only windows that hold them whole, so give that window smaller ones"
        )


def compile_group_by(group_by: GroupBy) -> GroupByPlan:
    """Compile a GroupBy once, for everything that will run it.

    >>> from millpond.features import Aggregation, Field, GroupBy, Tile
    >>> plan = compile_group_by(
    ...     GroupBy(
    ...         "route",
    ...         keys=(Field("origin", "string"),),
    ...         inputs=(Field("dep_delay", "double"),),
    ...         aggregations=(Aggregation("average", "dep_delay", windows=("1h", None)),),
    ...     )
    ... )
    >>> batch = plan.batch_ir([(86_400_000 - 1, (10.0,)), (0, (40.0,))], batch_end_ms=86_400_000)
    >>> tile = Tile(start_ms=86_400_000, ir=plan.collect([(20.0,), (None,)]))
    >>> plan.finish(86_700_000, 86_400_000, batch, [tile])
    {'dep_delay_average_1h': 15.0, 'dep_delay_average': 23.333333333333332}
    """
    return GroupByPlan(group_by)


def _definition_hash(group_by: GroupBy) -> str:
    """Give 16 hexadecimal digits that change with whatever changes the meaning of stored bytes."""
    aggregations = [
        {"operation": one.operation, "input": one.column, "windows": one.windows} for one in group_by.aggregations
    ]
    declared = {
        "name": group_by.name,
        "keys": [asdict(field) for field in group_by.keys],
        "inputs": [asdict(field) for field in group_by.inputs],
        "aggregations": aggregations,
    }
    definition = {"key_format": KEY_FORMAT_VERSION, "tile_ms": TILE_MS, "group_by": declared}
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def _cells(group_by: GroupBy) -> list[tuple[CellKind, int]]:
    """Give the cells that the aggregations need, each once, in the order they are first needed."""
    columns = {field.name: position for position, field in enumerate(group_by.inputs)}
    cells: dict[tuple[CellKind, int], None] = {}
    for aggregation in group_by.aggregations:
        column = EVENTS if aggregation.column is None else columns[aggregation.column]
        cells.update(dict.fromkeys((kind, column) for kind in CELLS_OF[aggregation.operation]))
    return list(cells)


def _windows(group_by: GroupBy, cells: list[tuple[CellKind, int]], types: list[str]) -> tuple[_Window, ...]:
    """Give the windows of all features, shortest first and all time last, each with who reads it."""
    columns = {field.name: position for position, field in enumerate(group_by.inputs)}
    features: list[tuple[float, int, Callable[[Ir], Value | None]]] = []
    for aggregation in group_by.aggregations:
        column = EVENTS if aggregation.column is None else columns[aggregation.column]
        positions = tuple(cells.index((kind, column)) for kind in CELLS_OF[aggregation.operation])
        finished = finisher(aggregation.operation, None if column == EVENTS else types[column], positions)
        for window in aggregation.windows:
            features.append((math.inf if window is None else parse_window(window), len(features), finished))
    by_length = groupby(sorted(features, key=itemgetter(0)), key=itemgetter(0))
    return tuple(
        _Window(
            None if length == math.inf else int(length), tuple((position, finished) for _, position, finished in group)
        )
        for length, group in by_length
    )
