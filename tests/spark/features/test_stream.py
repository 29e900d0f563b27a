import os
import random
import signal
from contextlib import suppress
from dataclasses import replace

import pytest
from pyspark.errors import StreamingQueryException

from benchmarks.redis_servers import redis_server
from millpond.errors import DataError, OptionError
from millpond.features import (
    CLOSING_KEY,
    DAY_MS,
    HOUR_MS,
    MARKER_ADDRESS,
    Aggregation,
    ClosingTime,
    EntitySource,
    Field,
    GroupBy,
    closing_time,
    decode_marker,
    encode_closing_time,
    layer_of,
    stream_dataset,
    tile_start,
)
from millpond.features.stored.rows import NEVER_CLOSED_MS, stream_start
from millpond.kv import Get, LmdbStore, MemoryStore, Put, RedisStore
from millpond.metrics import MemoryRecorder
from millpond.serving import Fetcher
from millpond.spark.features.stream import publish_start, stream, tile_updates
from millpond.spark.features.tiles.rows import OPENED
from millpond.spark.features.training_set import training_set
from millpond.spark.features.upload import upload
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

    def __init__(self, spark, folder, store=None):
        self.spark, self.folder = spark, folder
        self.store = store or LmdbStore(folder / "kv", sync=False)
        self.recorder = MemoryRecorder()
        (folder / "events").mkdir()

    def run(self, rows, lateness_ms=DAY_MS, group_by=GROUP_BY, start_ms=B):
        if rows:
            landed = self.spark.createDataFrame(rows, SCHEMA)
            landed.coalesce(1).write.mode("append").parquet(str(self.folder / "events"))
        events = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "events"))
        query = stream(
            group_by,
            self.store,
            str(self.folder / "checkpoint"),
            start_ms=start_ms,
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


def test_a_time_after_every_query_is_counted_and_moves_no_watermark(flights, caplog):
    micros, nanos = (B + 1) * 1000, (B + 1) * 1_000_000
    flights.run([("JFK", 1.0, B + 1), ("JFK", 2.0, micros), ("JFK", 2.0, nanos)], lateness_ms=0)
    assert flights.counted("events_without_time") == 2
    assert flights.closed_ms() <= B + 1
    flights.run([("JFK", 4.0, B + 2), ("JFK", 2.0, micros)], lateness_ms=0)
    assert flights.counted("events_without_time") == 3
    (tile,) = flights.tiles("JFK")
    assert PLAN.finish(B + 3, B, None, [tile]) == oracle.features(GROUP_BY, [(B + 1, (1.0,)), (B + 2, (4.0,))], B + 3)
    warnings = [one.message for one in caplog.records if "year 2499" in one.message]
    assert [one.partition(": ")[2][:22] for one in warnings] == ["2 events have no time,", "1 events have no time,"]


def test_times_in_seconds_are_left_out_with_a_warning(flights, caplog):
    flights.run([("JFK", 1.0, B // 1000), ("JFK", 2.0, B // 1000 + 1), ("JFK", 4.0, B + 1), ("JFK", 8.0, B - 1)])
    assert flights.counted("events_before_start") == 3
    (tile,) = flights.tiles("JFK")
    assert PLAN.finish(B + 2, B, None, [tile]) == oracle.features(GROUP_BY, [(B + 1, (4.0,))], B + 2)
    (warning,) = [one.message for one in caplog.records if "in seconds" in one.message]
    assert warning.startswith("GroupBy 'route': 2 events are before 1980, and so before the stream's start")


def test_a_changed_definition_goes_on_from_the_checkpoint_or_is_refused_and_loses_nothing(flights, spark):
    rng = random.Random(12)
    days = [rows_of_day(rng, day) for day in (0, 1, 0)]
    flights.run(days[0])
    added = replace(GROUP_BY, aggregations=(*GROUP_BY.aggregations, Aggregation("max", "delay", ("6h",))))
    minutes = replace(GROUP_BY, aggregations=(*GROUP_BY.aggregations, Aggregation("count", windows=("30m",))))
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        flights.run(days[1], group_by=added)
        with pytest.raises(StreamingQueryException, match=r"(?s)'route'.*empty checkpoint folder"):
            flights.run(days[2], group_by=minutes)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
    flights.run([])
    for origin in ("JFK", "EWR"):
        of_key = [(time, (delay,)) for rows in days for key, delay, time in rows if key == origin]
        for query in (B + 3 * HOUR_MS, B + 12 * HOUR_MS):
            assert PLAN.finish(query, B, None, flights.tiles(origin)) == oracle.features(GROUP_BY, of_key, query)


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


class Dying:
    """A store whose server is killed in the middle of the next write, where a file says so."""

    def __init__(self, store, order, server):
        self.store, self.order, self.server = store, order, server

    def __getattr__(self, name):
        if name == "store":
            raise AttributeError(name)
        return getattr(self.store, name)

    def put_many(self, dataset, puts):
        puts = list(puts)
        if self.order.exists() and len(puts) > 1:
            self.order.unlink(missing_ok=True)  # another task may have done so
            self.store.put_many(dataset, puts[: len(puts) // 2])
            puts = puts[len(puts) // 2 :]
            with suppress(ProcessLookupError):
                os.kill(self.server, signal.SIGKILL)
        self.store.put_many(dataset, puts)


def test_a_kv_store_down_in_the_middle_of_tile_writes(spark, tmp_path):
    rng = random.Random(5)
    rows = [rows_of_day(rng, 0), rows_of_day(rng, 1)]
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url, timeout_ms=500, retry_ms=100)
        flights = Stream(spark, tmp_path, Dying(store, tmp_path / "kill", server._process.pid))
        flights.run(rows[0])
        closed_ms = flights.closed_ms()
        (tmp_path / "kill").touch()
        with pytest.raises(StreamingQueryException, match="UnavailableError"):
            flights.run(rows[1])
        server.start()
        assert flights.closed_ms() == closed_ms, "nothing is called closed that is not written"
        flights.run([])
        for origin in ("JFK", "EWR"):
            of_key = [(time, (delay,)) for each in rows for found, delay, time in each if found == origin]
            for query in (B, B + 3 * HOUR_MS, B + 12 * HOUR_MS):
                answer = PLAN.finish(query, B, None, flights.tiles(origin))
                assert answer == oracle.features(GROUP_BY, of_key, query)
        store.close()


def test_tiles_as_they_change_can_go_to_another_place_too(spark, tmp_path):
    spark.createDataFrame([("JFK", 1.0, B), ("JFK", 3.0, B + 1)], SCHEMA).write.parquet(str(tmp_path / "events"))
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "events"))
    updates = tile_updates(GROUP_BY, start_ms=B, lateness_ms=0, tables={"route": events})
    writer = updates.writeStream.format("memory").queryName("tiles").outputMode("update")
    assert (
        writer.option("checkpointLocation", str(tmp_path / "to"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination(120)
    )
    key = PLAN.encode_key(("JFK",))
    tiles = [row for row in spark.table("tiles").collect() if bytes(row.key) == key]
    assert [(row.address, row.change) for row in tiles] == [(B, OPENED)]
    assert PLAN.decode_tile(key, bytes(tiles[0].value)).ir[0] == 2


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


LISTINGS = GroupBy(
    "listings",
    keys=(Field("town", "string"),),
    inputs=(Field("price", "long"),),
    aggregations=(
        Aggregation("sum", "price", ("1h", "3d", None)),
        Aggregation("last", "price", ("3d",)),
        Aggregation("count", windows=("3d",)),
    ),
    sources=(EntitySource("listings", "changes", mutation_stream="changes", time_column="listed_ms"),),
)


def test_changes_of_an_entity_are_served_as_the_training_set_has_them(spark, tmp_path):
    snapshot = [("Ulm", 30, B - 2 * DAY_MS), ("Ulm", 5, B - 10), ("Bonn", 70, B - 40 * DAY_MS)]
    changes = [
        # A row of before the batch end goes, another gets a new price, one comes and one is told of late.
        ("Ulm", 30, B - 2 * DAY_MS, B + 7, True),
        ("Ulm", 5, B - 10, B + HOUR_MS, True),
        ("Ulm", 6, B - 10, B + HOUR_MS, False),
        ("Ulm", 100, B + HOUR_MS + 1, B + HOUR_MS + 1, False),
        ("Bonn", 7, B - DAY_MS, B + 2 * HOUR_MS, False),
        # What is before the batch end is in the snapshot, and a row without an own time is in no window.
        ("Ulm", 5, B - 10, B - 10, False),
        ("Ulm", 5, None, B + HOUR_MS, False),
    ]
    schema = "town string, price bigint, listed_ms bigint"
    changed = "mutation_time bigint, is_before boolean"
    tables = {
        "listings": spark.createDataFrame(snapshot, schema),
        "changes": spark.createDataFrame(changes, f"{schema}, {changed}"),
    }
    store = LmdbStore(tmp_path / "kv", sync=False)
    upload(LISTINGS, B, store, tables=tables, spark=spark)
    tables["changes"].coalesce(1).write.parquet(str(tmp_path / "changes"))
    streamed = spark.readStream.schema(f"{schema}, {changed}").parquet(str(tmp_path / "changes"))
    query = stream(
        LISTINGS,
        store,
        str(tmp_path / "checkpoint"),
        start_ms=B,
        lateness_ms=0,
        tables={"changes": streamed},
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(120)
    fetcher = Fetcher(store, [LISTINGS])
    asked = [(town, B + hours * HOUR_MS) for town in ("Ulm", "Bonn", "Kiel") for hours in (0, 1, 2, 3)]
    served = [(town, at, fetcher.fetch("listings", {"town": town}, at).features) for town, at in asked]
    store.close()
    queries = spark.createDataFrame(asked, "town string, time_ms bigint")
    rows = [row.asDict() for row in training_set(queries, LISTINGS, tables=tables, snapshots_end_ms=B).collect()]
    trained = {(row.pop("town"), row.pop("time_ms")): row for row in rows}
    assert served == [(town, at, trained[town, at]) for town, at in asked]
    assert trained["Ulm", B + 3 * HOUR_MS] == {
        "price_sum_1h": None,
        "price_sum_3d": 106,
        "price_sum": 106,
        "price_last_3d": 100,
        "count_3d": 2,
    }


def test_a_stream_publishes_its_start_unless_it_goes_on_where_another_has_closed_tiles():
    store = MemoryStore()
    store.create(DATASET, rows="many")

    def published():
        (rows,) = store.get_many([Get(DATASET, CLOSING_KEY)])
        values = [row.value for row in rows]
        return closing_time(values), stream_start(values)

    assert publish_start(store, DATASET, B) == B
    assert published() == (NEVER_CLOSED_MS, B)
    store.put_many(DATASET, [Put(CLOSING_KEY, encode_closing_time(ClosingTime(0, 1, B + DAY_MS, B)))])
    assert publish_start(store, DATASET, B + DAY_MS) == B
    assert published() == (B + DAY_MS, B)
    assert publish_start(store, DATASET, B + 2 * DAY_MS) == B + 2 * DAY_MS
    assert published() == (B + DAY_MS, B + 2 * DAY_MS)


def test_where_an_older_build_did_not_publish_a_start_none_is_made_up():
    store = MemoryStore()
    store.create(DATASET, rows="many")
    store.put_many(DATASET, [Put(CLOSING_KEY, encode_closing_time(ClosingTime(0, 1, B + DAY_MS)))])
    assert publish_start(store, DATASET, B) is None


def test_a_stream_that_begins_after_the_batch_end_is_not_taken_for_whole(flights):
    flights.run(rows_of_day(random.Random(3), 0), start_ms=B + HOUR_MS)
    (rows,) = flights.store.get_many([Get(DATASET, CLOSING_KEY)])
    assert stream_start([row.value for row in rows]) == B + HOUR_MS
