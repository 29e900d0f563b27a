"""Until when the tiles that a stream writes are kept."""

import pyarrow as pa

from millpond.features import MARKER_ADDRESS, tile_address
from millpond.kv import MemoryStore
from millpond.spark.features.tiles.rows import AMENDED, CLOSED, OPENED
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
