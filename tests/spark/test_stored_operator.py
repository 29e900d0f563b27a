"""One shard's stored state as a task reads it: proven against its manifest, and piece by piece."""

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError
from millpond.spark.inspect.read_state import StateColumns, _batches
from millpond.spark.inspect.stored_operator import _read_shards
from millpond.spark.runtime.state_store import ShardStore
from millpond.state.checkpoint import Shard, new_manifest, restoring
from millpond.state.checkpoint.restoring import key_group_pieces
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.ttl import Ttl

KEY = pa.schema([("user", pa.string())])
STATES = [
    StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())])),
    StateDescriptor("ids", StateKind.LIST, pa.schema([("id", pa.int64())]), ttl=Ttl(100)),
    StateDescriptor("last", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("at", pa.int64())])),
]


@pytest.fixture(scope="module")
def stored():
    """A manifest and its segments after three versions, with overwritten and deleted cells."""
    shard, segments = Shard(new_manifest("lineage", 0, 1, 128, KEY), HeapBackend(range(128))), {}
    for version in range(3):
        assert shard.begin_at(shard.manifest)
        for state in STATES:
            shard.declare(state)
        count, ids, last = (
            shard.backend.value_state(STATES[0]),
            shard.backend.list_state(STATES[1]),
            shard.backend.map_state(STATES[2]),
        )
        for group in range(0, 128, version + 1):
            shard.backend.enter(group)
            shard.backend.context.key = (f"user {group}",)
            count.update((version,))
            ids.append(((version,), 1000))
            last.put((version,), (group,))
            if group % 6 == 0 and version == 2:
                count.clear()
                ids.clear()
                last.remove((0,))
        commit = shard.commit(f"token {version}")
        segments = {at: data for at, data in {**segments, **commit.segments}.items() if at not in commit.dropped}
    return shard.manifest, segments


def of_spark(segments):
    ids, data = pa.array(segments.keys(), pa.int64()), pa.array(segments.values(), pa.binary())
    return [pa.record_batch([ids, data], names=["id", "data"])]


def rows_of(manifest, segments, state, *, flat=True):
    def read(version):
        return _batches(StateColumns(state, flat), version)

    found = _read_shards("the place", {0: manifest.encode()}, frozenset([state.name]), None, read, of_spark(segments))
    return [row for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("piece_bytes", [1, 300, 1 << 30])
def test_a_state_read_piece_by_piece_is_the_state(stored, monkeypatch, piece_bytes):
    monkeypatch.setattr(restoring, "_PIECE_BYTES", piece_bytes)
    manifest, segments = stored
    pieces = list(key_group_pieces(manifest, "count"))
    assert [group for piece in pieces for group in piece] == list(range(128))
    assert (len(pieces) > 1) == (piece_bytes < 1000)
    kept = [group for group in range(128) if group % 6]
    newest = {group: 2 if group % 3 == 0 else 1 if group % 2 == 0 else 0 for group in range(128)}
    assert sorted((row["key"]["user"], row["value"]["n"]) for row in rows_of(manifest, segments, STATES[0])) == sorted(
        (f"user {group}", newest[group]) for group in kept
    )
    elements = rows_of(manifest, segments, STATES[1])
    assert {row["list_element"]["ttlExpirationMs"] for row in elements} == {1100}
    assert sorted((row["key"]["user"], row["list_element"]["value"]["id"]) for row in elements) == sorted(
        (f"user {group}", version) for group in kept for version in range(3) if group % (version + 1) == 0
    )
    lists = rows_of(manifest, segments, STATES[1], flat=False)
    assert sorted((row["key"]["user"], len(row["list_value"])) for row in lists) == sorted(
        (f"user {group}", sum(group % (version + 1) == 0 for version in range(3))) for group in kept
    )
    entries = rows_of(manifest, segments, STATES[2])
    assert sorted((row["key"]["user"], row["user_map_key"]["at"]) for row in entries) == sorted(
        (f"user {group}", version)
        for group in range(128)
        for version in range(3)
        if group % (version + 1) == 0 and (version or group % 6)
    )


def test_a_segment_that_is_missing_or_altered_is_named_before_a_row_of_it_is_given(stored):
    manifest, segments = stored
    first = next(ref.id for ref in manifest.segments if ref.state == "count")
    missing = {at: data for at, data in segments.items() if at != first}
    with pytest.raises(CorruptionError, match=rf"the place: segment {first} of shard 0.* 'count' is missing"):
        rows_of(manifest, missing, STATES[0])
    altered = segments | {first: segments[first][:-1] + b"?"}
    with pytest.raises(CorruptionError, match=rf"the place: segment {first} of shard 0.*checksum"):
        rows_of(manifest, altered, STATES[0])
    with pytest.raises(CorruptionError, match=r"the place: segment \d+ of shard 0.*missing"):
        rows_of(manifest, {}, STATES[0])


class Value:
    """PySpark's value state, of one key."""

    def __init__(self, value=None):
        self.value = value

    def exists(self):
        return self.value is not None

    def get(self):
        return self.value

    def clear(self):
        self.value = None


class Map:
    """PySpark's map state, of one key."""

    def __init__(self, entries):
        self.entries = entries

    def exists(self):
        return bool(self.entries)

    def getValue(self, key):
        return self.entries.get(key)

    def clear(self):
        self.entries = {}


def test_durable_state_is_whole_with_every_segment_as_written_or_with_nothing_at_all(stored):
    manifest, segments = stored

    def durable(manifest_bytes, stored_segments):
        value = Value(None if manifest_bytes is None else (manifest_bytes,))
        return ShardStore(value, Map({(at,): (data,) for at, data in stored_segments.items()}), "shard 0")

    encoded, first = manifest.encode(), manifest.segments[0].id
    assert durable(encoded, segments).is_whole()
    assert durable(None, {}).is_whole()
    for lost in (
        durable(None, segments),
        durable(encoded[:-1], segments),
        durable(encoded, {at: data for at, data in segments.items() if at != first}),
        durable(encoded, segments | {first: segments[first][:-1]}),
    ):
        assert not lost.is_whole()
        lost.clear()
        assert lost.is_whole()
        assert lost.manifest() is None
