"""The short way to a key of a GroupBy that is not cached.

Place on the data path: one key of one GroupBy, without caches. The long way (`key_read`) gives the same
answer; this one knows only the case in which the batch row is there and everything decodes and is known.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from millpond.features import tile_range
from millpond.features.answering import Finishers, Layout
from millpond.kv import Get, TimedValue
from millpond.serving.batch_rows import batch_bases
from millpond.serving.closed_tiles import has_unknown, tail_irs
from millpond.serving.counters import Counters, Tally
from millpond.serving.key_read import are_placed
from millpond.serving.landed_batch import LandedBatch, View
from millpond.serving.messages import FetchResponse, ValueState
from millpond.serving.prepared import Prepared, PreparedPart

PlainFetch = tuple[LandedBatch, View, bytes, list[Get]]
"""What answers, where the windows start, the encoded key, and what to read."""


class PlainTarget:
    """A prepared GroupBy without caches; immutable.

    Args:
        prepared: the GroupBy and the features wanted of it, without derivations.
        part: its one part.
        layout: the windows that are read.
        counters: where fetches are counted.
    """

    __slots__ = ("_counters", "_empty", "_finish", "_layout", "_spans", "group", "prepared")

    def __init__(self, prepared: Prepared, part: PreparedPart, layout: Layout, counters: Counters) -> None:
        self.prepared = prepared
        self.group = part.group
        self._layout = layout
        self._counters = counters
        self._finish = Finishers(layout, prepared.features).compiled
        self._empty = part.group.plan.new_ir()
        self._spans: tuple[View, int, int, list[tuple[int, int]]] | None = None

    def begin(self, keys: Mapping[str, Any], query_ms: int) -> PlainFetch | None:
        """Give what to read; None if the long way is to be taken.

        Raises:
            DataError: a part of the key is missing, unknown, or not of its declared type.
        """
        group = self.group
        key = group.plan.encode_key(keys)
        served = group.served
        landed = served.landed
        if key is None or landed is None or not landed.batch_end_ms <= query_ms <= landed.horizon_end_ms:
            return None
        view = landed.view(self._layout, query_ms)
        dataset = landed.info.streaming_dataset
        ranges = self._ranges(view, query_ms, served.closed_ms)
        gets = [Get(dataset, key, first, last) for first, last in ranges]
        if view.reads_batch:
            gets.append(Get(landed.info.batch_dataset, key, landed.batch_end_ms, landed.batch_end_ms + 1))
        return landed, view, key, gets

    def end(
        self, keys: Mapping[str, Any], query_ms: int, found: PlainFetch, answers: Sequence[Sequence[TimedValue]]
    ) -> FetchResponse | None:
        """Answer from the rows; None if the long way is to be taken.

        Raises:
            CorruptionError: a row does not decode.
        """
        landed, view, key, gets = found
        bases = self._layout.empties
        row_bytes = 0
        if view.reads_batch:
            *answers, batch_rows = answers
            if not batch_rows:
                return None
            stored = batch_rows[-1].value
            batch = self.group.decode_batch(key, stored)
            if batch.batch_end_ms != landed.batch_end_ms:
                return None
            bases = batch_bases(self._layout, view, batch)
            row_bytes = len(stored)
        decode = self.group.decode_tile
        rows = [row for part in answers for row in part]
        tiles = [decode(key, row.value) for row in rows]
        if not are_placed(self.group.plan, rows, tiles):
            return None
        tails = tail_irs(self._layout, view, tiles, landed.batch_end_ms, self._empty)
        if has_unknown(tails):
            return None
        features = self._finish(bases, tails)
        states: dict[str, ValueState] = {}
        if None in features.values():
            states = {name: "null" for name, value in features.items() if value is None}
        tally = Tally()
        tally.requests = tally.kv_calls = 1
        tally.batch_gets = view.reads_batch
        tally.stream_gets = len(gets) - view.reads_batch
        tally.rows = len(rows) + view.reads_batch
        tally.bytes = row_bytes + sum([len(row.value) for row in rows])
        tally.tiles = len(rows)
        tally.null = len(states)
        tally.present = len(features) - len(states)
        self._counters.add(tally)
        return FetchResponse(self.prepared.target.name, keys, query_ms, features, states, {}, landed.batch_end_ms)

    def _ranges(self, view: View, query_ms: int, closed_ms: int) -> list[tuple[int, int]]:
        """Give the ranges of tiles, which stay for all queries that end in one tile."""
        plan = self.group.plan
        last_ms = -(-query_ms // plan.tile_ms) * plan.tile_ms
        known = self._spans
        if known is None or known[0] is not view or known[1] != last_ms or known[2] != closed_ms:
            cuts = [start for start in view.starts if start is not None]
            spans = plan.spans(view.read_start_ms, last_ms, closed_ms, cuts)
            known = self._spans = (view, last_ms, closed_ms, [tile_range(*span) for span in spans])
        return known[3]
