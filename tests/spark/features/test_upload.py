import random
from datetime import UTC, datetime

import pytest
from pyspark.sql.functions import lit, timestamp_millis

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.features import DAY_MS, HOUR_MS, Aggregation, EventSource, Field, GroupBy, ServingInfo, compile_group_by
from millpond.kv import Get, LmdbStore, MemoryStore, Put
from millpond.metrics import MemoryRecorder
from millpond.spark.features.upload import read_serving_info, upload
from millpond.spark.features.upload_lease import LEASE_MS, UploadLease, forget_lease, leased
from tests.features import oracle

pytestmark = pytest.mark.spark

GROUP_BY = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("gate", "double")),
    sources=(EventSource("route", time_column="at"),),
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


def now():
    return B + 1000


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
    info = upload(GROUP_BY, B, store, tables={"route": events}, landing_ms=B + 5, clock=now)
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
        "temporal",
        info.rows,
        info.checksum,
    )
    assert info.rows == len({(row[0], row[1] + 0.0) for row in rows if row[0] is not None and row[5] < B})
    assert read_serving_info(store, "route") == info
    for key in {(row[0], row[1] + 0.0) for row in rows if row[0] is not None}:
        of_key = [(row[5], row[2:5]) for row in rows if row[:2] == key and row[5] < B]
        for query in (B, B + 5 * HOUR_MS, B + 2 * DAY_MS):
            assert served(store, key, query) == oracle.features(GROUP_BY, of_key, query)


def test_an_upload_replaces_the_one_before_and_keeps_it_for_its_readers(spark, store):
    def upload_one(delay, landing):
        events = spark.createDataFrame([("JFK", 0.0, delay, 1, True, B - 1)], SCHEMA)
        return upload(GROUP_BY, B, store, tables={"route": events}, landing_ms=landing, clock=now)

    datasets = [upload_one(float(number), B + number).batch_dataset for number in (1, 2, 3)]
    assert served(store, ("JFK", 0.0), B)["delay_average"] == 3.0
    assert set(store.datasets()) == {"serving_info", "upload_lease", *datasets[1:]}
    for number in (4, 5, 6):
        served_before = read_serving_info(store, "route").batch_dataset
        wanted = Get(served_before, PLAN.encode_key(("JFK", 0.0)))
        rows_before = store.get_many([wanted])
        again = upload_one(float(number), B + 3)
        assert again == read_serving_info(store, "route")
        assert again.batch_landing_ms == B + 3
        assert served(store, ("JFK", 0.0), B)["delay_average"] == float(number)
        assert store.get_many([wanted]) == rows_before != [[]], "its readers go on"
        assert set(store.datasets()) == {"serving_info", "upload_lease", served_before, again.batch_dataset}
    with pytest.raises(OptionError, match=str(B + 3)):
        upload_one(2.0, B + 2)


def test_a_value_that_cannot_be_aggregated_leaves_the_former_upload_served(spark, store):
    good = spark.createDataFrame([("JFK", 0.0, 1.0, 1, True, B - 1)], SCHEMA)
    info = upload(GROUP_BY, B, store, tables={"route": good}, landing_ms=B, clock=now)
    wrong = good.withColumn("delay", lit(float("nan")))
    with pytest.raises(DataError, match=r"'route'.*'delay'.*nothing of this upload is served"):
        upload(GROUP_BY, B, store, tables={"route": good.union(wrong)}, landing_ms=B + 1, clock=now)
    assert read_serving_info(store, "route") == info
    after = upload(GROUP_BY, B, store, tables={"route": good}, landing_ms=B + 2, clock=now)
    assert set(store.datasets()) == {"serving_info", "upload_lease", info.batch_dataset, after.batch_dataset}


class FullDisk(LmdbStore):
    """A store that takes the first rows of an upload and then no more."""

    def bulk_put(self, dataset, puts):
        if ".batch." in dataset:
            super().bulk_put(dataset, list(puts)[:1])
            raise UnavailableError("no space left on device")
        super().bulk_put(dataset, puts)

    def __reduce__(self):
        return FullDisk, (self.path,)


