"""The compiled plan of a GroupBy: everything that can be known before the first event or request.

Upload, stream, training set and fetcher share one plan, made once. It holds the cells of an IR and the features that
share them, the positions at which each feature reads its cells, the cuts of the batch's timeline, the tiles, the codecs
of keys and values, and the names of the features. A request only runs the plan: it looks up no name, parses no window
and decides nothing.

Two hashes say what a change of the definition costs. The *generation* names the stream's dataset. It covers what gives
a tile's bytes their meaning: keys, tile sizes, formats. It does not cover the cells, which a tile names itself. The
*batch form* adds the cells and the cuts. One more window over the same cells changes neither the generation nor any
tile; it needs one upload.

`finish` is the plain form of answering, and the oracle of every faster one. It merges each tile once however many
windows there are: windows all end at the query, so a longer one is a shorter one plus older tiles.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from millpond.errors import DataError, OptionError
from millpond.features.batch import BatchIr, Timeline, check_batch_end
from millpond.features.cells.cell import Cell, Ir
from millpond.features.compiled_cells import compile_cells
from millpond.features.definitions import GroupBy
from millpond.features.inputs import Inputs, check_times
from millpond.features.layers import Span, layers_of, spans
from millpond.features.own_times import irs_since, keeps_own_times
from millpond.features.partial_ir import UNKNOWN, PartialIr, is_known
from millpond.features.plan_hashes import batch_form_of, definition_hash, generation_of
from millpond.features.planned_windows import planned_windows
from millpond.features.stored.format_1 import FORMAT_VERSION as FORMAT_1
from millpond.features.stored.format_1 import Format1Codec
from millpond.features.stored.key_codec import KeyCodec
from millpond.features.stored.value_codec import BatchCodec, TileCodec, ValueCodec
from millpond.features.tiles import Tile, tiles_between
from millpond.features.types import parse_type
from millpond.features.windows import DAY_MS, hop_ms, window_start, window_text

_FORMAT_1 = bytes((FORMAT_1,))

_COLLECTED_AT_ONCE = 4096
"""The number of a segment's events that are collected at once: a key may have more events than memory holds."""


