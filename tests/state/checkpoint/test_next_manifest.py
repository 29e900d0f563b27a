"""Cells become segments a piece at a time, so that a large delta is never one large column."""

from unittest import mock

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.state.checkpoint import next_manifest
from millpond.state.checkpoint.format.segment import MAX_SEGMENT_BYTES, CellCodec, decode_segment
from millpond.state.checkpoint.next_manifest import at_once, encode_base, encode_delta
from millpond.state.checkpoint.segment_spool import SegmentSpool
from millpond.state.spi import Cells, StateDescriptor, StateKind

KEY = pa.schema([("number", pa.int64())])
CODEC = CellCodec(StateDescriptor("s", StateKind.VALUE, pa.schema([("data", pa.binary())])), KEY)


def cells_of_sizes(sizes):
    return Cells(
        [at % 4 for at in range(len(sizes))],
        [(at,) for at in range(len(sizes))],
        None,
        [(b"x" * size,) for size in sizes],
    )


def pieces_of(cells, rows):
    return [("s", cells.part(first, rows)) for first in range(0, len(cells), rows)]


def decoded(parts):
    tables = [CODEC.cells(decode_segment(part.read(), "a segment")) for part in parts]
    return [pair for cells in tables for pair in zip(cells.keys, cells.values, strict=True)]


@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 90), st.integers(1, 40), st.integers(1, 2000))
@settings(max_examples=100, deadline=None)
def test_every_cell_is_in_the_segments_once_and_in_order(sizes, rows_each, first_rows, max_bytes):
    cells = cells_of_sizes(sizes)
    with (
        mock.patch.object(next_manifest, "_FIRST_ROWS", first_rows),
        mock.patch.object(next_manifest, "MAX_SEGMENT_BYTES", max_bytes),
    ):
        delta = encode_delta(1, pieces_of(cells, rows_each), {"s": CODEC}, SegmentSpool())
    assert decoded(delta.parts) == list(zip(cells.keys, cells.values, strict=True))
    assert delta.rows == len(cells)


def test_no_column_is_made_of_many_more_cells_than_a_segment_holds():
    asked = []

    class Watched(CellCodec):
        def table(self, cells):
            asked.append(sum(len(value[0]) for value in cells.values))
            return super().table(cells)

    codec = Watched(StateDescriptor("s", StateKind.VALUE, pa.schema([("data", pa.binary())])), KEY)
    cells = cells_of_sizes([1_000] * 20_000)
    delta = encode_delta(1, pieces_of(cells, 7_000), {"s": codec}, SegmentSpool())
    assert max(asked) <= MAX_SEGMENT_BYTES
    assert 19 <= len(delta.parts) <= 28


def test_many_small_cells_make_no_more_segments_than_their_size_asks_for():
    delta = encode_delta(1, pieces_of(cells_of_sizes([10] * 100_000), 1_000), {"s": CODEC}, SegmentSpool())
    assert len(delta.parts) <= 5


def test_a_base_holds_whole_key_groups_until_there_are_as_many_rows_as_wanted():
    found = {group: cells_of_sizes([5] * (3 * group)) for group in range(8)}
    source = mock.Mock(cells=lambda _, group: found[group], raw_cells=lambda _, group: None)
    base = encode_base(range(8), range(2, 8), 10, 1, {"s": CODEC}, source, at_once, SegmentSpool())
    assert base.positions == range(2, 4)
    assert base.rows == 6 + 9
    assert decoded(base.parts) == [
        pair for group in (2, 3) for pair in zip(found[group].keys, found[group].values, strict=True)
    ]
