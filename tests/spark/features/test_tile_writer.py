"""What a task of a stream writes: until when tiles are kept, in how many transactions, and in which form."""

import pyarrow as pa

from millpond.features import MARKER_ADDRESS, tile_address
from millpond.kv import LmdbStore, MemoryStore
from millpond.kv.arrow_puts import ArrowPuts
from millpond.kv.lmdb.environment import Environment
from millpond.spark.features.tiles.rows import AMENDED, CLOSED, CLOSING, LATE, MARKED, OPENED, TileRows
from millpond.spark.features.tiles.writer import _writer
from tests.spark.features.arrow_states import blobs_of

START_MS = 1_388_361_600_000
KEEP_MS = 4 * 86_400_000


class Noting(MemoryStore):
    """Keeps the puts that it was given."""

    def __init__(self):
        super().__init__()
        self.puts = []

    def put_many(self, dataset, puts):
        self.puts += puts


def test_a_tile_of_any_layer_is_kept_by_its_own_start_and_a_marker_by_the_time_of_writing():
    addresses = [tile_address(0, START_MS), tile_address(2, START_MS), MARKER_ADDRESS]
    rows = pa.table(
        {
            "key": pa.array([b"EWR"] * 3, pa.binary()),
            "address": pa.array(addresses, pa.int64()),
            "value": pa.array([b"tile", b"tile", b"marker"], pa.binary()),
            "change": pa.array([OPENED, CLOSED, AMENDED], pa.int32()),
            "amount": pa.array([0, 0, 0], pa.int64()),
        }
    )
    store = Noting()
    assert [one.num_rows for one in _writer("route.stream", store, KEEP_MS)(iter([blobs_of(rows)]))] == [3]
    assert [put.time_ms for put in store.puts] == addresses
    assert [put.keep_until_ms for put in store.puts] == [START_MS + KEEP_MS, START_MS + KEEP_MS, 0]


def emitted(keys):
    """The blob of a shard: an open and an amended tile of each key and its marker, a count and a closing time."""
    rows = TileRows()
    rows.add_tiles(keys, tile_address(0, START_MS), [b"open " + key for key in keys], [OPENED] * len(keys))
    rows.add_tiles(keys, tile_address(1, START_MS), [b"late " + key for key in keys], [AMENDED] * len(keys))
    for key in keys:
        rows.add(key, MARKER_ADDRESS, b"marker " + key, MARKED, 1)
    rows.add(b"", 0, None, LATE, len(keys))
    rows.add(b"", 0, None, CLOSING, START_MS)
    return blobs_of(pa.concat_tables(rows.tables()))


def test_a_task_writes_the_tiles_of_all_its_shards_in_one_transaction_without_a_put_for_each(tmp_path, monkeypatch):
    shards = [emitted([b"EWR", b"JFK"]), emitted([b"LGA", b"A", b"ATL"])]
    plain = MemoryStore()
    counts = list(_writer("route.stream", plain, KEEP_MS)(iter(shards)))

    def refuse(_):
        raise AssertionError("a Put for each row")

    transactions, write = [], Environment.write
    monkeypatch.setattr(Environment, "write", lambda self, body: transactions.append(body) or write(self, body))
    monkeypatch.setattr(ArrowPuts, "__iter__", refuse)
    with LmdbStore(tmp_path, sync=False) as store:
        assert list(_writer("route.stream", store, KEEP_MS)(iter(shards))) == counts
        assert len(transactions) == 1
        assert sorted(store.next_keys("route.stream", None, 9)) == sorted(plain.next_keys("route.stream", None, 9))
        assert sum(len(rows) for _, rows in store.next_keys("route.stream", None, 9)) == 15


def test_a_task_without_tiles_writes_none(tmp_path):
    rows = TileRows()
    rows.add(b"", 0, None, LATE, 3)
    with LmdbStore(tmp_path, sync=False) as store:
        [counts] = _writer("route.stream", store, KEEP_MS)(iter([blobs_of(pa.concat_tables(rows.tables()))]))
        assert counts.to_pylist() == [{"change": LATE, "amount": 3}]
        assert store.next_keys("route.stream", None, 9) == []