class GroupByPlan:
    """A GroupBy compiled and ready to run; immutable, picklable, safe to share between threads.

    Made by `compile_group_by`.

    Attributes:
        cells: the compiled cells of an IR, and the features that read them.
        tile_cells: the compiled cells of a tile's IR: the same, unless the plan keeps own times.
        keeps_own_times: whether the cells of tiles are kept by the own times of their rows (`own_times`).
        tile_ms: the size of the smallest tile, in milliseconds.
        layers: the sizes of all tiles, ascending.
        windows: the windows of all features, shortest first and all time last.
        definition_hash: marks answers: 16 hexadecimal digits that change with the definition.
        generation: marks what the stream stores: 8 hexadecimal digits.
        tile_codec: writes and reads tiles.
        batch_form: marks what the upload stores: 16 hexadecimal digits.
    """

    def __init__(self, group_by: GroupBy) -> None:
        self.group_by = group_by
        self.name = group_by.name
        self.feature_names = group_by.feature_names
        self.cells = compile_cells(group_by)
        self.windows = planned_windows(self.cells.features)
        lengths = tuple(window.window_ms for window in self.windows)
        self.layers = layers_of(lengths, tiled=group_by.tiled)
        self.tile_ms = self.layers[0]
        self.keeps_own_times = keeps_own_times(group_by)
        self.tile_cells = compile_cells(group_by, self.tile_ms) if self.keeps_own_times else self.cells
        self._finite = tuple(length for length in lengths if length is not None)
        self._keeps_all = None in lengths
        self._timelines: dict[int, Timeline] = {}
        types = [parse_type(field.type) for field in group_by.inputs]
        if group_by.aggregations:
            types = [parse_type(feature.type) for feature in self.cells.features]
        self.definition_hash = definition_hash(group_by)
        self.generation = generation_of(group_by, self.layers)
        self.batch_form = batch_form_of(group_by, self.layers, lengths, [cell.id for cell in self.cells.cells], types)
        self._keys = KeyCodec(group_by.name, group_by.keys)
        self.tile_codec = TileCodec(group_by.name, self.generation, self.tile_cells.cells)
        self._batches = BatchCodec(group_by.name, self.batch_form, self.cells.cells)
        self._values = ValueCodec(group_by.name, self.feature_names, types)
        self._format_1 = Format1Codec(group_by, self.cells.cells)
        self._empty: Ir = tuple(cell.empty for cell in self.cells.cells)
        self._merges = tuple(cell.merge for cell in self.cells.cells)
        self._merge_alls = tuple(cell.merge_all for cell in self.cells.cells)

    def __reduce__(self) -> tuple[Callable[[GroupBy], "GroupByPlan"], tuple[GroupBy]]:
        return compile_group_by, (self.group_by,)

    def __repr__(self) -> str:
        return f"GroupByPlan({self.name!r}, {len(self.feature_names)} features, {self.definition_hash})"

    # Encoding of keys and values.

    def encode_key(self, key: Mapping[str, Any] | Sequence[Any]) -> bytes | None:
        """Return the bytes of a key, given by name or in declared order; None if a part is None.

        Raises:
            DataError: a part is missing, unknown, or not of its declared type.
        """
        return self._keys.encode(key)

    def encode_named_key(self, key: Mapping[str, Any]) -> bytes | None:
        """Return the bytes of a key that is given by name; None if a part is None.

        Raises:
            DataError: as `encode_key`; or the key is no mapping.
        """
        return self._keys.encode_named(key)

    def encode_many_keys(self, keys: Sequence[Mapping[str, Any]]) -> list[bytes | None]:
        """Return the bytes of many keys, each as from `encode_named_key`.

        Raises:
            DataError: as `encode_named_key`.
        """
        return self._keys.encode_many(keys)

    def encode_keys(self, columns: Sequence[Sequence[Any]]) -> list[bytes | None]:
        """Return the bytes of many keys, given as one column for each part, in declared order.

        Raises:
            DataError: a part is not of its declared type.
        """
        return self._keys.encode_columns(columns)

    def encode_batch(self, key: bytes, batch_ir: BatchIr) -> bytes:
        """Return the bytes of a key's batch IR; equal IRs give equal bytes."""
        return self._batches.encode(key, batch_ir)

    def encode_packed_batches(self, keys: Sequence[bytes], batch_end_ms: int, packed: Iterable[bytes]) -> list[bytes]:
        """Return the bytes of the batch IRs of some keys.

        Args:
            keys: the bytes of the keys.
            batch_end_ms: the end of the batch.
            packed: for each key, as MessagePack, the list of its segments, followed by a list of stored cells for each
                cell of the plan.
        """
        return self._batches.encode_packed(keys, batch_end_ms, packed)

    def decode_batch(self, key: bytes, data: bytes) -> BatchIr:
        """Return the batch IR that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or definition.
        """
        return self._format_1.decode_batch(data) if data[:1] == _FORMAT_1 else self._batches.decode(key, data)

    def encode_tile(self, key: bytes, tile: Tile) -> bytes:
        """Return the bytes of a key's tile; equal tiles give equal bytes."""
        return self.tile_codec.encode(key, tile)

    def decode_tile(self, key: bytes, data: bytes) -> Tile:
        """Return the tile that bytes hold; cells that it lacks are `UNKNOWN`.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or generation.
        """
        if data[:1] == _FORMAT_1 and not self.keeps_own_times:
            return self._format_1.decode_tile(data)
        return self.tile_codec.decode(key, data)

    def encode_values(self, key: bytes, values: Sequence[Any], batch_end_ms: int) -> bytes:
        """Return the bytes of a key's finished values, in the order of the features."""
        return self._values.encode(key, values, batch_end_ms)

    def decode_values(self, key: bytes, data: bytes) -> tuple[int, tuple[Any, ...]]:
        """Return the batch end and the finished values that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or definition.
        """
        return self._values.decode(key, data)

    # The algebra.

    def new_ir(self) -> Ir:
        """Return the IR of no events."""
        return self._empty

    def collect(self, times: Sequence[int], events: Sequence[Inputs]) -> Ir:
        """Return the IR of some events, in any order.

        Args:
            times: the time of each event, in milliseconds UTC.
            events: the inputs of each event, in declared order.

        Raises:
            DataError: an event has too many or too few inputs, or one that is not of its declared type.
        """
        return self.cells.collect(times, events) if events else self._empty

    def merge(self, left: Ir, right: Ir) -> Ir:
        """Return a new IR of the events of both; the order does not matter."""
        if type(left) is not tuple or type(right) is not tuple:
            return self.merge_all((left, right))
        return tuple([merge(one, other) for merge, one, other in zip(self._merges, left, right, strict=True)])

    def merge_all(self, irs: Sequence[Ir]) -> Ir:
        """Return the IR of the events of all, at least one; a cell that is unknown in one is unknown in the result."""
        if len(irs) == 1:
            return irs[0]
        return self._merged_all(self._merge_alls, irs)

    def _merged_all(self, merge_alls: Sequence[Callable[[Sequence[Any]], Any]], irs: Sequence[Ir]) -> Ir:
        columns = zip(*irs, strict=True)
        if set(map(type, irs)) == {tuple}:
            return tuple([merge_all(cells) for merge_all, cells in zip(merge_alls, columns, strict=True)])
        return PartialIr(
            UNKNOWN if UNKNOWN in cells else merge_all(cells)
            for merge_all, cells in zip(merge_alls, columns, strict=True)
        )

    def merge_tiles(self, irs: Sequence[Ir]) -> Ir:
        """Return the IR of a tile that holds the rows of all given tiles, at least one."""
        if not self.keeps_own_times or len(irs) == 1:
            return self.merge(*irs) if len(irs) == 2 else self.merge_all(irs)  # noqa: PLR2004 - a pair
        return self._merged_all([cell.merge_all for cell in self.tile_cells.cells], irs)

    def delete(self, ir: Ir, other: Ir) -> Ir:
        """Return the IR of a tile without the rows of another; cells that cannot delete stay as they are."""
        return type(ir)(
            one if operation.delete is None or one is UNKNOWN else operation.delete(one, gone)
            for operation, one, gone in zip(self.tile_cells.cells, ir, other, strict=True)
        )

    def irs_since(self, tiles: Sequence[Tile], starts: Sequence[int | None]) -> list[Ir]:
        """Return for each window start the IR of the tiles' rows whose own time is not before it.

        Only for a plan that keeps own times.
        """
        if not tiles:
            return [self._empty] * len(starts)
        return irs_since(self.cells.cells, self.merge_tiles([tile.ir for tile in tiles]), starts)

    # The batch.

    def timeline(self, batch_end_ms: int) -> Timeline:
        """Return the timeline of a batch end: the cuts of a key's past."""
        phase_ms = batch_end_ms % DAY_MS
        found = self._timelines.get(phase_ms)
        if found is None:
            found = self._timelines[phase_ms] = Timeline(self._finite, phase_ms)
        return found

    def segment_of(self, time_ms: int, batch_end_ms: int) -> int | None:
        """Return the segment that an event before the batch end lies in; None if no window can hold it."""
        segment = self.timeline(batch_end_ms).segment(time_ms - batch_end_ms)
        return segment if segment or self._keeps_all else None

    def batch_ir(self, events: Iterable[tuple[int, Inputs]], batch_end_ms: int) -> BatchIr:
        """Return the batch IR of one key.

        Args:
            events: the time and the inputs of each event of the key, in any order. Those at or after the batch end
                belong to the stream, and those before every window to no feature. Both are left out.
            batch_end_ms: a full hour, and a multiple of the smallest tile.

        Raises:
            OptionError: the batch end is not such a time.
            DataError: as `collect`.
        """
        check_batch_end(batch_end_ms, self.tile_ms)
        irs: dict[int, Ir] = {}
        pending: dict[int, tuple[list[int], list[Inputs]]] = {}
        for time_ms, inputs in events:
            if type(time_ms) is not int:
                check_times(self.name, [time_ms])
            if time_ms >= batch_end_ms:
                continue
            segment = self.segment_of(time_ms, batch_end_ms)
            if segment is None:
                continue
            times, waiting = pending.setdefault(segment, ([], []))
            times.append(time_ms)
            waiting.append(inputs)
            if len(waiting) == _COLLECTED_AT_ONCE:
                irs[segment] = self.merge(irs.get(segment, self._empty), self.collect(times, waiting))
                times.clear()
                waiting.clear()
        for segment, (times, waiting) in pending.items():
            irs[segment] = self.merge(irs.get(segment, self._empty), self.collect(times, waiting))
        return self.batch_of_segments(irs, batch_end_ms)

    def batch_of_segments(self, irs: Mapping[int, Ir], batch_end_ms: int) -> BatchIr:
        """Return the batch IR of one key, from the IR of each of its segments that has events."""
        segments = sorted(irs)
        columns = list(zip(*(irs[segment] for segment in segments), strict=True)) or [()] * len(self._empty)
        return self.batch_of_columns(segments, columns, batch_end_ms)

    def batch_of_columns(
        self, segments: Sequence[int], columns: Sequence[Sequence[Cell]], batch_end_ms: int
    ) -> BatchIr:
        """Return the batch IR of one key, from a column of its segments' cells for each cell of the plan."""
        return BatchIr(
            batch_end_ms,
            tuple(segments),
            tuple(
                suffixes(operation.merge, column) if operation.suffix else tuple(column)
                for operation, column in zip(self.cells.cells, columns, strict=True)
            ),
        )

    def batch_since(self, batch_ir: BatchIr, segment: int) -> Ir | None:
        """Return the IR of everything from the start of a segment to the batch end; None if nothing is there."""
        position = batch_ir.position(segment)
        if position == len(batch_ir.segments):
            return None
        return tuple(
            [
                column[position] if operation.suffix else operation.merge_all(column[position:])
                for operation, column in zip(self.cells.cells, batch_ir.columns, strict=True)
            ]
        )

    # Tiles.

    def spans(self, start_ms: int, end_ms: int, closed_ms: int, cuts_ms: Iterable[int] = ()) -> list[Span]:
        """Return the tiles that hold ``[start_ms, end_ms)``, as (layer number, start, end), oldest first.

        Args:
            start_ms: where the reading starts, such as the batch end.
            end_ms: where it ends, such as the query.
            closed_ms: every tile that ends here or before is closed.
            cuts_ms: where windows start, as `window_starts` returns them; no tile reaches across one.
        """
        return spans(self.layers, start_ms, end_ms, closed_ms, cuts_ms)

    def window_starts(self, query_ms: int) -> list[int]:
        """Return where the windows of a query start, latest first; a window of all time has no start."""
        return [window_start(query_ms, window_ms) for window_ms in self._finite]

    # Answers.

    def finish(
        self, query_ms: int, batch_end_ms: int, batch_ir: BatchIr | None, tiles: Iterable[Tile]
    ) -> dict[str, Any]:
        """Return every feature of one key as of a time, in declared order; no data is None, for counts too.

        A feature whose cell is missing in a tile is left out of the answer. A tile cannot tell which of its events
        came before a moment inside it, so a tile that starts before the query counts whole. So the answer is exact
        at the start of a tile. Inside a tile it is exact for a query about now, because no later event exists yet.
        A query about the past also sees the later events of that tile.

        More than two days after the batch end, the windows of `stale_features` reach further back than they should:
        to the last point that the batch can still tell apart.

        Args:
            query_ms: the time of the query; at or after the batch end.
            batch_end_ms: the batch end being served.
            batch_ir: the batch IR of the key; None if the batch has none.
            tiles: the key's tiles, of any layers and in any order; those outside of [batch end, query) are left out.

        Raises:
            OptionError: the query is before the batch end, or the batch end is not a full hour.
            DataError: the batch IR is of another batch end, or tiles overlap or reach across the start of a window.
        """
        self._check_query(query_ms, batch_end_ms, batch_ir)
        timeline = self.timeline(batch_end_ms)
        chosen = tiles_between(tiles, batch_end_ms, query_ms)
        starts = [tile.start_ms for tile in chosen]
        newest = len(chosen)
        recent: Ir | None = None
        by_own_time = self._recent_by_own_time(chosen, query_ms) if self.keeps_own_times else None
        values: dict[str, Any] = dict.fromkeys(self.feature_names)
        for window in self.windows:
            start_ms = None if window.window_ms is None else window_start(query_ms, window.window_ms)
            oldest = 0 if start_ms is None else bisect_left(starts, start_ms)
            if by_own_time is not None:
                recent = by_own_time[window.window_ms]
            elif oldest and start_ms is not None and chosen[oldest - 1].end_ms > start_ms:
                raise self._straddling(chosen[oldest - 1], start_ms)
            elif oldest < newest:
                irs = [tile.ir for tile in chosen[oldest:newest]]
                recent = self.merge_all(irs if recent is None else [*irs, recent])
                newest = oldest
            total = recent
            if batch_ir is not None and (start_ms is None or start_ms < batch_end_ms):
                segment = 0 if start_ms is None else timeline.segment(start_ms - batch_end_ms)
                past = self.batch_since(batch_ir, segment)
                if past is not None:
                    total = past if total is None else self.merge(total, past)
            if total is not None:
                for _, feature in window.features:
                    if is_known(total, feature.positions):
                        values[feature.name] = feature.finish(*[total[position] for position in feature.positions])
                    else:
                        del values[feature.name]
        return values

    def _recent_by_own_time(self, tiles: Sequence[Tile], query_ms: int) -> dict[int | None, Ir]:
        """Return for each window length the IR of the tiles' rows in that window."""
        lengths = [window.window_ms for window in self.windows]
        starts = [None if length is None else window_start(query_ms, length) for length in lengths]
        return dict(zip(lengths, self.irs_since(tiles, starts), strict=True))

    def stale_features(self, query_ms: int, batch_end_ms: int) -> tuple[str, ...]:
        """Return the features that a batch is too old to answer exactly; none within two days of its end."""
        timeline = self.timeline(batch_end_ms)
        return tuple(
            feature.name
            for window in self.windows
            if window.window_ms is not None
            and not timeline.is_cut(window_start(query_ms, window.window_ms) - batch_end_ms)
            for _, feature in window.features
        )

    def explain(self) -> str:
        """Describe in plain text what was compiled: key, cells, tiles, windows with their hops, and what can delete."""
        timeline = self.timeline(0)
        lines = [
            f"GroupBy {self.name}, definition {self.definition_hash}, generation {self.generation}",
            "  key: " + ", ".join(f"{field.name} {field.type}" for field in self.group_by.keys),
            "  cells of an IR:",
        ]
        for position, cell in enumerate(self.cells.cells):
            kept = "suffixes" if cell.suffix else "once per segment"
            deletes = "deletes" if cell.delete is not None else "ignores deletes"
            lines.append(f"    {position}: {cell.id} ({kept}, {deletes})")
        sizes = ", ".join(map(window_text, self.layers))
        own = ", cells by the rows' own times" if self.keeps_own_times else ""
        lines.append(f"  batch timeline: {len(timeline.cuts_ms) + 1} segments; tiles of {sizes}{own}")
        lines.append("  windows, shortest first:")
        for window in self.windows:
            length = window.window_ms
            span = "all time" if length is None else f"{window_text(length)}, hop {window_text(hop_ms(length))}"
            lines.append(f"    {span}: {', '.join(feature.name for _, feature in window.features)}")
        return "\n".join(lines)

    def _check_query(self, query_ms: int, batch_end_ms: int, batch_ir: BatchIr | None) -> None:
        check_batch_end(batch_end_ms, self.tile_ms)
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
    >>> day = 86_400_000
    >>> batch = plan.batch_ir([(day - 1, (10.0,)), (0, (40.0,))], batch_end_ms=day)
    >>> tile = Tile(start_ms=day, size_ms=plan.tile_ms, ir=plan.collect([day, day], [(20.0,), (None,)]))
    >>> plan.finish(86_700_000, day, batch, [tile])
    {'dep_delay_average_1h': 15.0, 'dep_delay_average': 23.333333333333332}
    """
    return GroupByPlan(group_by)


def suffixes(merge: Callable[[Any, Any], Any], column: Sequence[Any]) -> tuple[Any, ...]:
    """Return for each cell the merge of it and all later ones."""
    return tuple(accumulate(column[::-1], merge))[::-1]
