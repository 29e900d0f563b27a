import random

import pytest

from millpond.errors import DataError, OptionError
from millpond.features import (
    CLOSING_KEY,
    DAY_MS,
    HOUR_MS,
    MARKER_ADDRESS,
    EntitySource,
    GroupBy,
    closing_time,
    decode_marker,
    layer_of,
    stream_dataset,
    tile_start,
)
from millpond.kv import Get, LmdbStore
from millpond.metrics import MemoryRecorder
from millpond.spark.features.stream import stream, tile_updates
from tests.features import oracle
from tests.spark.features.test_tile_processor import GROUP_BY, PLAN, B

pytestmark = pytest.mark.spark

SCHEMA = "origin string, delay double, time_ms bigint"
TILE_MS = PLAN.tile_ms
DATASET = stream_dataset(PLAN.name, PLAN.generation)


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
        self.recorder = MemoryRecorder()
        (folder / "events").mkdir()

    def run(self, rows, lateness_ms=DAY_MS):
        landed = self.spark.createDataFrame(rows, SCHEMA)
        landed.coalesce(1).write.mode("append").parquet(str(self.folder / "events"))
        events = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "events"))
        query = stream(
            GROUP_BY,
            self.store,
            str(self.folder / "checkpoint"),
            start_ms=B,
            lateness_ms=lateness_ms,
            tables={"route": events},
            trigger={"availableNow": True},
            recorder=self.recorder,
        )
        assert query.name == "route.stream"
        assert query.awaitTermination(120)

    def tiles(self, origin, layer=0):
        key = PLAN.encode_key((origin,))
        (rows,) = self.store.get_many([Get(DATASET, key)])
        return [
            PLAN.decode_tile(key, row.value)
            for row in rows
            if row.time_ms != MARKER_ADDRESS and layer_of(row.time_ms) == layer
        ]

    def marker(self, origin):
        key = PLAN.encode_key((origin,))
        (rows,) = self.store.get_many([Get(DATASET, key, MARKER_ADDRESS, MARKER_ADDRESS + 1)])
        return decode_marker(key, rows[0].value) if rows else 0

    def closed_ms(self):
        (rows,) = self.store.get_many([Get(DATASET, CLOSING_KEY)])
        return closing_time([row.value for row in rows])

    def counted(self, what):
        return self.recorder.total(f"millpond_stream_{what}_total", name="route")


@pytest.fixture
def flights(spark, tmp_path):
    made = Stream(spark, tmp_path)
    yield made
    made.store.close()


def test_the_stream_answers_as_the_raw_events_do_across_a_restart(flights):
    rng = random.Random(11)
    rows = rows_of_day(rng, 0)
    flights.run([*rows, ("JFK", 1.0, B - 1), ("JFK", 1.0, None)])
    assert flights.counted("events_read") == 62
    assert flights.counted("events_before_start") == 1
    assert flights.counted("events_without_time") == 1
    assert flights.counted("events_without_key") == sum(origin is None for origin, _, _ in rows)
    later = [*rows_of_day(rng, 1), *rows_of_day(rng, 0)[:5]]
    flights.run(later)
    for origin in ("JFK", "EWR"):
        of_key = [(time, (delay,)) for key, delay, time in rows + later if key == origin]
        tiles = flights.tiles(origin)
        assert {tile.start_ms for tile in tiles} == {tile_start(time, TILE_MS) for time, _ in of_key}
        for query in (B, B + TILE_MS, B + 3 * HOUR_MS, B + 12 * HOUR_MS):
            assert PLAN.finish(query, B, None, tiles) == oracle.features(GROUP_BY, of_key, query)


def test_tiles_close_as_the_watermark_passes_them_and_late_events_amend_them(flights):
    flights.run([("JFK", 1.0, B), ("EWR", 1.0, B + HOUR_MS + TILE_MS)], lateness_ms=TILE_MS)
    assert [(tile.complete, tile.version) for tile in flights.tiles("JFK")] == [(True, 0)]
    assert [(tile.complete, tile.version) for tile in flights.tiles("JFK", layer=1)] == [(True, 0)]
    assert [(tile.complete, tile.version) for tile in flights.tiles("EWR")] == [(False, 0)]
    assert flights.closed_ms() == B + HOUR_MS
    assert flights.marker("JFK") == 0
    flights.run([("JFK", 3.0, B + 1), ("EWR", 1.0, B)], lateness_ms=TILE_MS)
    assert [(tile.complete, tile.version, tile.ir[0]) for tile in flights.tiles("JFK")] == [(True, 1, 2)]
    assert [(tile.complete, tile.version, tile.ir[0]) for tile in flights.tiles("JFK", layer=1)] == [(True, 1, 2)]
    assert [(tile.complete, tile.version, tile.ir[0]) for tile in flights.tiles("EWR")] == [
        (True, 1, 1),
        (False, 0, 1),
    ]
    assert (flights.marker("JFK"), flights.marker("EWR")) == (1, 1)
    assert flights.counted("events_late") == 2
    assert flights.counted("tiles_closed") == 2
    assert flights.counted("tiles_amended") == 4
    assert flights.recorder.level("millpond_stream_closing_time_seconds", name="route") == (B + HOUR_MS) / 1000


def test_what_cannot_stream_is_refused_before_it_starts(spark):
    events = spark.readStream.format("rate").load().selectExpr("'JFK' AS origin", "1.0D AS delay", "value AS time_ms")
    asked = {"start_ms": B, "lateness_ms": 0, "tables": {"route": events}}
    with pytest.raises(DataError, match="'delay'"):
        tile_updates(GROUP_BY, **(asked | {"tables": {"route": events.drop("delay")}}))
    for wrong in ({"start_ms": B + 1}, {"lateness_ms": -1}, {"retention_ms": 0}):
        (option,) = wrong
        with pytest.raises(OptionError, match="batch_end_ms" if option == "start_ms" else option):
            tile_updates(GROUP_BY, **(asked | wrong))
    snapshot = GroupBy("route", GROUP_BY.keys, GROUP_BY.inputs, accuracy="snapshot")
    with pytest.raises(OptionError, match="nothing to stream"):
        tile_updates(snapshot, **asked)
    entity = GroupBy(
        "route",
        GROUP_BY.keys,
        GROUP_BY.inputs,
        GROUP_BY.aggregations,
        sources=(EntitySource("planes", "changes", mutation_stream="changes"),),
    )
    with pytest.raises(OptionError, match="Leave windows out"):
        tile_updates(entity, **asked)
