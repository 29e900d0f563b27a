"""Whatever a lookup function asks, it answers alike: one suite over all sources.

The rows are those of `PLANES`: keys of two columns, a key with several rows, a row of nulls, text with what
URLs, SQL and Redis might take for something else.
"""

import asyncio
import json
import pickle
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.parse import unquote

import pyarrow as pa
import pytest
import sqlalchemy

from millpond.errors import DataError, OptionError
from millpond.kv import LmdbStore
from millpond.lookup import (
    DefaultLookupCache,
    HttpLookup,
    KvLookup,
    LookupTable,
    PartialCachingLookup,
    PythonLookup,
    RedisLookup,
    SqlLookup,
    ThreadedLookup,
    write_kv_table,
)

from .json_server import json_server

KEYS = pa.schema([("tailnum", pa.string()), ("seat", pa.int64())])
ROWS = pa.schema(
    [
        ("year", pa.int64()),
        ("wing", pa.float64()),
        ("model", pa.string()),
        ("built", pa.date32()),
        ("price", pa.decimal128(9, 2)),
    ]
)
ODD = "N/1 %:{};'\"\\ü"
FOUND = {
    ("N1", 1): [(1999, 1.5, "A320", date(1999, 1, 2), Decimal("10.50"))],
    ("N1", 2): [(None, None, None, None, None)],
    (ODD, -7): [(2001, -0.25, ODD, date(2001, 12, 31), Decimal("0.00"))],
}
TWICE = ("N3", 3)
TWO_ROWS = [(1, 1.0, "first", date(2000, 1, 1), Decimal("1.00")), (2, 2.0, "second", date(2000, 1, 2), Decimal("2.00"))]
MISSING = [("N1", 3), ("n1", 1), ("N9", 9)]
PLANES = {**FOUND, TWICE: TWO_ROWS}
ONE_ROW_ONLY = {"redis_hash"}
"""Sources that have one row a key."""


def arrow_table(planes):
    rows = [(*key, *row) for key, found in planes.items() for row in found]
    schema = pa.schema([*KEYS, *ROWS])
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def fill_sql(url, table):
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"drop table if exists {table}")
        folding = " collate utf8mb4_bin" if engine.dialect.name == "mysql" else ""
        connection.exec_driver_sql(
            f"create table {table} (tailnum varchar(40){folding}, seat integer, year integer, wing double precision, "
            "model varchar(40), built date, price numeric(9, 2))"
        )
        values = sqlalchemy.text(f"insert into {table} values (:tailnum, :seat, :year, :wing, :model, :built, :price)")  # noqa: S608
        for row in arrow_table(PLANES).to_pylist():
            connection.execute(
                values,
                {
                    name: value if value is None or isinstance(value, int | float) else str(value)
                    for name, value in row.items()
                },
            )
    engine.dispose()
    return SqlLookup(url, table, KEYS.names, ROWS.names)


@pytest.fixture
def python(tmp_path):
    return PythonLookup(planes_function, KEYS, ROWS)


def planes_function(tailnum, seat):
    return PLANES.get((tailnum, seat))


@pytest.fixture
def sqlite(tmp_path):
    return fill_sql(f"sqlite:///{tmp_path}/planes.db", "planes")


@pytest.fixture
def postgresql_source(postgresql):
    return fill_sql(postgresql, "every_planes")


@pytest.fixture
def mariadb_source(mariadb):
    return fill_sql(mariadb, "every_planes")


@pytest.fixture
def lmdb(tmp_path):
    with closing(LmdbStore(tmp_path / "kv")) as store:
        write_kv_table(store, "planes", arrow_table(PLANES), KEYS.names)
        yield KvLookup(store, "planes", KEYS, ROWS)


@pytest.fixture
def redis_hash(redis_url):
    client = _emptied(redis_url)
    for (tailnum, seat), (row,) in FOUND.items():
        fields = {name: str(value) for name, value in zip(ROWS.names, row, strict=True) if value is not None}
        client.hset(f"plane:{seat}:{tailnum}", mapping=fields or {"other": "field"})
    client.close()
    return RedisLookup(redis_url, "plane:{seat}:{tailnum}", KEYS, ROWS)


@pytest.fixture
def redis_json(redis_url):
    client = _emptied(redis_url)
    for (tailnum, seat), rows in PLANES.items():
        client.set(f"plane:{seat}:{tailnum}", _json(rows if len(rows) > 1 else rows[0]))
    client.close()
    return RedisLookup(redis_url, "plane:{seat}:{tailnum}", KEYS, ROWS, value="json")


@pytest.fixture
def http():
    def respond(method, path, body):
        if method == "POST":
            keys = [(key["tailnum"], key["seat"]) for key in body["keys"]]
            return 200, [
                {"tailnum": key[0], "seat": key[1]} | thing for key in keys for thing in _things(PLANES.get(key, []))
            ]
        _, _, tailnum, seat = path.split("/")
        rows = PLANES.get((unquote(tailnum), int(seat)))
        return (404, None) if rows is None else (200, _things(rows) if len(rows) > 1 else _things(rows)[0])

    with json_server() as server:
        server.respond = respond
        yield server.url


