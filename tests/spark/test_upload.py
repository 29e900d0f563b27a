import random

import pytest
from pyspark.errors import PythonException
from pyspark.sql.functions import lit, timestamp_millis

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.features import DAY_MS, HOUR_MS, Aggregation, Field, GroupBy, ServingInfo, compile_group_by
from millpond.kv import Get, LmdbStore, MemoryStore
from millpond.spark.upload import read_serving_info, upload_batch
from tests.features import oracle

pytestmark = pytest.mark.spark

GROUP_BY = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("gate", "double")),
    inputs=(Field("delay", "double"), Field("legs", "long"), Field("late", "boolean")),
    aggregations=(
        Aggregation("count", windows=("1h", "7d")),
        Aggregation("average", "delay", ("1d", "30d", None)),
        Aggregation("sum", "legs", ("7d",)),
        Aggregation("average", "late"),
    ),
)
PLAN = compile_group_by(GROUP_BY)
B = 16_000 * DAY_MS
SCHEMA = "origin string, gate float, delay double, legs int, late boolean, at bigint"


def random_rows(count=400):
    rng = random.Random(7)
    return [
        (
            rng.choice(("JFK", "EWR", "", None)),
            rng.choice((0.0, -0.0, 1.5)),
            rng.choice((None, rng.gauss(0, 30))),
            rng.choice((None, rng.randrange(5))),
            rng.random() < 0.3,
            B + rng.randrange(-40 * DAY_MS, DAY_MS),
        )
        for _ in range(count)
    ] + [("LGA", 0.0, 1.0, 1, True, B - 1), ("LGA", 0.0, 3.0, 1, True, B)]


@pytest.fixture
def store(tmp_path):
    with_lmdb = LmdbStore(tmp_path / "kv", sync=False)
    yield with_lmdb
    with_lmdb.close()


def served(store, key, query):
    info = read_serving_info(store, "route")
    (rows,) = store.get_many([Get(info.batch_dataset, PLAN.encode_key(key))])
    batch = PLAN.decode_batch(PLAN.encode_key(key), rows[0].value) if rows else None
    assert [row.time_ms for row in rows] == [info.batch_end_ms] * len(rows)
    return PLAN.finish(query, info.batch_end_ms, batch, [])


def test_every_key_is_served_what_its_raw_events_say(spark, store):
    rows = random_rows()
    events = spark.createDataFrame(rows, SCHEMA)
    info = upload_batch(events, GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=B + 5)
    assert info == ServingInfo(
        "route",
        PLAN.definition_hash,
        B,
        B + 5,
        f"route.batch.{B}.{B + 5}",
        f"route.stream.{PLAN.generation}",
        PLAN.generation,
        PLAN.batch_form,
        PLAN.layers,
    )
    assert read_serving_info(store, "route") == info
    for key in {(row[0], row[1] + 0.0) for row in rows if row[0] is not None}:
        of_key = [(row[5], row[2:5]) for row in rows if row[:2] == key and row[5] < B]
        for query in (B, B + 5 * HOUR_MS, B + 2 * DAY_MS):
            assert served(store, key, query) == oracle.features(GROUP_BY, of_key, query)


def test_an_upload_replaces_the_one_before_and_keeps_it_for_its_readers(spark, store):
    def upload(delay, landing):
        events = spark.createDataFrame([("JFK", 0.0, delay, 1, True, B - 1)], SCHEMA)
        return upload_batch(events, GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=landing)

    datasets = [upload(float(number), B + number).batch_dataset for number in (1, 2, 3)]
    assert served(store, ("JFK", 0.0), B)["delay_average"] == 3.0
    assert set(store.datasets()) == {"serving_info", *datasets[1:]}
    assert upload(3.0, B + 3) == read_serving_info(store, "route")
    assert served(store, ("JFK", 0.0), B)["delay_average"] == 3.0
    with pytest.raises(OptionError, match=str(B + 3)):
        upload(2.0, B + 2)


def test_a_value_that_cannot_be_aggregated_leaves_the_former_upload_served(spark, store):
    good = spark.createDataFrame([("JFK", 0.0, 1.0, 1, True, B - 1)], SCHEMA)
    info = upload_batch(good, GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=B)
    for wrong in (good.withColumn("delay", lit(float("nan"))), good.withColumn("at", lit(None).cast("long"))):
        with pytest.raises(DataError, match=r"'route'.*nothing of this upload is served"):
            upload_batch(good.union(wrong), GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=B + 1)
        assert read_serving_info(store, "route") == info
    after = upload_batch(good, GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=B + 2)
    assert set(store.datasets()) == {"serving_info", info.batch_dataset, after.batch_dataset}


class FullDisk(LmdbStore):
    """A store that takes the first rows of an upload and then no more."""

    def put_many(self, dataset, puts):
        if ".batch." in dataset:
            super().put_many(dataset, list(puts)[:1])
            raise UnavailableError("no space left on device")
        super().put_many(dataset, puts)

    def __reduce__(self):
        return FullDisk, (self.path,)


def test_an_upload_that_dies_in_the_middle_leaves_the_former_one_served(spark, tmp_path):
    store = LmdbStore(tmp_path / "kv")
    good = spark.createDataFrame([("JFK", 0.0, 1.0, 1, True, B - 1)], SCHEMA)
    info = upload_batch(good, GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=B)
    with pytest.raises(PythonException, match="no space left"):
        upload_batch(good, GROUP_BY, FullDisk(tmp_path / "kv"), batch_end_ms=B, time_column="at", landing_ms=B + 1)
    assert f"route.batch.{B}.{B + 1}" in store.datasets()
    assert read_serving_info(store, "route") == info
    assert served(store, ("JFK", 0.0), B)["delay_average"] == 1.0
    again = upload_batch(good, GROUP_BY, store, batch_end_ms=B, time_column="at", landing_ms=B + 2)
    assert set(store.datasets()) == {"serving_info", info.batch_dataset, again.batch_dataset}
    store.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda events: events.drop("delay"), ["input 'delay'", "origin"]),
        (lambda events: events.drop("gate"), ["key 'gate'"]),
        (lambda events: events.drop("at"), ["time column 'at'"]),
        (lambda events: events.withColumn("delay", lit("7")), ["'delay'", "double", "string", "cast"]),
        (lambda events: events.withColumn("origin", lit(7)), ["'origin'", "string", "int"]),
        (lambda events: events.withColumn("at", timestamp_millis("at")), ["'at'", "timestamp", "unix_millis"]),
    ],
)
def test_a_wrong_column_is_refused_by_name_before_anything_is_written(spark, change, named):
    store = MemoryStore()
    events = change(spark.createDataFrame([], SCHEMA))
    with pytest.raises(DataError) as refused:
        upload_batch(events, GROUP_BY, store, batch_end_ms=B, time_column="at")
    assert all(part in str(refused.value) for part in ["'route'", *named])
    assert store.datasets() == []


def test_a_batch_end_off_midnight_is_refused(spark):
    with pytest.raises(OptionError, match=str(B)):
        upload_batch(spark.createDataFrame([], SCHEMA), GROUP_BY, MemoryStore(), batch_end_ms=B + 1, time_column="at")
