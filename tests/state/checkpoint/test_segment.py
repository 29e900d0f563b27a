"""Segments: cells to bytes and back, in pieces of bounded size."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError
from millpond.state import user_serializer
from millpond.state.checkpoint.format import segment
from millpond.state.checkpoint.format.segment import (
    CellCodec,
    checked_body,
    decode_segment,
    encode_segments,
    with_checksum,
)
from millpond.state.spi import ABSENT, Cells, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA

KEY = pa.schema([("user", pa.string()), ("number", pa.int64())])
PAIR = pa.schema([("text", pa.string()), ("numbers", pa.list_(pa.int64()))])
PAGE = pa.schema([("user", pa.string())])

keys = st.tuples(st.one_of(st.none(), st.text("ab", max_size=2)), st.one_of(st.none(), st.integers(0, 3)))
pairs = st.tuples(
    st.one_of(st.none(), st.text("xy", max_size=2)),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=2)),
)
pages = st.tuples(st.one_of(st.none(), st.text("pq", max_size=2)))


@st.composite
def cells_of(draw, kind):
    value = st.lists(pairs, max_size=3) if kind is StateKind.LIST else pairs
    rows = draw(st.lists(st.tuples(st.integers(0, 9), keys, pages, st.one_of(st.just(ABSENT), value)), max_size=12))
    groups, found, map_keys, values = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    return Cells(groups, found, map_keys if kind is StateKind.MAP else None, values)


@pytest.mark.parametrize("kind", StateKind)
@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_cells_come_back_from_segments_as_they_went_in(kind, max_bytes):
    codec = CellCodec(StateDescriptor("s", kind, PAIR, PAGE if kind is StateKind.MAP else None), KEY)

    @settings(max_examples=25, deadline=None)
    @given(cells_of(kind))
    def check(cells):
        with mock.patch.object(segment, "MAX_SEGMENT_BYTES", max_bytes):
            parts = list(encode_segments(codec.table(cells)))
        assert sum(part.num_rows for part, _ in parts) == len(cells)
        restored = Cells(map_keys=[] if kind is StateKind.MAP else None)
        for part, data in parts:
            table = decode_segment(data, "a segment")
            assert table.equals(part)
            found = codec.cells(table)
            restored.key_groups += found.key_groups
            restored.keys += found.keys
            restored.values += found.values
            if found.map_keys is not None:
                restored.map_keys += found.map_keys
        assert restored == cells

    check()


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_no_segment_is_much_larger_than_the_limit_unless_it_is_a_single_row(sizes):
    codec = CellCodec(StateDescriptor("s", StateKind.VALUE, pa.schema([("data", pa.binary())])), KEY)
    cells = Cells([0] * len(sizes), [("ann", at) for at in range(len(sizes))], None, [(b"x" * size,) for size in sizes])
    with mock.patch.object(segment, "MAX_SEGMENT_BYTES", 1000):
        parts = [part for part, _ in encode_segments(codec.table(cells))]
    assert sum(part.num_rows for part in parts) == len(sizes)
    assert all(part.nbytes <= 2000 or part.num_rows == 1 for part in parts)


def test_large_rows_that_lie_together_do_not_make_a_large_segment():
    codec = CellCodec(StateDescriptor("s", StateKind.VALUE, pa.schema([("data", pa.binary())])), KEY)
    sizes = [1] * 900 + [50_000] * 20
    cells = Cells([0] * len(sizes), [("ann", at) for at in range(len(sizes))], None, [(b"x" * size,) for size in sizes])
    with mock.patch.object(segment, "MAX_SEGMENT_BYTES", 100_000):
        parts = [part for part, _ in encode_segments(codec.table(cells))]
    assert all(part.nbytes <= 200_000 for part in parts)
    assert len(parts) < 40


@given(st.binary(max_size=40), st.data())
@settings(max_examples=80, deadline=None)
def test_bytes_with_a_checksum_are_refused_with_any_bit_flipped_or_any_byte_cut(body, data):
    whole = with_checksum(b"MPSG", body)
    assert bytes(checked_body(b"MPSG", whole, "it")) == body
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (bytes(flipped), cut, whole + b"\0"):
        with pytest.raises(CorruptionError, match="shard 3"):
            checked_body(b"MPSG", damaged, "segment 7 of shard 3")


def test_another_format_version_is_named_with_the_one_that_is_read():
    later = bytearray(with_checksum(b"MPSG", b"body"))
    later[4] = 9
    with pytest.raises(CorruptionError, match=r"format version 9; this Millpond reads versions up to 2.*a later one"):
        checked_body(b"MPSG", bytes(later), "it")


def _writes_all_but_threes(value):
    if value == 3:
        raise RuntimeError("no threes")
    return str(value).encode()


@pytest.mark.parametrize("kind", StateKind)
def test_a_value_that_cannot_be_written_is_named_with_its_state_and_key(kind):
    serializer = user_serializer("no threes", _writes_all_but_threes, int)
    is_map = kind is StateKind.MAP
    descriptor = StateDescriptor("counts", kind, OBJECT_SCHEMA, PAGE if is_map else None, serializer)
    values = [[number] if kind is StateKind.LIST else number for number in (1, 2, 3)]
    cells = Cells([0, 0, 0], [("ann", 1), ("bob", 2), ("eve", 3)], [("/",)] * 3 if is_map else None, values)
    cells.values[0] = ABSENT
    entry = r", map key \('/',\)" if is_map else ""
    with pytest.raises(DataError, match=rf"state 'counts' of key \('eve', 3\){entry}: .*RuntimeError: no threes"):
        CellCodec(descriptor, KEY).table(cells)


def test_a_buffer_that_says_it_is_longer_than_its_bytes_can_stand_for_takes_no_memory():
    sink = pa.BufferOutputStream()
    column = pa.array([0] * 100_000, pa.int64())
    with pa.ipc.new_stream(
        sink, pa.schema([("a", pa.int64())]), options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_table(pa.table({"a": column}))
    body = sink.getvalue().to_pybytes()
    assert decode_segment(with_checksum(b"MPSG", body), "s")["a"].combine_chunks() == column
    length = (800_000).to_bytes(8, "little")
    assert body.count(length) == 1
    before = pa.total_allocated_bytes()
    altered = with_checksum(b"MPSG", body.replace(length, (1 << 40).to_bytes(8, "little")))
    with pytest.raises(CorruptionError, match="when decoded"):
        decode_segment(altered, "s")
    assert pa.total_allocated_bytes() == before