@pytest.fixture
def http_get(http):
    return HttpLookup(f"{http}/planes/{{tailnum}}/{{seat}}", KEYS, ROWS)


@pytest.fixture
def http_batch(http):
    return HttpLookup(f"{http}/planes/{{tailnum}}/{{seat}}", KEYS, ROWS, batch_url=f"{http}/batch")


SOURCES = [
    "python",
    "sqlite",
    "postgresql_source",
    "mariadb_source",
    "lmdb",
    "redis_hash",
    "redis_json",
    "http_get",
    "http_batch",
]


SCANNED = ["sqlite", "postgresql_source", "mariadb_source", "lmdb", "redis_hash", "redis_json"]
"""Sources that can be cached in full."""


@pytest.fixture(params=SOURCES)
def name(request):
    return request.param


@pytest.fixture
def source(name, request):
    return request.getfixturevalue(name)


def _emptied(redis_url):
    import redis

    client = redis.Redis.from_url(redis_url)
    client.flushall()
    return client


def _things(rows):
    return json.loads(_json(list(rows)))


def _json(rows):
    def thing(row):
        return dict(zip(ROWS.names, row, strict=True))

    return json.dumps([thing(row) for row in rows] if isinstance(rows, list) else thing(rows), default=str)


def test_a_batch_is_answered_for_every_key(source, name):
    with source:
        answer = source.lookup_many([*FOUND, *MISSING])
        assert {key: rows for key, rows in answer.items() if rows} == FOUND
        for key, rows in FOUND.items():
            assert source.lookup(key) == rows
            assert [type(value) for row in answer[key] for value in row] == [
                type(value) for row in rows for value in row
            ]
        assert source.lookup(MISSING[0]) == []
        if name not in ONE_ROW_ONLY:
            assert sorted(source.lookup(TWICE)) == TWO_ROWS


@pytest.mark.parametrize("name", SCANNED)
def test_a_scan_finds_what_lookups_find(source, name):
    with source:
        table = source.scan()
        expected = arrow_table(FOUND if name in ONE_ROW_ONLY else PLANES)
        assert sorted(map(repr, table.select(expected.column_names).to_pylist())) == sorted(
            map(repr, expected.to_pylist())
        )


ODD_KEYS = [
    (None, 1),
    ("N1", None),
    ("N1", 5_000_000_000),
    ("N1", -(1 << 63)),
    ("N\x001", 1),
    ("N" * 5_000, 1),
    ("é", 1),
]
"""Keys with nulls, and keys that not every column can hold."""


# On Spark every run has each source and each cache; `make soak` has every pair of them.
ON_SPARK = [
    *((each, "PARTIAL") for each in SOURCES if each not in SCANNED),
    *((each, ("FULL", "PARTIAL")[at % 2]) for at, each in enumerate(SCANNED)),
    *(pytest.param(each, ("PARTIAL", "FULL")[at % 2], marks=pytest.mark.soak) for at, each in enumerate(SCANNED)),
]


@pytest.mark.spark
@pytest.mark.parametrize(("name", "cache"), ON_SPARK)
def test_on_spark_every_event_gets_the_rows_that_sparks_own_join_gives_it(source, name, cache, spark):
    from millpond.spark import lookup_join

    keys = [*PLANES, *MISSING, *ODD_KEYS] * 2
    events = spark.createDataFrame(
        [(number, *key) for number, key in enumerate(keys)], "event long, tailnum string, seat long"
    ).repartition(2)
    known = spark.createDataFrame(arrow_table(FOUND if name in ONE_ROW_ONLY else PLANES))
    options = {"lookup.cache": cache} | ({"lookup.partial-cache.max-rows": 10} if cache == "PARTIAL" else {})
    wanted = ["event", *KEYS.names, *ROWS.names]
    with LookupTable(f"planes of {name}", source, options) as table:
        for how in ("left", "inner"):
            joined = lookup_join(events, table, on=KEYS.names, how=how).select(wanted)
            expected = events.join(known, KEYS.names, how).select(wanted)
            assert sorted(map(repr, joined.collect())) == sorted(map(repr, expected.collect()))


def test_the_schemas_are_those_declared(source):
    assert source.key_schema.names == KEYS.names
    assert source.row_schema.names == ROWS.names
    assert [field.type for field in source.key_schema] == [pa.string(), pa.int64()]
    assert [field.type for field in source.row_schema] == ROWS.types


def test_a_source_opens_again_after_it_was_closed_and_closes_twice(source):
    for _ in range(2):
        source.open()
        source.open()
        assert source.lookup(("N1", 1)) == FOUND["N1", 1]
        source.close()
        source.close()


