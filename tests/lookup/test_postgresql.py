"""PostgreSQL through its own driver: one prepared query a batch, every type, and connections that come and go."""

import gc
import pickle
from contextlib import ExitStack
from datetime import date, time, timedelta
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from benchmarks import database_servers
from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import DefaultLookupCache, LookupTable, PartialCachingLookup, SqlLookup

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
KINDS = {
    "uuid": UUID,
    "jsonb": '{"a": 1}',
    "time": time(10, 30),
    "interval": timedelta(days=1, hours=2),
    "inet": "10.0.0.1",
    "numeric": Decimal("1.5"),
    "numeric(9,2)": Decimal("5.25"),
    "mood": "calm",
    "text": "text",
    "varchar(9)": "text",
    "bytea": b"\x00\xff",
    "smallint": 7,
    "integer": -7,
    "bigint": 1 << 40,
    "date": date(1999, 12, 31),
}


def connect(url):
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


@pytest.fixture
def database(postgresql):
    with connect(postgresql) as connection:
        connection.execute("drop schema public cascade; create schema public")
        yield connection


@pytest.fixture
def planes(database, postgresql):
    database.execute("create table planes (id serial, code text, number integer, primary key (code, number))")
    database.execute("insert into planes (code, number) select 'N' || n, n from generate_series(1, 15000) numbers(n)")
    return postgresql


@pytest.fixture
def sent(monkeypatch):
    """The queries that are sent, and the connections that are opened."""
    seen = {"queries": [], "connections": 0}
    execute, opened = psycopg.Cursor.execute, psycopg.connect

    def counted(self, query, *args, **named):
        seen["queries"].append(query)
        return execute(self, query, *args, **named)

    def connected(*args, **named):
        seen["connections"] += 1
        return opened(*args, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    monkeypatch.setattr(psycopg, "connect", connected)
    return seen


def test_a_batch_of_15_000_keys_of_two_columns_is_one_query(planes, sent):
    keys = [(f"N{number}", number) for number in range(1, 15_001)]
    with SqlLookup(planes, "planes", ["code", "number"], ["id"]) as source:
        source.lookup(keys[0])
        sent["queries"].clear()
        assert source.lookup_many([*keys, ("N1", 2)]) == {
            **{key: [(number,)] for number, key in enumerate(keys, 1)},
            ("N1", 2): [],
        }
    assert len(sent["queries"]) == 1


@pytest.mark.parametrize("key", [5_000_000_000, -(1 << 63), 1 << 70])
def test_a_number_out_of_its_columns_range_has_no_rows_and_the_others_have_theirs(planes, key):
    with SqlLookup(planes, "planes", ["number"], ["code"]) as source:
        assert source.lookup_many([(key,), (2,)]) == {(key,): [], (2,): [("N2",)]}


@pytest.mark.parametrize("key", ["N\x002", "\x00", "\ud800"])
def test_a_text_that_no_database_can_hold_has_no_rows(planes, key):
    with SqlLookup(planes, "planes", ["code"], ["number"]) as source:
        assert source.lookup_many([(key,), ("N2",)]) == {(key,): [], ("N2",): [(2,)]}


@pytest.fixture
def kinds(database, postgresql):
    database.execute("create type mood as enum ('calm', 'O''Hare \"x\"')")
    columns = [f'"{kind}" {kind} unique' for kind in KINDS]
    database.execute(f"create table kinds ({', '.join(columns)}, numbers integer[], words json)")
    places = ", ".join(f"%s::{kind}" for kind in KINDS)
    database.execute(f"insert into kinds values ({places}, '{{1,null}}', '[1]')", list(KINDS.values()))  # noqa: S608 - names of this test's own
    return postgresql


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_read_and_is_a_key_through_its_index(kinds, kind):
    value = KINDS[kind]
    with SqlLookup(kinds, "kinds", [kind], [kind, "numbers", "words"]) as source:
        assert source.lookup((value,)) == [(value, [1, None], "[1]")]
        assert source.scan().column(kind).to_pylist() == [value]
        plan = source._table.explain([pa.array([value], source.key_schema.field(0).type)])
    assert "Index Scan" in plan
    assert f"kinds_{kind}_key" in plan


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("uuid", ["no uuid", UUID.upper(), ""]),
        ("jsonb", ["{", '{"a":1}', "NaN", '"\\u0000"', '"\\\\\\u0000"', "1e400000", ""]),
        ("inet", ["10.0.0.1/32", "10.0.0.256", "", "10.0.0.1/33", "10.0.0.1/255.255.255.0", "fe80::1%eth0"]),
        ("mood", ["furious", "", "'"]),
        ("numeric(9,2)", [Decimal("5.250000001"), Decimal(10) ** 30]),
        ("smallint", [70_000]),
    ],
)
def test_a_text_that_is_no_value_of_its_type_or_another_form_of_one_matches_nothing(kinds, kind, others):
    with SqlLookup(kinds, "kinds", [kind], ["date"]) as source:
        found = source.lookup_many([*((other,) for other in others), (KINDS[kind],)])
    assert found == {**{(other,): [] for other in others}, (KINDS[kind],): [(KINDS["date"],)]}


