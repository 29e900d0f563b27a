import random

import pytest

from millpond.errors import DataError, OptionError
from millpond.features import DAY_MS, HOUR_MS, tile_start
from millpond.kv import Get, LmdbStore
from millpond.spark.tile_stream import tile_updates, write_tiles
from tests.features import oracle
from tests.spark.test_tile_stream import GROUP_BY, PLAN, B

pytestmark = pytest.mark.spark

TILE_MS = PLAN.tile_ms
SCHEMA = "origin string, delay double, at bigint"


def rows_of_day(rng, day):
    start = B + day * 6 * HOUR_MS
    return [
        (rng.choice(("JFK", "EWR", None)), rng.choice((None, rng.gauss(0, 30))), start + rng.randrange(6 * HOUR_MS))
        for _ in range(60)
    ]


class Stream:
    """A folder that files of events land in, and the query that makes tiles of them."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        self.store = LmdbStore(folder / "kv", sync=False)
        (folder / "events").mkdir()
        self.files = 0

    def run(self, rows, lateness_ms=DAY_MS):
        self.files += 1
        landed = self.spark.createDataFrame(rows, SCHEMA)
        landed.coalesce(1).write.mode("append").parquet(str(self.folder / "events"))
        events = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "events"))
        query = write_tiles(
            events,
            GROUP_BY,
            self.store,
            str(self.folder / "checkpoint"),
            time_column="at",
            start_ms=B,
            lateness_ms=lateness_ms,
            trigger={"availableNow": True},
        )
        assert query.name == "route.stream"
        assert query.awaitTermination(120)

    def tiles(self, origin):
        key = PLAN.encode_key((origin,))
        (rows,) = self.store.get_many([Get(f"route.stream.{PLAN.generation}", key)])
        tiles = [PLAN.decode_tile(key, row.value) for row in rows]
        assert [row.time_ms for row in rows] == [tile.start_ms for tile in tiles]
        return tiles


@pytest.fixture
def stream(spark, tmp_path):
    stream = Stream(spark, tmp_path)
    yield stream
    stream.store.close()


def test_the_stream_answers_as_the_raw_events_do_across_a_restart(stream):
    rng = random.Random(11)
    rows = rows_of_day(rng, 0)
    stream.run([*rows, ("JFK", 1.0, B - 1)])
    later = [*rows_of_day(rng, 1), *rows_of_day(rng, 0)[:5]]
    stream.run(later)
    for origin in ("JFK", "EWR"):
        of_key = [(time, (delay,)) for key, delay, time in rows + later if key == origin]
        tiles = stream.tiles(origin)
        assert {tile.start_ms for tile in tiles} == {tile_start(time, TILE_MS) for time, _ in of_key}
        for query in (B, B + TILE_MS, B + 3 * HOUR_MS, B + 12 * HOUR_MS):
            assert PLAN.finish(query, B, None, tiles) == oracle.features(GROUP_BY, of_key, query)


def test_tiles_close_as_the_watermark_passes_them_and_late_events_amend_them(stream):
    stream.run([("JFK", 1.0, B), ("EWR", 1.0, B + 10 * TILE_MS)], lateness_ms=TILE_MS)
    assert [(tile.complete, tile.version) for tile in stream.tiles("JFK")] == [(True, 0)]
    assert [(tile.complete, tile.version) for tile in stream.tiles("EWR")] == [(False, 0)]
    stream.run([("JFK", 3.0, B + 1), ("EWR", 1.0, B)], lateness_ms=TILE_MS)
    assert [(tile.complete, tile.version, tile.ir[0]) for tile in stream.tiles("JFK")] == [(True, 1, 2)]
    assert [(tile.complete, tile.version, tile.ir[0]) for tile in stream.tiles("EWR")] == [
        (True, 1, 1),
        (False, 0, 1),
    ]


def test_what_cannot_stream_is_refused_before_it_starts(spark):
    events = spark.createDataFrame([], SCHEMA)
    asked = {"time_column": "at", "start_ms": B, "lateness_ms": 0}
    with pytest.raises(DataError, match="'delay'"):
        tile_updates(events.drop("delay"), GROUP_BY, **asked)
    for wrong in ({"start_ms": B + 1}, {"lateness_ms": -1}, {"retention_ms": 0}):
        (option,) = wrong
        with pytest.raises(OptionError, match="batch_end_ms" if option == "start_ms" else option):
            tile_updates(events, GROUP_BY, **(asked | wrong))
