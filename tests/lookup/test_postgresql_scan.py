"""A scan of a table in PostgreSQL returns what lookups return, whatever the types, and its failures are told."""

import threading
import time
from contextlib import closing
from datetime import timedelta
from itertools import islice

import psycopg
import pyarrow as pa
import pytest

from millpond.errors import DataError, UnavailableError
from millpond.lookup import LookupTable, SqlLookup

VALUES = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["'NaN'", "'-Infinity'", "1.5", "3e38"],
    "double precision": ["'NaN'", "'Infinity'", "-0.0", "1e300"],
    "text": ["''", "'é%s\\\"{}'", "repeat('x', 100000)"],
    "varchar(9)": ["'v '"],
    "char(4)": ["'c'"],
    "name": ["'n'"],
    "citext": ["'Case'"],
    "bytea": ["'\\x00ff'", "''"],
    "date": ["'0001-01-01'", "'1969-12-31'", "'9999-12-31'"],
    "timestamp": ["'0001-01-01'", "'1969-12-31 23:59:59.999999'", "'9999-12-31 23:59:59.999999'"],
    "timestamptz": ["'0001-01-01 00:00+00'", "'2000-01-01 00:00+09'", "'9999-12-31 23:59:59.999999+00'"],
    "time": ["'00:00'", "'23:59:59.999999'"],
    "interval": [
        "'1 day'",
        "'-14 months 3 days -00:00:01.000001'",
        "'25 months -3 days'",
        "'1000 hours'",
        "'300 years'",
    ],
    "numeric": ["1.5", "-0.000000000000000001", "1.50000000000000000000000", "12345678901234567890.123456789012345678"],
    "numeric(9,2)": ["5.25", "-9999999.99"],
    "uuid": ["'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "json": ["""'{"a":1, "a":2}'"""],
    "jsonb": ["""'{"a":1, "b":[null]}'"""],
    "inet": ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "boolean[]": ["'{t,null}'", "'{}'"],
    "smallint[]": ["'{1,-1}'"],
    "integer[]": ["'{1,null}'", "'[5:6]={1,2}'"],
    "bigint[]": ["'{9223372036854775807}'"],
    "real[]": ["'{1.5,NaN}'"],
    "double precision[]": ["'{1e300}'"],
    "text[]": ["""'{"",null,"a,b"}'"""],
    "varchar[]": ["'{v}'"],
    "date[]": ["'{1999-12-31,null}'"],
    "timestamp[]": ["'{1999-12-31 01:02:03}'"],
    "timestamptz[]": ["'{1999-12-31 01:02:03+00}'"],
}
"""SQL expressions of values, by their type."""


@pytest.fixture
def database(postgresql):
    with psycopg.connect(postgresql.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")
        yield connection


@pytest.fixture
def many(database, postgresql):
    database.execute("create table many as select n, repeat('x', 1000) as filling from generate_series(1, 20000) n")
    return SqlLookup(postgresql, "many", ["n"], ["filling"], timeout_ms=2_000)


@pytest.mark.parametrize("kind", VALUES)
def test_a_scan_returns_the_values_that_lookups_return(database, postgresql, kind):
    if kind == "citext":
        try:
            database.execute("create extension citext")
        except psycopg.Error:
            pytest.skip("this server has no citext")
    database.execute(f"create table kinds (id serial primary key, value {kind})")
    for value in [*VALUES[kind], "null"]:
        database.execute(f"insert into kinds (value) values ({value})")  # noqa: S608 - values of this test's own
    with SqlLookup(postgresql, "kinds", ["id"], ["value"]) as source:
        table = source.scan()
        keys = [(number,) for number in range(1, len(VALUES[kind]) + 2)]
        looked_up = source.lookup_many(keys)
    assert table.schema.types == [pa.int64(), *source.row_schema.types]
    assert repr(table.column("value").to_pylist()) == repr([looked_up[key][0][0] for key in keys])


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("date", "'infinity'", "outside of what Python"),
        ("date", "'-infinity'", "outside of what Python"),
        ("date", "'0001-12-31 BC'", "outside of what Python"),
        ("timestamp", "'infinity'", "outside of what Python"),
        ("timestamp", "'-infinity'", "outside of what Python"),
        ("timestamptz", "'10000-01-01 00:00+00'", "outside of what Python"),
        ("time", "'24:00'", "outside of what Python"),
        ("date[]", "'{infinity}'", "outside of what Python"),
        ("integer[]", "'{{1,2},{3,4}}'", "more than one dimension"),
        ("numeric", "'NaN'", "does not fit"),
        ("numeric", "1e-30", "does not fit"),
        ("numeric", "1e30", "does not fit"),
    ],
)
def test_a_value_that_a_lookup_refuses_is_refused_by_a_scan_which_names_the_column(
    database, postgresql, kind, value, told
):
    database.execute(f"create table odd (id serial primary key, value {kind})")
    database.execute(f"insert into odd (value) values ({value})")  # noqa: S608 - values of this test's own
    with SqlLookup(postgresql, "odd", ["id"], ["value"]) as source:
        with pytest.raises(DataError, match=f"'odd', column 'value': .*{told}"):
            source.scan()
        with pytest.raises(DataError):
            source.lookup((1,))


@pytest.mark.parametrize("text", ["it's", 'a "b"', "back\\slash", "100 %s", "{}", "é", "$1", "'; drop table odd; --"])
def test_conditions_are_written_into_the_query_as_values(database, postgresql, text):
    database.execute('create table odd (id serial primary key, "a%s" text)')
    database.execute('insert into odd ("a%%s") values (%s), (%s)', [text, "other"])
    table = LookupTable("odd", SqlLookup(postgresql, "odd", ["id"], ["a%s"]), {"lookup.cache": "FULL"})
    for operator, value in (("=", text), ("in", [text, "x"]), ("!=", "other")):
        with table.select(["a%s"], [("a%s", operator, value)]) as narrow, narrow.open() as lookup:
            assert lookup.lookup_many([(1,), (2,)]) == {(1,): [(text,)], (2,): []}


def test_texts_of_a_database_in_another_encoding_are_the_same(database, postgresql):
    database.execute("create database latin encoding 'LATIN1' template template0")
    try:
        url = postgresql.replace("/postgres", "/latin")
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as latin:
            latin.execute("create table words (id int, word text); insert into words values (1, 'Zürich')")
        with SqlLookup(url, "words", ["id"], ["word"]) as source:
            assert source.lookup((1,)) == [("Zürich",)]
            assert source.scan().to_pylist() == [{"id": 1, "word": "Zürich"}]
    finally:
        database.execute("drop database latin with (force)")


def test_bytes_that_are_no_text_give_no_table(database, postgresql):
    database.execute("create database unchecked encoding 'SQL_ASCII' template template0")
    try:
        url = postgresql.replace("/postgres", "/unchecked")
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as unchecked:
            unchecked.execute(b"create table words (id int, word text); insert into words values (1, '\xff')")
        with (
            SqlLookup(url, "words", ["id"], ["word"]) as source,
            pytest.raises(UnavailableError, match=r"'words'.*UTF8"),
        ):
            source.scan()
    finally:
        database.execute("drop database unchecked with (force)")


def test_a_scan_of_any_size_has_a_megabyte_of_rows_at_a_time(many):
    before, most = pa.total_allocated_bytes(), 0
    sizes = []
    for batch in many.scan_batches():
        sizes.append(batch.nbytes)
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    assert sum(sizes) > 20_000_000
    assert max(sizes) < 1_500_000
    assert most < 6_000_000


def test_a_scan_that_is_given_up_closes_its_connection(many, database):
    with closing(many._table.scan_batches()) as batches:
        assert len(list(islice(batches, 2))) == 2
        assert _copies(database) == 1
    deadline = time.monotonic() + 10
    while _copies(database) and time.monotonic() < deadline:
        database.execute("select pg_sleep(0.05)")
    assert _copies(database) == 0


def test_a_connection_that_breaks_in_the_middle_of_a_scan_gives_no_table_and_the_next_scan_works(many, database):
    batches = many._table.scan_batches()
    next(batches)
    database.execute("select pg_terminate_backend(pid) from pg_stat_activity where query like 'COPY%'")
    with pytest.raises(UnavailableError, match="'many': the scan broke off"):
        list(batches)
    assert many.scan().num_rows == 20_000


def test_a_scan_that_waits_for_a_locked_table_is_cancelled_in_time(many, database):
    many.open()
    many._table._timeout_ms = 300
    with database.transaction():
        database.execute("lock table many in access exclusive mode")
        with pytest.raises(UnavailableError, match=r"did not send the next rows of the scan within 300 ms.*locked"):
            many.scan()
    assert many.scan().num_rows == 20_000


def test_a_scan_that_takes_longer_than_the_limit_of_one_batch_goes_on(many, database):
    many.open()
    many._table._timeout_ms = 300
    rows = 0
    for batch in many.scan_batches():
        rows += batch.num_rows
        database.execute("select pg_sleep(0.05)")
    assert rows == 20_000


def test_a_scan_without_permission_is_refused_and_one_that_fails_for_a_row_gives_no_table(database, postgresql):
    database.execute("create view failing as select n as id, 1 / (n - 2000) as part from generate_series(1, 2000) n")
    database.execute("create role stranger login")
    database.execute("grant usage on schema public to stranger")
    stranger = postgresql.replace("millpond@", "stranger@")
    with SqlLookup(stranger, "failing", ["id"], ["part"]) as source:
        with pytest.raises(DataError, match=r"'failing'.*refused the scan.*permission denied"):
            source.scan()
        database.execute("grant select on failing to stranger")
        with pytest.raises(UnavailableError, match=r"'failing': the scan broke off.*division by zero"):
            source.scan()
    database.execute("drop owned by stranger; drop role stranger")


def test_a_column_that_changed_its_type_is_an_error_that_names_it(many, database):
    many.open()
    database.execute("alter table many alter column filling type bytea using filling::bytea")
    with pytest.raises(DataError, match=r"'filling'.*was string.*has changed"):
        many.scan()


def test_two_scans_at_the_same_time_are_whole(many):
    rows = []
    threads = [threading.Thread(target=lambda: rows.append(many.scan().num_rows)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows == [20_000, 20_000]


def _copies(database):
    return database.execute("select count(*) from pg_stat_activity where query like 'COPY%'").fetchone()[0]


def test_an_interval_counts_a_month_as_30_days(database, postgresql):
    database.execute(
        "create table spans (id int, span interval); insert into spans values (1, '1 year 1 month 1 hour')"
    )
    with SqlLookup(postgresql, "spans", ["id"], ["span"]) as source:
        assert source.scan().to_pylist() == [{"id": 1, "span": timedelta(days=395, hours=1)}]