@pytest.mark.parametrize(
    ("kind", "key_type", "beyond"),
    [
        ("date", pa.date32(), [-2_440_589, -(1 << 31), 2_145_042_906, (1 << 31) - 1]),
        ("timestamp", pa.timestamp("us"), [-210_866_803_200_000_001, -(1 << 63)]),
        ("timestamptz", pa.timestamp("us", "UTC"), [-210_866_803_200_000_001, -(1 << 63)]),
    ],
)
def test_a_moment_that_the_database_does_not_have_has_no_rows_and_the_others_have_theirs(
    database, postgresql, kind, key_type, beyond
):
    database.execute(f"create table moments (moment {kind} primary key, n integer)")
    database.execute("insert into moments values ('1970-01-01 00:00:00+00', 7), ('infinity', 8), ('-infinity', 9)")
    keys = pa.array([0, *beyond], pa.int32() if kind == "date" else pa.int64()).view(key_type)
    with SqlLookup(postgresql, "moments", ["moment"], ["n"]) as source:
        found = source.lookup_columns([keys])
    assert (found.numbers.tolist(), found.rows.to_pylist()) == ([0], [{"n": 7}])


def test_a_json_key_with_a_backslash_before_a_u_is_found(database, postgresql):
    text = r'"C:\\u0000\\udata"'
    database.execute("create table paths (path jsonb primary key, n integer)")
    database.execute("insert into paths values (%s, 7)", [text])
    with SqlLookup(postgresql, "paths", ["path"], ["n"]) as source:
        assert source.lookup((text,)) == [(7,)]


def test_a_type_without_equality_and_one_without_an_arrow_type_are_refused_by_name(kinds, database, postgresql):
    with pytest.raises(OptionError, match=r"'words'.*equality"):
        SqlLookup(kinds, "kinds", ["words"], ["date"]).open()
    with pytest.raises(OptionError, match=r"'numbers'.*an array can be no key.*column of text"):
        SqlLookup(kinds, "kinds", ["numbers"], ["date"]).open()
    database.execute("create table shapes (name text, shape point)")
    with pytest.raises(OptionError, match=r"'shape'.*point"):
        SqlLookup(postgresql, "shapes", ["name"], ["shape"]).open()


def test_a_collation_that_ignores_case_is_refused_where_it_would_miss_keys(database, postgresql):
    try:
        database.execute("create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.Error:
        pytest.skip("this server has no ICU")
    database.execute("create table codes (code text collate folded primary key); insert into codes values ('jfk')")
    source = SqlLookup(postgresql, "codes", ["code"], ["code"])
    with source, pytest.raises(DataError, match=r"'jfk'.*not asked for in this form"):
        source.lookup(("JFK",))


def test_domains_schemas_and_names_that_need_quotes_are_found(database, postgresql):
    database.execute('create schema "My Shop"; create domain age as integer')
    database.execute('create table "My Shop"."50% off" ("the ""key""" text primary key, "a%s" age)')
    database.execute("""insert into "My Shop"."50% off" values ('x', 7)""")
    with SqlLookup(postgresql, "My Shop.50% off", ['the "key"'], ["a%s"]) as source:
        assert source.lookup_many([("x",), ("y",)]) == {("x",): [(7,)], ("y",): []}
        assert source.scan().num_rows == 1


def test_a_table_without_an_index_is_read_once_for_a_batch(database, postgresql):
    database.execute("create table plain as select n as code from generate_series(1, 1000) numbers(n)")
    with SqlLookup(postgresql, "plain", ["code"], ["code"]) as source:
        plan = source._table.explain([pa.array(range(500))])
        found = source.lookup_many([(number,) for number in range(500)])
    assert "Hash Join" in plan
    assert sum(map(len, found.values())) == 499


def test_columns_are_what_rows_are(planes):
    with SqlLookup(planes, "planes", ["code", "number"], ["id", "code"]) as source:
        keys = [pa.array(["N7", "N8\x00", "N9", "N7"]), pa.array([7, 8, 9, 8], pa.int32())]
        found = source.lookup_columns(keys)
    assert sorted(zip(found.numbers.tolist(), *found.rows.to_pydict().values(), strict=True)) == [
        (0, 7, "N7"),
        (2, 9, "N9"),
    ]


def test_a_scan_starts_no_garbage_collection_by_the_number_of_its_rows(planes):
    source = SqlLookup(planes, "planes", ["code"], ["id", "number"])
    source.lookup(("N1",))
    # Whatever was made before this test: what follows is counted from nothing.
    gc.collect()
    before = sum(each["collections"] for each in gc.get_stats())
    rows = sum(batch.num_rows for batch in source.scan_batches())
    started = sum(each["collections"] for each in gc.get_stats()) - before
    assert rows == 15_000
    assert started < rows / gc.get_threshold()[0] / 4


def test_conditions_of_every_kind_are_checked_by_the_database(planes):
    where = [("number", ">", 2), ("code", "in", ["N2", "N3", "N4"]), ("number", "not in", [4]), ("code", "!=", "x")]
    table = LookupTable("planes", SqlLookup(planes, "planes", ["code"], ["id", "number"])).select(["id"], where)
    with table, table.open() as lookup:
        assert lookup.lookup_many([("N2",), ("N3",), ("N4",)]) == {("N2",): [], ("N3",): [(3,)], ("N4",): []}


# --- connections


def test_a_worker_opens_no_connection_before_it_misses_and_then_keeps_it(planes, sent):
    declared = SqlLookup(planes, "planes", ["code"], ["number"])
    declared.open()
    carried = pickle.dumps(declared)
    sent.update(connections=0)
    sent["queries"].clear()
    cache = DefaultLookupCache(max_rows=9)
    cache.put(("N1",), [(1,)])
    with PartialCachingLookup(pickle.loads(carried), cache) as lookup:
        assert lookup.lookup(("N1",)) == [(1,)]
        assert sent["connections"] == 0
        assert lookup.lookup_many([("N2",), ("N3",)]) == {("N2",): [(2,)], ("N3",): [(3,)]}
        assert lookup.lookup(("N4",)) == [(4,)]
    assert sent["connections"] == 1
    assert len(sent["queries"]) == 2, "no ping"
    assert len(set(sent["queries"])) == 1, "the same text for any number of keys, so it is prepared once"


def test_a_table_with_fewer_columns_is_described_by_the_whole_one_and_not_again_in_every_worker(planes, sent):
    whole = LookupTable("planes", SqlLookup(planes, "planes", ["code"], ["id", "number"]))
    assert whole.row_schema.names == ["id", "number"]
    carried = pickle.dumps(whole.select(["number"], [("number", "<", 3)]))
    sent.update(connections=0)
    with pickle.loads(carried) as narrow:
        lookup = narrow.open()
        assert sent["connections"] == 0
        assert lookup.lookup_many([("N2",), ("N3",)]) == {("N2",): [(2,)], ("N3",): []}


def test_all_connections_that_broke_while_idle_are_replaced_on_use(planes, database, sent):
    with SqlLookup(planes, "planes", ["code"], ["number"]) as source:
        assert source.lookup(("N1",)) == [(1,)]
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and "
            "backend_type = 'client backend'"
        )
        sent.update(connections=0)
        assert source.lookup(("N2",)) == [(2,)]
        assert sent["connections"] == 1