def test_a_source_travels_to_another_process_without_its_connections(source):
    with source:
        source.lookup(("N1", 1))
        copied = pickle.loads(pickle.dumps(source))
    with copied:
        assert copied.lookup(("N1", 1)) == FOUND["N1", 1]


def test_behind_a_cache_it_gives_the_same_once_and_again(source):
    with PartialCachingLookup(source, DefaultLookupCache(max_rows=100)) as lookup:
        for _ in range(2):
            assert lookup.lookup_many([*FOUND, *MISSING]) == FOUND | {key: [] for key in MISSING}
        assert lookup.stats().miss_count == lookup.stats().load_count == len(FOUND) + len(MISSING)


def test_numbers_are_one_key_whatever_their_type(source):
    with PartialCachingLookup(source, None) as lookup:
        assert lookup.lookup(("N1", Decimal("1.0"))) == FOUND["N1", 1]
        assert lookup.lookup(("N1", Decimal("1.5"))) == []


def test_keys_with_a_null_match_nothing_and_ask_nobody(source):
    with PartialCachingLookup(source, None) as lookup:
        assert lookup.lookup_many([("N1", None), (None, 1)]) == {("N1", None): [], (None, 1): []}
        assert lookup.stats().miss_count == 0


def test_a_key_of_the_wrong_type_is_an_error_and_not_a_missing_row(source):
    with PartialCachingLookup(source, None) as lookup:
        with pytest.raises(DataError, match=r"'seat'.*int64.*str '1'"):
            lookup.lookup(("N1", "1"))
        with pytest.raises(DataError, match=r"tuple of 2 \(tailnum, seat\), got tuple \('N1',\)"):
            lookup.lookup(("N1",))


@pytest.mark.parametrize(
    ("where", "keeps"),
    [
        ([("year", ">=", 2000)], lambda row: row["year"] is not None and row["year"] >= 2000),
        ([("year", "!=", 1999), ("model", "not in", ["first"])], lambda row: row["year"] in (2, 2001)),
        ([("built", "=", date(1999, 1, 2))], lambda row: row["built"] == date(1999, 1, 2)),
        ([("price", "<", Decimal(2)), ("seat", "in", [3, -7])], lambda row: row["year"] in (1, 2001)),
    ],
    ids=["comparison", "nulls_fulfil_nothing", "date", "key_column"],
)
def test_fewer_columns_and_rows_are_what_picking_them_afterwards_gives(source, name, where, keeps):
    table = LookupTable("planes", source, {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 10})
    planes = FOUND if name in ONE_ROW_ONLY else PLANES
    columns = ["model", "seat"] if "seat" in ROWS.names else ["model", "wing"]
    narrow = table.select(columns, where)
    assert narrow.row_schema.names == columns
    with narrow, narrow.open() as lookup:
        answer = lookup.lookup_many([*planes, *MISSING])
    for key, rows in planes.items():
        named = [dict(zip([*KEYS.names, *ROWS.names], (*key, *row), strict=True)) for row in rows]
        assert sorted(answer[key]) == sorted(tuple(row[column] for column in columns) for row in named if keeps(row))
    assert all(answer[key] == [] for key in MISSING)


def test_an_unknown_column_and_a_condition_that_is_none_are_refused_together(source):
    table = LookupTable("planes", source)
    with pytest.raises(OptionError, match=r"no column 'yeer'; did you mean 'year'(.|\n)*expected one of = (.|\n)*null"):
        table.select(where=[("yeer", "=", 1), ("year", "like", 1), ("model", "=", None)])
    with pytest.raises(OptionError, match="no column 'modell'"):
        table.select(["modell"])


def test_in_threads_it_is_an_asynchronous_source(source):
    async def look():
        async with ThreadedLookup(source, threads=3) as lookup:
            return await lookup.lookup_many(list(FOUND))

    assert asyncio.run(look()) == FOUND


def test_moments_in_the_zone_of_the_column_are_keys(tmp_path, redis_url):
    times = pa.schema([("at", pa.timestamp("us", "UTC"))])
    gates = pa.schema([("gate", pa.int64())])
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    with closing(LmdbStore(tmp_path / "kv")) as store:
        write_kv_table(
            store, "gates", pa.table({"at": pa.array([moment], times.field("at").type), "gate": [7]}), ["at"]
        )
        client = _emptied(redis_url)
        client.hset(f"gate:{moment}", mapping={"gate": 7})
        client.close()
        for source in (KvLookup(store, "gates", times, gates), RedisLookup(redis_url, "gate:{at}", times, gates)):
            with PartialCachingLookup(source, None) as lookup:
                assert lookup.lookup((moment,)) == [(7,)]
                with pytest.raises(DataError, match="convert it before"):
                    lookup.lookup((moment.replace(tzinfo=None),))