def test_an_upload_that_dies_in_the_middle_leaves_the_former_one_served(spark, tmp_path):
    store = LmdbStore(tmp_path / "kv")
    good = spark.createDataFrame([("JFK", 0.0, 1.0, 1, True, B - 1)], SCHEMA)
    info = upload(GROUP_BY, B, store, tables={"route": good}, landing_ms=B, clock=now)
    with pytest.raises(UnavailableError, match="no space left"):
        upload(GROUP_BY, B, FullDisk(tmp_path / "kv"), tables={"route": good}, landing_ms=B + 1, clock=now)
    assert f"route.batch.{B}.{B + 1}" in store.datasets()
    assert read_serving_info(store, "route") == info
    assert served(store, ("JFK", 0.0), B)["delay_average"] == 1.0
    again = upload(GROUP_BY, B, store, tables={"route": good}, landing_ms=B + 2, clock=now)
    assert set(store.datasets()) == {"serving_info", "upload_lease", info.batch_dataset, again.batch_dataset}
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
        upload(GROUP_BY, B, store, tables={"route": events}, clock=now)
    assert all(part in str(refused.value) for part in ["'route'", *named])
    assert store.datasets() == []


def test_a_batch_end_off_the_hour_or_in_the_future_is_refused(spark):
    with pytest.raises(OptionError, match=str(B)):
        upload(GROUP_BY, B + 1, MemoryStore(), tables={"route": spark.createDataFrame([], SCHEMA)}, clock=now)
    with pytest.raises(OptionError, match=r"\([0-9-]+T[0-9:.]+ UTC\) is in the future"):
        upload(GROUP_BY, B + HOUR_MS, MemoryStore(), tables={"route": spark.createDataFrame([], SCHEMA)}, clock=now)


def test_an_upload_before_the_served_batch_end_is_refused_and_changes_nothing(spark, store):
    events = spark.createDataFrame([("LGA", 0.0, 1.0, 1, True, B - 2 * DAY_MS)], SCHEMA)
    info = upload(GROUP_BY, B, store, tables={"route": events}, landing_ms=B, clock=now)
    datasets = set(store.datasets())
    with pytest.raises(OptionError, match=f"batch_end_ms {B - DAY_MS} is before {B}, the batch end that is served"):
        upload(GROUP_BY, B - DAY_MS, store, tables={"route": events}, landing_ms=B + 1, clock=now)
    assert read_serving_info(store, "route") == info
    assert set(store.datasets()) == datasets


def test_of_two_uploads_at_once_one_is_refused(spark, store):
    events = spark.createDataFrame([("JFK", 0.0, 1.0, 1, True, B - 1)], SCHEMA)
    with leased(store, "route", now), pytest.raises(UnavailableError, match="another upload is running"):
        upload(GROUP_BY, B, store, tables={"route": events}, clock=now)
    assert read_serving_info(store, "route") is None
    assert upload(GROUP_BY, B, store, tables={"route": events}, clock=now) == read_serving_info(store, "route")


def test_the_lease_of_an_upload_that_died_runs_out(store):
    died = UploadLease(store, "route", now)
    died.take()
    with pytest.raises(UnavailableError):
        UploadLease(store, "route", now).take()
    next_one = UploadLease(store, "route", lambda: now() + LEASE_MS)
    next_one.take()
    with pytest.raises(UnavailableError):
        died.check()


def test_the_lease_of_an_upload_that_died_can_be_forgotten(store):
    forget_lease(store, "route")
    died = UploadLease(store, "route", now)
    died.take()
    forget_lease(store, "route")
    UploadLease(store, "route", now).take()
    with pytest.raises(UnavailableError, match="another upload is running"):
        died.check()