def test_a_read_only_server_answers(planes, database):
    database.execute("alter system set default_transaction_read_only = on")
    database.execute("select pg_reload_conf()")
    try:
        with SqlLookup(planes, "planes", ["code"], ["number"]) as source:
            assert source.lookup(("N1",)) == [(1,)]
            assert source.scan().num_rows == 15_000
    finally:
        database.execute("set default_transaction_read_only = off")
        database.execute("alter system reset default_transaction_read_only")
        database.execute("select pg_reload_conf()")


def test_a_column_that_changed_its_type_is_an_error_that_names_it(planes, database):
    with SqlLookup(planes, "planes", ["code"], ["number"]) as source:
        assert source.lookup(("N1",)) == [(1,)]
        database.execute("alter table planes alter column number type text")
        with pytest.raises(DataError, match=r"'number'.*was int64.*has changed"):
            source.lookup(("N1",))


def test_a_value_that_does_not_fit_its_arrow_type_is_an_error_that_names_the_column(database, postgresql):
    database.execute("create table prices (code text, price numeric); insert into prices values ('x', 1e-30)")
    source = SqlLookup(postgresql, "prices", ["code"], ["price"])
    with source, pytest.raises(DataError, match="'price'"):
        source.lookup(("x",))


def test_a_server_that_refuses_us_is_unavailable_and_its_password_is_not_told(postgresql):
    url = postgresql.replace("millpond@", "millpond:secret@").replace("/postgres", "/nowhere")
    with pytest.raises(UnavailableError, match="nowhere") as told:
        SqlLookup(url, "planes", ["code"], ["number"]).open()
    assert "secret" not in str(told.value)


def test_a_standby_behind_the_first_server_of_the_url_takes_over():
    with ExitStack() as stack:
        folders = [stack.enter_context(database_servers.server_folder()) for _ in range(2)]
        server = database_servers.PostgresqlServer(folders[0])
        server.start()
        stack.callback(server.stop)
        where = {"host": "127.0.0.1", "user": "millpond", "dbname": "postgres", "autocommit": True}
        with psycopg.connect(port=server.port, **where) as connection:
            connection.execute("create table codes (n bigint primary key, code text)")
            connection.execute("insert into codes select n, 'code ' || n from generate_series(0, 9) n")
        server.stop()
        standby = server.standby(folders[1])
        server.start()
        standby.start()
        stack.callback(standby.stop)
        hosts = f"127.0.0.1:{server.port},127.0.0.1:{standby.port}"
        source = SqlLookup(f"postgresql://millpond@{hosts}/postgres", "codes", ["n"], ["code"])
        assert source.lookup((1,)) == [("code 1",)]
        server.stop()
        assert source.lookup_many([(2,), (77,)]) == {(2,): [("code 2",)], (77,): []}
        source.close()
        connection = stack.enter_context(psycopg.connect(port=standby.port, **where))
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("delete from codes")
