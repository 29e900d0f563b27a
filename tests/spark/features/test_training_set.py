"""The training set on Spark, over several partitions, against the rule alone."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from millpond.errors import DataError, OptionError
from millpond.features import Aggregation, CompiledDerivations, Derivation, Field, GroupBy, Join, JoinPart
from millpond.features.definitions import EntitySource, EventSource, JoinSource
from millpond.kv import LmdbStore
from millpond.metrics import MemoryRecorder
from millpond.spark.features.sources import batch_rows
from millpond.spark.features.training_set import training_set
from millpond.spark.features.upload import upload
from tests.features import oracle

pytestmark = pytest.mark.spark

DAY, HOUR, MINUTE = oracle.DAY, oracle.HOUR, oracle.MINUTE
B = 16_000 * DAY
OPERATIONS = ("count", "sum", "average", "min", "max")

ROUTE = GroupBy(
    "route",
    keys=(Field("origin", "string"), Field("gate", "double")),
    inputs=(Field("delay", "double"), Field("legs", "long")),
    aggregations=(
        *(Aggregation(operation, "delay", ("30m", "1d", "30d", None)) for operation in OPERATIONS),
        Aggregation("sum", "legs", ("7d",)),
        Aggregation("count", windows=("1h",)),
    ),
)
DAILY = GroupBy(
    "daily",
    keys=(Field("carrier", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=tuple(Aggregation(operation, "delay", ("2d", None)) for operation in OPERATIONS),
    accuracy="snapshot",
)
LATEST = GroupBy("latest", keys=(Field("carrier", "string"),), inputs=(Field("delay", "double"),), accuracy="snapshot")
FLIGHT = Join(
    "flight",
    parts=(JoinPart(ROUTE, {"airport": "origin"}), JoinPart(DAILY), JoinPart(LATEST, prefix="last")),
    context=(Field("amount", "double"),),
)


def random_events(count, seed):
    rng = random.Random(seed)
    return [
        (
            rng.choice(("JFK", "EWR", "", None)),
            rng.choice((0.0, -0.0, 1.5)),
            rng.choice(("UA", "DL", None)),
            rng.choice((None, round(rng.gauss(0, 30), 2))),
            rng.choice((None, rng.randrange(5))),
            B + number * 7 - rng.randrange(40 * DAY if rng.random() < 0.5 else 2 * HOUR),
        )
        for number in range(count)
    ]


EVENTS = "origin string, gate float, carrier string, delay double, legs int, time_ms bigint"
QUERIES = "airport string, gate float, carrier string, amount double, asked timestamp, label string"


def of_key(events, group_by, key):
    """The events of a key, as the oracle takes them; a key with a null part has none."""
    columns = ["origin", "gate", "carrier", "delay", "legs", "time_ms"]
    keys = [columns.index(field.name) for field in group_by.keys]
    inputs = [columns.index(field.name) for field in group_by.inputs]
    return [
        (event[5], tuple(event[n] for n in inputs))
        for event in events
        if None not in key and tuple(event[n] for n in keys) == key
    ]


def at(time_ms):
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def test_a_join_answers_each_query_by_the_rule_alone(spark):
    events = random_events(300, seed=1)
    asked = [
        (origin, gate, carrier, 1.5, at(time), f"label {number}")
        for number, (origin, gate, carrier, _, _, time) in enumerate(random_events(60, seed=2))
    ]
    queries = spark.createDataFrame(asked, QUERIES).repartition(3)
    history = spark.createDataFrame(events, EVENTS).repartition(3)
    tables = dict.fromkeys(("route", "daily", "latest"), history)
    rows = training_set(queries, FLIGHT, time_column="asked", tables=tables)
    assert rows.columns == [*queries.columns, *FLIGHT.feature_names]
    found = {row.label: row.asDict() for row in rows.collect()}
    assert len(found) == len(asked)
    for origin, gate, carrier, _, time, label in asked:
        time_ms = int(time.timestamp() * 1000)
        midnight = time_ms // DAY * DAY
        expected = {
            f"route_{name}": value
            for name, value in oracle.features(ROUTE, of_key(events, ROUTE, (origin, gate)), time_ms).items()
        }
        of_carrier = of_key(events, DAILY, (carrier,))
        expected |= {f"daily_{name}": value for name, value in oracle.features(DAILY, of_carrier, midnight).items()}
        expected["last_delay"] = max(
            (row for row in of_carrier if row[0] < midnight), default=(0, (None,)), key=lambda row: row[0]
        )[1][0]
        assert {name: found[label][name] for name in FLIGHT.feature_names} == expected


def test_features_of_every_type_come_back(spark):
    values = {
        "boolean": True,
        "int": 7,
        "long": 1 << 40,
        "float": 0.25,
        "double": 0.1,
        "string": "ä",
        "binary": b"\xff",
        "date": date(2024, 2, 29),
        "timestamp": datetime(2024, 2, 29, 1, 2, 3, 456_789, UTC),
        "decimal(9,2)": Decimal("12.50"),
        "decimal(38,10)": Decimal("1.0000000001"),
        "array<date>": [date(2024, 2, 29)],
        "map<string,timestamp>": {"a": datetime(2024, 2, 29, tzinfo=UTC)},
    }
    fields = tuple(Field(f"c{n}", type_) for n, type_ in enumerate(values))
    group_by = GroupBy(
        "any",
        keys=(Field("user", "string"),),
        inputs=fields,
        aggregations=tuple(Aggregation("max", field.name) for field in fields),
    )
    ddl = ", ".join(f"{field.name} {field.parsed.spark_name}" for field in fields)
    history = spark.createDataFrame([("ann", 5, *values.values())], f"user string, time_ms bigint, {ddl}")
    queries = spark.createDataFrame([("ann", 6), ("bob", 6)], "user string, time_ms bigint")
    rows = training_set(queries, group_by, tables={"any": history})
    wanted = {"array<date>": "date"}
    assert [field.dataType.simpleString() for field in rows.schema.fields[2:]] == [
        Field("c", wanted.get(field.type, field.type)).parsed.spark_name for field in fields
    ]
    as_written = history.select(*(F.col(field.name) for field in fields)).first()
    found = {row.user: row for row in rows.collect()}
    for n, type_ in enumerate(values):
        expected = as_written[n][0] if type_ == "array<date>" else as_written[n]
        assert found["ann"][2 + n] == expected
        assert found["bob"][2 + n] is None


def test_an_event_at_the_time_of_a_query_is_not_before_it(spark):
    group_by = GroupBy("any", keys=(Field("user", "string"),), aggregations=(Aggregation("count", windows=("1m",)),))
    history = spark.createDataFrame(
        [("ann", B), ("ann", B - 1), ("ann", B - MINUTE), ("ann", B - MINUTE - 1), ("ann", None)],
        "user string, time_ms bigint",
    )
    queries = history.where("time_ms IS NOT NULL")
    rows = training_set(queries, group_by, tables={"any": history})
    assert sorted((row.time_ms - B, row.count_1m) for row in rows.collect()) == [
        (-MINUTE - 1, None),
        (-MINUTE, 1),
        (-1, 2),
        (0, 2),
    ]


def test_entities_are_as_they_stood_at_each_query(spark):
    listings = GroupBy(
        "listings",
        keys=(Field("seller", "string"),),
        inputs=(Field("price", "double"),),
        aggregations=(Aggregation("sum", "price"), Aggregation("max", "price")),
        sources=(EntitySource("now", "changes", time_column="listed"),),
    )
    now = spark.createDataFrame([("ann", 3.0, 0)], "seller string, price double, listed bigint")
    changes = spark.createDataFrame(
        [
            ("ann", 9.0, 0, B - HOUR, True),
            ("ann", 3.0, 0, B - HOUR, False),
            ("ann", 3.0, 0, B + HOUR, True),
            ("ann", 1.0, 0, B + HOUR, False),
        ],
        "seller string, price double, listed bigint, mutation_time bigint, is_before boolean",
    )
    times = [B - 2 * HOUR, B, B + 2 * HOUR, B + DAY]
    queries = spark.createDataFrame([("ann", time) for time in times], "seller string, time_ms bigint")
    rows = training_set(queries, listings, tables={"now": now, "changes": changes}, snapshots_end_ms=B)
    found = {row.time_ms: (row.price_sum, row.price_max) for row in rows.collect()}
    # A maximum cannot take 3.0 back before the next midnight.
    assert [found[time] for time in times] == [(9.0, 9.0), (3.0, 3.0), (1.0, 3.0), (1.0, 1.0)]


def test_a_join_is_a_source_of_a_group_by(spark):
    clicks = GroupBy("clicks", keys=(Field("user", "string"),), aggregations=(Aggregation("count"),))
    visits = Join("visits", parts=(JoinPart(clicks),), left=EventSource("visited", wheres=("shop <> 'x'",)))
    of_shop = GroupBy(
        "of_shop",
        keys=(Field("shop", "string"),),
        inputs=(Field("clicked", "long"),),
        aggregations=(Aggregation("max", "clicked"),),
        sources=(JoinSource(visits, selects={"shop": "shop", "clicked": "clicks_count * 10"}),),
    )
    tables = {
        "clicks": spark.createDataFrame([("ann", 1), ("ann", 2), ("ann", 9)], "user string, time_ms bigint"),
        "visited": spark.createDataFrame(
            [("ann", "s", 5), ("ann", "s", 20), ("ann", "x", 6)], "user string, shop string, time_ms bigint"
        ),
    }
    queries = spark.createDataFrame([("s", 10), ("s", 30), ("x", 30)], "shop string, time_ms bigint")
    rows = training_set(queries, of_shop, tables=tables)
    assert {(row.shop, row.time_ms): row.clicked_max for row in rows.collect()} == {
        ("s", 10): 20,
        ("s", 30): 30,
        ("x", 30): None,
    }


def test_a_join_over_entities_is_a_source_of_a_group_by(spark):
    prices = GroupBy(
        "prices",
        keys=(Field("seller", "string"),),
        inputs=(Field("price", "long"),),
        aggregations=(Aggregation("sum", "price"),),
        sources=(EntitySource("now", "changes"),),
    )
    visits = Join("visits", parts=(JoinPart(prices),), left=EventSource("visited"))
    of_shop = GroupBy(
        "of_shop",
        keys=(Field("shop", "string"),),
        inputs=(Field("prices_price_sum", "long"),),
        aggregations=(Aggregation("max", "prices_price_sum"),),
        sources=(JoinSource(visits),),
    )
    change = "mutation_time bigint, is_before boolean"
    tables = {
        "now": spark.createDataFrame([("ann", 3, 0)], "seller string, price bigint, time_ms bigint"),
        "changes": spark.createDataFrame(
            [("ann", 9, 0, B - HOUR, True), ("ann", 3, 0, B - HOUR, False)],
            f"seller string, price bigint, time_ms bigint, {change}",
        ),
        "visited": spark.createDataFrame(
            [("ann", "s", B - 2 * HOUR), ("ann", "t", B - 1)], "seller string, shop string, time_ms bigint"
        ),
    }
    queries = spark.createDataFrame([("s", B), ("t", B)], "shop string, time_ms bigint")
    rows = training_set(queries, of_shop, tables=tables, snapshots_end_ms=B).collect()
    assert {row.shop: row.prices_price_sum_max for row in rows} == {"s": 9, "t": 3}
    uploaded = batch_rows(spark, of_shop, B, tables).collect()
    assert {row.key_0: row.input_0 for row in uploaded} == {"s": 9, "t": 3}
    with pytest.raises(OptionError, match="snapshots_end_ms"):
        training_set(queries, of_shop, tables=tables)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda queries: queries.drop("airport"), ["'flight'", "key 'airport'"]),
        (lambda queries: queries.drop("asked"), ["time column 'asked'"]),
        (lambda queries: queries.drop("amount"), ["context field 'amount'"]),
        (lambda queries: queries.withColumn("amount", F.lit("1")), ["'amount'", "double", "string", "cast"]),
        (lambda queries: queries.withColumn("asked", F.lit("1")), ["'asked'", "timestamp"]),
        (lambda queries: queries.withColumn("Route_count_1h", F.lit(1)), ["'Route_count_1h'", "feature"]),
    ],
)
def test_queries_that_do_not_fit_are_refused_by_name(spark, change, named):
    with pytest.raises(DataError) as refused:
        training_set(change(spark.createDataFrame([], QUERIES)), FLIGHT, time_column="asked")
    assert all(part in str(refused.value) for part in named)


def test_derivations_see_features_keys_and_context(spark):
    count = GroupBy(
        "c",
        keys=(Field("user", "string"),),
        aggregations=(Aggregation("count"),),
        derivations=(Derivation("label", "concat(user, '-', cast(count AS string))"),),
    )
    join = Join(
        "j",
        parts=(JoinPart(count, {"customer": "user"}),),
        context=(Field("amount", "double"),),
        derivations=(Derivation("each", "amount / c_count"), Derivation("text", "concat(customer, c_label)")),
    )
    history = spark.createDataFrame([("ann", 1), ("ann", 2)], "user string, time_ms bigint")
    queries = spark.createDataFrame(
        [("ann", 3, 5.0), ("bob", 3, 5.0)], "customer string, time_ms bigint, amount double"
    )
    rows = training_set(queries, join, tables={"c": history})
    assert rows.columns == [*queries.columns, "c_count", "c_label", "each", "text"]
    assert sorted(map(tuple, rows.collect())) == [
        ("ann", 3, 5.0, 2, "ann-2", 2.5, "annann-2"),
        ("bob", 3, 5.0, None, None, None, None),
    ]


def test_derivations_in_another_time_zone_are_refused(spark):
    count = GroupBy("c", keys=(Field("user", "string"),), aggregations=(Aggregation("count"),))
    join = Join("j", parts=(JoinPart(count),), derivations=(Derivation("twice", "c_count * 2"),))
    history = spark.createDataFrame([("ann", 1)], "user string, time_ms bigint")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with pytest.raises(OptionError, match="Asia/Tokyo"):
            training_set(history, join, tables={"c": history})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_derivations_see_keys_and_context_in_their_declared_types(spark):
    """Queries may have narrower columns, which keep their types."""
    spent = GroupBy("spent", (Field("user", "long"),), (Field("price", "long"),), (Aggregation("sum", "price"),))
    derived = {
        "twice": "user + user",
        "text": "concat(amount, '')",
        "euros": "concat(paid, '')",
        "sum": "spent_price_sum + n",
    }
    join = Join(
        "scored",
        parts=(JoinPart(spent),),
        context=(Field("amount", "double"), Field("paid", "decimal(20,2)"), Field("n", "long")),
        derivations=tuple(Derivation(name, sql) for name, sql in derived.items()),
    )
    events = spark.createDataFrame([(2_000_000_000, B - 1, 5)], "user bigint, time_ms bigint, price bigint")
    queries = spark.createDataFrame(
        [(2_000_000_000, B, 3, Decimal("1.5"), 7)],
        "user int, time_ms bigint, amount int, paid decimal(5,1), n bigint",
    )
    rows = training_set(queries, join, tables={"spent": events})
    assert rows.schema.fields[: len(queries.columns)] == queries.schema.fields
    (row,) = rows.collect()
    online, _ = CompiledDerivations(
        join.derivations,
        {"user": "long", "amount": "double", "paid": "decimal(20,2)", "n": "long", "spent_price_sum": "long"},
    ).apply({"user": 2_000_000_000, "amount": 3.0, "paid": Decimal("1.5"), "n": 7, "spent_price_sum": 5})
    assert {name: row[name] for name in derived} == online
    assert online == {"twice": 4_000_000_000, "text": "3.0", "euros": "1.50", "sum": 12}


def test_keys_inputs_and_derivations_may_have_any_name(spark):
    names = ("row", "Row of", "key_hash", "order_ms", "is_query", "key_0", "time_ms", "select", "a.b", "`")
    schema = "row_key string, time_ms bigint, " + ", ".join(
        f"`{name.replace('`', '``')}` string" for name in names if name != "time_ms"
    )
    latest = GroupBy(
        "latest",
        keys=(Field("row_key", "string"),),
        inputs=tuple(Field(name, "long" if name == "time_ms" else "string") for name in names),
        accuracy="snapshot",
        derivations=(Derivation("rows", "concat(`row`, row_key)"),),
    )
    values = [name for name in names if name != "time_ms"]
    events = spark.createDataFrame([("a", B - 1, *values)], schema)
    queries = spark.createDataFrame([("a", B, "label")], "row_key string, asked bigint, `the label` string")
    join = Join("any", (JoinPart(latest),))
    (made,) = training_set(queries, join, time_column="asked", tables={"latest": events}).collect()
    expected = {f"latest_{name}": B - 1 if name == "time_ms" else name for name in names}
    assert made.asDict() == {"row_key": "a", "asked": B, "the label": "label", **expected, "latest_rows": "rowa"}
    keyed = GroupBy(
        "keyed",
        (Field("row", "string"),),
        aggregations=(Aggregation("count"),),
        derivations=(Derivation("d", "`row`"),),
    )
    queries = spark.createDataFrame([("row", B)], "row string, time_ms bigint")
    (made,) = training_set(queries, keyed, tables={"keyed": events}).collect()
    assert (made.row, made["count"], made.d) == ("row", 1, "row")


def test_rows_without_a_time_of_a_join_that_is_a_source_are_left_out_and_counted(spark, tmp_path):
    spent = GroupBy("spent", (Field("user", "string"),), (Field("price", "long"),), (Aggregation("sum", "price"),))
    visits = GroupBy(
        "visits",
        (Field("user", "string"),),
        (Field("spent_price_sum", "long"),),
        (Aggregation("sum", "spent_price_sum"),),
        sources=(JoinSource(Join("visit", (JoinPart(spent),), left=EventSource("left"))),),
    )
    tables = {
        "spent": spark.createDataFrame([("ann", B - 9, 5)], "user string, time_ms bigint, price bigint"),
        "left": spark.createDataFrame(
            [("ann", B - 3), ("ann", None), ("ann", B * 1000)], "user string, time_ms bigint"
        ),
    }
    recorder = MemoryRecorder()
    with LmdbStore(tmp_path / "kv") as store:
        assert upload(visits, B, store, tables=tables, recorder=recorder).rows == 1
    assert recorder.total("millpond_upload_events_without_time_total", name="visits") == 1
    queries = spark.createDataFrame([("ann", B)], "user string, time_ms bigint")
    (row,) = training_set(queries, visits, tables=tables).collect()
    assert row.spent_price_sum_sum == 5


def test_an_average_of_longs_beyond_the_doubles_is_rounded_once(spark):
    spent = GroupBy("spent", (Field("k", "long"),), (Field("v", "long"),), (Aggregation("average", "v"),))
    events = [(key, value, B - 1) for key, values in AVERAGED.items() for value in values]
    found = training_set(
        spark.createDataFrame([(key, B) for key in AVERAGED], "k long, time_ms long"),
        spent,
        tables={"spent": spark.createDataFrame(events, "k long, v long, time_ms long")},
    )
    expected = {key: float(Fraction(sum(values), len(values))) for key, values in AVERAGED.items()}
    assert {row.k: row[-1] for row in found.collect()} == expected


AVERAGED = {1: (2**53 + 1, 0, 0), 2: (-(2**53) - 1, 0, 0), 3: (2**53 + 2, 0, 0), 4: (2**63 - 1, 2, 0)}


@pytest.mark.parametrize("accuracy", ["temporal", "snapshot"])
def test_a_query_without_a_time_is_refused_as_a_row_of_the_queries(spark, accuracy):
    spent = GroupBy("spent", (Field("k", "long"),), aggregations=(Aggregation("count"),), accuracy=accuracy)
    queries = spark.createDataFrame([(1, B), (1, None)], "k long, asked_ms long")
    tables = {"spent": spark.createDataFrame([(1, B - 1), (1, None)], "k long, time_ms long")}
    with pytest.raises(PySparkException, match="GroupBy 'spent': a row of the queries has no 'asked_ms', its time"):
        training_set(queries, spent, time_column="asked_ms", tables=tables).collect()


def test_a_query_in_microseconds_is_refused_by_its_column(spark):
    spent = GroupBy("spent", (Field("k", "long"),), aggregations=(Aggregation("count"),))
    queries = spark.createDataFrame([(1, B), (1, B * 1000)], "k long, asked_ms long")
    tables = {"spent": spark.createDataFrame([(1, B - 1)], "k long, time_ms long")}
    with pytest.raises(
        PySparkException, match=f"'spent': asked_ms is {B}000, beyond the year 2499.* divide it by 1000"
    ):
        training_set(queries, spent, time_column="asked_ms", tables=tables).collect()