def test_an_upload_whose_lease_was_taken_is_not_published(spark, tmp_path):
    class Slow(LmdbStore):
        """A store during whose loading another upload begins, as if this one's lease had run out."""

        def create(self, dataset, *, rows, ttl_ms=None):
            super().create(dataset, rows=rows, ttl_ms=ttl_ms)
            UploadLease(LmdbStore(self.path), "route", lambda: now() + LEASE_MS).take()

        def __reduce__(self):
            return LmdbStore, (self.path,)

    store = Slow(tmp_path / "kv")
    events = spark.createDataFrame([("JFK", 0.0, 1.0, 1, True, B - 1)], SCHEMA)
    with pytest.raises(UnavailableError, match="another upload"):
        upload(GROUP_BY, B, store, tables={"route": events}, clock=now)
    assert read_serving_info(store, "route") is None
    store.close()


def test_rows_without_key_or_time_are_left_out_and_counted(spark, store):
    rows = [("JFK", 0.0, 1.0, 1, True, B - 1), (None, 0.0, 1.0, 1, True, B - 1), ("JFK", 0.0, 1.0, 1, True, None)]
    recorder = MemoryRecorder()
    upload(GROUP_BY, B, store, tables={"route": spark.createDataFrame(rows, SCHEMA)}, clock=now, recorder=recorder)
    assert served(store, ("JFK", 0.0), B)["count_1h"] == 1
    counted = {name: recorder.total(f"millpond_upload_{name}_total", name="route") for name in COUNTERS}
    assert counted == {"rows": 1, "events": 3, "events_without_key": 1, "events_without_time": 1}


@pytest.mark.parametrize("hop_table", [False, True])
def test_events_in_seconds_are_warned_of(spark, store, tmp_path, caplog, hop_table):
    rows = [("JFK", 0.0, 1.0, 1, True, (B - HOUR_MS * hour) // 1000) for hour in (1, 2)]
    options = {"hop_table": tmp_path / "hops"} if hop_table else {}
    upload(GROUP_BY, B, store, tables={"route": spark.createDataFrame(rows, SCHEMA)}, clock=now, **options)
    latest = datetime.fromtimestamp((B - HOUR_MS) / 10**6, UTC)
    assert f"GroupBy 'route': the latest of 2 rows is of {latest:%Y-%m-%dT%H:%M}" in caplog.text
    assert "If its times are in seconds, multiply them by 1000" in caplog.text


def test_a_batch_whose_events_are_all_in_microseconds_is_empty_and_warned_of(spark, store, caplog):
    rows = [("JFK", 0.0, 1.0, 1, True, (B - HOUR_MS * hour) * 1000) for hour in (1, 2)]
    upload(GROUP_BY, B, store, tables={"route": spark.createDataFrame(rows, SCHEMA)}, clock=now)
    end = datetime.fromtimestamp(B / 1000, UTC)
    assert f"GroupBy 'route': the batch is empty, as no row with a key is before its end, {end:%Y-%m-%dT%H:%M}" in (
        caplog.text
    )
    assert "in microseconds, divide them by 1000" in caplog.text


def test_a_batch_with_one_event_of_today_is_not_warned_of(spark, store, caplog):
    rows = [("JFK", 0.0, 1.0, 1, True, at) for at in (5, B - 1)]
    upload(GROUP_BY, B, store, tables={"route": spark.createDataFrame(rows, SCHEMA)}, clock=now)
    assert caplog.text == ""


COUNTERS = ("rows", "events", "events_without_key", "events_without_time")
EVENTS_SCHEMA = "k string, x double, s string, m map<string,double>, t array<string>, time_ms bigint"
INPUTS = (Field("x", "double"), Field("s", "string"), Field("m", "map<string,double>"), Field("t", "array<string>"))
KEY_FIELDS = (Field("k", "string"),)


def rich_rows(count=300):
    rng = random.Random(3)
    return [
        (
            rng.choice("abcdefg"),
            rng.choice((None, rng.gauss(0, 30))),
            rng.choice((None, "u", "v")),
            rng.choice((None, {"p": rng.random(), "q": 1.0})),
            rng.choice((None, ["i", rng.choice("jk")])),
            B - rng.randrange(1, 20 * DAY_MS),
        )
        for _ in range(count)
    ]


def test_collections_buckets_and_maps_are_stored_as_the_plan_stores_them(spark, store):
    rich = GroupBy(
        "rich",
        KEY_FIELDS,
        INPUTS,
        (
            Aggregation("sum", "x", ("1h", "7d", None), buckets=("s",)),
            Aggregation("unique_count", "t", ("1d", "30d")),
            Aggregation("last_k", "x", ("7d",), k=2),
            Aggregation("max", "m", ("7d",)),
            Aggregation("variance", "x", ("30d",)),
        ),
    )
    plan, rows = compile_group_by(rich), rich_rows()
    info = upload(rich, B, store, tables={"rich": spark.createDataFrame(rows, EVENTS_SCHEMA)}, clock=now)
    for k in "abcdefg":
        key = plan.encode_key([k])
        (found,) = store.get_many([Get(info.batch_dataset, key)])
        of_key = [(row[5], row[1:5]) for row in rows if row[0] == k]
        assert found[0].value == plan.encode_batch(key, plan.batch_ir(of_key, B))


def test_a_snapshot_holds_the_values_at_the_batch_end(spark, store):
    snapshot = GroupBy(
        "daily", KEY_FIELDS, INPUTS, (Aggregation("average", "x", ("1d", "7d", None)),), accuracy="snapshot"
    )
    plan, rows = compile_group_by(snapshot), rich_rows()
    info = upload(snapshot, B, store, tables={"daily": spark.createDataFrame(rows, EVENTS_SCHEMA)}, clock=now)
    key = plan.encode_key(["a"])
    (found,) = store.get_many([Get(info.batch_dataset, key)])
    of_key = [(row[5], row[1:5]) for row in rows if row[0] == "a"]
    expected = oracle.features(snapshot, of_key, B)
    assert plan.decode_values(key, found[0].value) == (B, tuple(expected[name] for name in plan.feature_names))


def test_without_aggregations_the_latest_row_before_the_batch_end_is_served(spark, store):
    facts = GroupBy("facts", KEY_FIELDS, INPUTS, accuracy="snapshot")
    plan, rows = compile_group_by(facts), rich_rows()
    events = spark.createDataFrame([*rows, ("a", 9.0, "w", None, None, B)], EVENTS_SCHEMA)
    info = upload(facts, B, store, tables={"facts": events}, clock=now)
    for k in "abcdefg":
        key = plan.encode_key([k])
        (found,) = store.get_many([Get(info.batch_dataset, key)])
        latest = max((row for row in rows if row[0] == k), key=lambda row: row[5])
        assert plan.decode_values(key, found[0].value) == (B, latest[1:5])


def test_a_generation_is_dropped_one_upload_after_it_was_replaced(spark, store):
    def upload_with(keys, landing):
        group_by = GroupBy("g", keys, INPUTS, (Aggregation("count", windows=("1h",)),))
        dataset = f"g.stream.{compile_group_by(group_by).generation}"
        store.put_many(dataset, [Put(b"k", b"v")])
        events = spark.createDataFrame(rich_rows(5), EVENTS_SCHEMA)
        upload(group_by, B, store, tables={"g": events}, landing_ms=landing, clock=now)
        return dataset

    former = upload_with(KEY_FIELDS, B)
    ahead = "g.stream.0badcafe"
    store.put_many(ahead, [Put(b"k", b"v")])
    current = upload_with((Field("s", "string"),), B + 1)
    assert {former, current, ahead} <= set(store.datasets())
    upload_with((Field("s", "string"),), B + 2)
    assert former not in store.datasets()
    assert {current, ahead} <= set(store.datasets())
