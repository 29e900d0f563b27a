"""What sources do when something is wrong: a typed error that says what, and never a missing row."""

import socket
import threading
from datetime import date
from decimal import Decimal

import psycopg
import pyarrow as pa
import pymysql.cursors
import pytest
import sqlalchemy

from benchmarks import database_servers
from millpond.errors import CorruptionError, DataError, MissingDependencyError, OptionError, UnavailableError
from millpond.kv import Get, MemoryStore, Put
from millpond.lookup import (
    DefaultLookupCache,
    HttpLookup,
    HttpScan,
    KvLookup,
    PartialCachingLookup,
    RedisLookup,
    Retries,
    SqlLookup,
    write_kv_table,
)
from millpond.lookup.sources.values import readers

from .json_server import json_server

CODE = pa.schema([("code", pa.string())])
GATE = pa.schema([("gate", pa.int64())])
PATIENCE_S = 20


@pytest.fixture
def server():
    with json_server() as server:
        yield server


@pytest.fixture
def redis_client(redis_url):
    import redis

    client = redis.Redis.from_url(redis_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(params=["postgresql", "mariadb"])
def gates_url(request):
    url = request.getfixturevalue(request.param)
    execute(
        url,
        "drop table if exists gates",
        "create table gates (code varchar(9), gate integer, seen timestamp null, shape char(3))",
        "insert into gates values ('JFK', 1, '2013-01-01 05:00:00', 'ab')",
    )
    return url


def execute(url, *statements):
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def closed_port():
    return database_servers.free_port()


def no_wait(max_retries=2):
    return Retries(max_retries, sleep=lambda _: None)


# --- SQL


def test_a_slow_database_ends_in_a_time_out_that_is_tried_again(gates_url):
    """A table that another transaction has locked, as a slow one."""
    is_postgresql = gates_url.startswith("postgresql")
    source = SqlLookup(gates_url, "gates", ["code"], ["gate"], timeout_ms=500)
    engine = sqlalchemy.create_engine(gates_url)
    with source, engine.connect() as locker:
        locker.exec_driver_sql(
            "lock table gates in access exclusive mode" if is_postgresql else "lock tables gates write"
        )
        with pytest.raises(UnavailableError, match="did not answer"):
            source.lookup(("JFK",))
        locker.exec_driver_sql("rollback" if is_postgresql else "unlock tables")
        assert source.lookup(("JFK",)) == [(1,)]
    engine.dispose()


def test_connections_that_the_server_closed_are_opened_again(gates_url):
    with SqlLookup(gates_url, "gates", ["code"], ["gate"]) as source:
        assert source.lookup(("JFK",)) == [(1,)]
        if gates_url.startswith("postgresql"):
            execute(
                gates_url, "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and "
                "backend_type = 'client backend'"
            )  # fmt: skip
        else:
            engine = sqlalchemy.create_engine(gates_url)
            with engine.connect() as killer:
                for process in killer.exec_driver_sql("show processlist").all():
                    if process[0] != killer.exec_driver_sql("select connection_id()").scalar():
                        killer.exec_driver_sql(f"kill {process[0]}")
            engine.dispose()
        assert source.lookup(("JFK",)) == [(1,)]


def test_a_server_that_is_down_at_the_start_is_unavailable(gates_url):
    url = sqlalchemy.engine.make_url(gates_url).set(port=closed_port())
    source = SqlLookup(url.render_as_string(hide_password=False), "gates", ["code"], ["gate"], timeout_ms=2_000)
    with pytest.raises(UnavailableError, match="gates"):
        source.open()


def test_a_column_dropped_in_the_middle_is_refused_without_a_retry(gates_url):
    waits = []
    source = SqlLookup(gates_url, "gates", ["code"], ["gate"])
    with PartialCachingLookup(source, DefaultLookupCache(max_rows=9), retries=Retries(3, sleep=waits.append)) as gates:
        gates.lookup(("JFK",))
        execute(gates_url, "alter table gates drop column gate")
        with pytest.raises(DataError, match="refused the lookup"):
            gates.lookup(("LGA",))
    assert waits == []


def test_padding_and_collations_that_change_keys_are_errors(gates_url):
    with SqlLookup(gates_url, "gates", ["shape"], ["gate"]) as source:
        if gates_url.startswith("postgresql"):
            with pytest.raises(DataError, match=r"'ab '.*not asked for in this form"):
                source.lookup(("ab",))
        else:
            with pytest.raises(DataError, match=r"'ab'.*not asked for in this form"):
                source.lookup(("AB",))


def test_a_driver_that_is_not_installed_is_named_with_its_install_line():
    with pytest.raises(MissingDependencyError, match=r"postgresql\+pg8000.*pip install"):
        SqlLookup("postgresql+pg8000://localhost/x", "gates", ["code"], ["gate"]).open()


def test_one_query_a_batch_reaches_a_real_server(gates_url, monkeypatch):
    seen = []
    for cursor in (psycopg.Cursor, pymysql.cursors.Cursor):
        plain = cursor.execute
        monkeypatch.setattr(
            cursor, "execute", lambda *args, plain=plain, **named: seen.append(args[1]) or plain(*args, **named)
        )
    with SqlLookup(gates_url, "gates", ["code"], ["gate"]) as source:
        source.lookup(("JFK",))
        seen.clear()
        answer = source.lookup_many([(f"X{key}",) for key in range(5_000)] + [("JFK",)])
    assert len(seen) == 1
    assert answer["JFK",] == [(1,)]


# --- Redis


def test_redis_that_goes_down_is_unavailable_and_comes_back_by_itself():
    with database_servers.redis() as url:
        source = RedisLookup(url, "gate:{code}", CODE, GATE, timeout_ms=1_000)
        source.open()
        assert source.lookup(("JFK",)) == []
    lookup = PartialCachingLookup(source, cache := DefaultLookupCache(max_rows=9), retries=no_wait())
    with pytest.raises(UnavailableError, match="3 tries"):
        lookup.lookup(("JFK",))
    assert cache.size() == 0
    source.close()
    with pytest.raises(UnavailableError, match="gate:"):
        source.open()


def test_a_redis_that_does_not_answer_ends_in_a_time_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = RedisLookup(f"redis://127.0.0.1:{silent.getsockname()[1]}", "gate:{code}", CODE, GATE, timeout_ms=50)
        with pytest.raises(UnavailableError, match=r"gate:.*did not answer"):
            source.open()


def test_a_hash_without_any_of_the_columns_is_a_row_of_nulls_and_no_hash_is_no_row(redis_client, redis_url):
    redis_client.hset("gate:JFK", mapping={"terminal": "T4"})
    with RedisLookup(redis_url, "gate:{code}", CODE, GATE) as gates:
        assert gates.lookup_many([("JFK",), ("LGA",)]) == {("JFK",): [(None,)], ("LGA",): []}


def test_a_redis_value_of_another_kind_type_or_form_is_refused_by_name(redis_client, redis_url):
    redis_client.set("gate:JFK", b"{broken")
    redis_client.hset("gate:LGA", mapping={"gate": "twelve"})
    redis_client.set("gate:EWR", b'{"terminal": 1}')
    with RedisLookup(redis_url, "gate:{code}", CODE, GATE) as hashes:
        with pytest.raises(DataError, match="is each of these values a hash"):
            hashes.lookup(("JFK",))
        with pytest.raises(DataError, match=r"'gate'.*int64.*b'twelve'"):
            hashes.lookup(("LGA",))
    with RedisLookup(redis_url, "gate:{code}", CODE, GATE, value="json") as texts:
        with pytest.raises(DataError, match=r"'gate:JFK'.*expected JSON"):
            texts.lookup(("JFK",))
        with pytest.raises(DataError, match=r"'gate:EWR'.*object with gate"):
            texts.lookup(("EWR",))


def test_a_hash_where_json_was_declared_is_refused_and_not_taken_for_no_row(redis_client, redis_url):
    redis_client.hset("gate:JFK", mapping={"gate": 1})
    texts = RedisLookup(redis_url, "gate:{code}", CODE, GATE, value="json")
    with texts, pytest.raises(DataError, match="is each of these values a string"):
        texts.lookup(("JFK",))


def test_a_scan_of_redis_finds_the_keys_that_lookups_find_each_once(redis_client, redis_url, monkeypatch):
    for name, gate in (("7", 1), ("007", 2), ("x", 3), ("8*", 4), ("-8", 5)):
        redis_client.hset(f"gate[1]:{name}", mapping={"gate": gate})
    redis_client.hset("gate1:9", mapping={"gate": 6})
    redis_client.hset(b"gate[1]:\xff", mapping={"gate": 7})
    names = redis_client.keys("*")
    numbers = pa.schema([("number", pa.int64())])
    with RedisLookup(redis_url, "gate[1]:{number}", numbers, GATE) as gates:
        # Redis may tell a name twice.
        walk = gates._client.scan_iter
        monkeypatch.setattr(gates._client, "scan_iter", lambda **options: [*walk(**options), *walk(**options)])
        scanned = sorted(zip(*gates.scan().select(["number", "gate"]).to_pydict().values(), strict=True))
        assert scanned == [(-8, 5), (7, 1)]
        assert [(number, gates.lookup((number,))[0][0]) for number, _ in scanned] == scanned
    assert len(names) == 7


def test_names_that_two_keys_make_and_keys_of_bytes_cannot_be_scanned(redis_client, redis_url):
    two = pa.schema([("code", pa.string()), ("pier", pa.string())])
    redis_client.hset("gate:JFK:north:1", mapping={"gate": 1})
    gates = RedisLookup(redis_url, "gate:{code}:{pier}", two, GATE)
    with gates, pytest.raises(DataError, match=r"'gate:JFK:north:1'.*\('JFK', 'north:1'\) and \('JFK:north', '1'\)"):
        gates.scan()
    gates = RedisLookup(redis_url, "gate:{code}", pa.schema([("code", pa.binary())]), GATE)
    with gates, pytest.raises(OptionError, match="keys of bytes cannot be read back"):
        gates.scan()


def test_a_batch_is_one_pipeline_and_only_what_is_used_is_fetched(redis_client, redis_url):
    redis_client.hset("gate:JFK", mapping={"gate": 1, "terminal": "T4"})
    both = pa.schema([("gate", pa.int64()), ("terminal", pa.string())])
    source, _ = RedisLookup(redis_url, "gate:{code}", CODE, both).pushed_down(["gate"], ())
    with source:
        source.lookup(("JFK",))
        redis_client.config_resetstat()
        assert source.lookup_many([("JFK",), ("LGA",)])["JFK",] == [(1,)]
        calls = {name: stats["calls"] for name, stats in redis_client.info("commandstats").items()}
    assert calls["cmdstat_hmget"] == 2 + 1  # and once more together with EXISTS, for the key that is not there
    assert source.row_schema.names == ["gate"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("gate:{iata}", r"expected each key column once .*\{code\}.*got iata"), ("gate", "got none")],
)
def test_a_pattern_without_the_key_columns_is_refused(name, complaint):
    with pytest.raises(OptionError, match=complaint):
        RedisLookup("redis://localhost", name, CODE, GATE)
    with pytest.raises(OptionError, match=complaint):
        HttpLookup(f"http://localhost/{name}", CODE, GATE)


def test_a_list_cannot_be_read_from_text():
    with pytest.raises(OptionError, match=r"'gate'.*list"):
        RedisLookup("redis://localhost", "gate:{code}", CODE, pa.schema([("gate", pa.list_(pa.int64()))]))


def test_a_key_that_shares_its_name_with_another_is_an_error_and_never_gets_the_others_rows(redis_client, redis_url):
    two = pa.schema([("code", pa.string()), ("pier", pa.string())])
    redis_client.hset("gate:JFK:north:1", mapping={"gate": 1})
    redis_client.hset("gate:LGA:south", mapping={"gate": 2})
    with RedisLookup(redis_url, "gate:{code}:{pier}", two, GATE) as gates:
        assert gates.lookup(("LGA", "south")) == [(2,)]
        for key in (("JFK", "north:1"), ("JFK:north", "1")):
            with pytest.raises(DataError, match=r"'gate:JFK:north:1'.*\('JFK', 'north:1'\) and \('JFK:north', '1'\)"):
                gates.lookup(key)
    numbers = pa.schema([("code", pa.int64()), ("pier", pa.int64())])
    with (
        RedisLookup(redis_url, "gate:{code}{pier}", numbers, GATE) as gates,
        pytest.raises(DataError, match="'gate:123'"),
    ):
        gates.lookup((1, 23))


# --- HTTP


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_status_that_passes_is_tried_again(server, status):
    server.answers["GET", "/JFK"] = 200, {"gate": 4}
    server.failing = [(status, "busy")] * 2
    with PartialCachingLookup(HttpLookup(server.url + "/{code}", CODE, GATE), None, retries=no_wait()) as gates:
        assert gates.lookup(("JFK",)) == [(4,)]
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [301, 400, 401, 403, 418])
def test_a_status_that_stays_is_an_error_at_once_and_no_missing_row(server, status):
    server.failing = [(status, "no")]
    gates = PartialCachingLookup(HttpLookup(server.url + "/{code}", CODE, GATE), None, retries=no_wait())
    with pytest.raises(DataError, match=f"got {status}"):
        gates.lookup(("JFK",))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>", "expected JSON, got '<html>'"),
        ({"terminal": 1}, r"objects with gate, got \{'terminal': 1\}"),
        ([1, 2], "objects with gate, got 1"),
        ({"gate": "x"}, "'gate'.*int64.*'x'"),
        ({"gate": True}, "'gate'.*bool True"),
    ],
)
def test_an_answer_of_another_form_is_refused(server, body, complaint):
    server.answers["GET", "/JFK"] = 200, body
    with pytest.raises(DataError, match=complaint):
        HttpLookup(server.url + "/{code}", CODE, GATE).lookup(("JFK",))


def test_nothing_there_is_no_row_however_the_service_says_it(server):
    server.answers = {
        ("GET", "/null"): (200, None),
        ("GET", "/list"): (200, []),
        ("GET", "/one"): (200, {"gate": None}),
    }
    gates = HttpLookup(server.url + "/{code}", CODE, GATE)
    found = gates.lookup_many([("null",), ("list",), ("none",), ("one",)])
    assert found == {("null",): [], ("list",): [], ("none",): [], ("one",): [(None,)]}


@pytest.mark.parametrize("code", ["", ".", ".."])
def test_a_key_that_would_be_another_path_is_refused_and_never_fetches_the_listing(server, code):
    server.answers["GET", "/"] = 200, [{"gate": 1}, {"gate": 2}]
    with pytest.raises(DataError, match=r"'code'.*another resource"):
        HttpLookup(server.url + "/{code}", CODE, GATE).lookup((code,))
    assert server.asked == []
    server.answers["GET", "/gates?code="] = 200, {"gate": 3}
    assert HttpLookup(server.url + "/gates?code={code}", CODE, GATE).lookup(("",)) == [(3,)]


def test_headers_are_sent_and_a_connection_is_kept_and_renewed_when_the_server_closed_it(server):
    server.answers["GET", "/JFK"] = 200, {"gate": 4}
    with HttpLookup(server.url + "/{code}", CODE, GATE, headers={"Authorization": "Bearer t"}) as gates:
        gates.lookup(("JFK",))
        kept = gates._client._idle[0].sock.getsockname()
        gates.lookup(("JFK",))
        assert gates._client._idle[0].sock.getsockname() == kept
        gates._client._idle[0].sock.shutdown(2)
        assert gates.lookup(("JFK",)) == [(4,)]
    assert {headers["Authorization"] for *_, headers in server.asked} == {"Bearer t"}


def test_a_service_that_is_down_or_too_slow_is_unavailable(server):
    with pytest.raises(UnavailableError, match="no answer"):
        HttpLookup(f"http://127.0.0.1:{closed_port()}/{{code}}", CODE, GATE).lookup(("JFK",))
    answer = threading.Event()
    server.respond = lambda *_: (answer.wait(PATIENCE_S), (200, {"gate": 1}))[1]
    try:
        with pytest.raises(UnavailableError, match="TimeoutError"):
            HttpLookup(server.url + "/{code}", CODE, GATE, timeout_ms=100).lookup(("JFK",))
    finally:
        answer.set()


def test_a_batch_that_answers_for_a_key_that_was_not_asked_for_is_an_error(server):
    server.answers["POST", "/many"] = 200, [{"code": "jfk", "gate": 1}]
    source = HttpLookup(server.url + "/{code}", CODE, GATE, batch_url=server.url + "/many")
    with PartialCachingLookup(source, None) as gates, pytest.raises(DataError, match=r"\('jfk',\).*not asked for"):
        gates.lookup(("JFK",))
    assert server.asked[0][2] == {"keys": [{"code": "JFK"}]}


def test_rows_are_taken_out_of_the_body_and_key_values_are_quoted(server):
    day = pa.schema([("day", pa.date32()), ("open", pa.bool_())])
    server.answers["GET", "/d/2013-01-02/true?x=1"] = 200, {"data": [{"gate": 1}, {"gate": 2}]}
    gates = HttpLookup(server.url + "/d/{day}/{open}?x=1", day, GATE, rows=lambda body: body["data"])
    assert gates.lookup((date(2013, 1, 2), True)) == [(1,), (2,)]


def test_a_url_that_is_none_is_refused():
    with pytest.raises(OptionError, match="http://"):
        HttpLookup("localhost/{code}", CODE, GATE)
    with pytest.raises(OptionError, match="expected the server of"):
        HttpLookup("http://one/{code}", CODE, GATE, batch_url="http://two/many")


def test_a_scan_over_http_of_nothing_is_an_error(server):
    with pytest.raises(DataError, match="nothing"):
        HttpScan(server.url + "/all", CODE, GATE).scan()
    server.answers["GET", "/all"] = 200, [{"code": "JFK", "gate": 1 << 70}]
    with pytest.raises(DataError, match="expected int64"):
        HttpScan(server.url + "/all", CODE, GATE).scan()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"code": "\xff", "gate": 1}', "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b'{"gate": 123456789012345678901234567890}', "expected int64"),
        (b'{"gate": 1' + b"0" * 5_000 + b"}", "expected JSON"),
    ],
    ids=["no text", "deep", "30 digits", "5,000 digits"],
)
def test_json_that_no_column_holds_is_bad_data(server, body, told):
    server.answers["GET", "/JFK"] = 200, body
    with pytest.raises(DataError, match=told):
        HttpLookup(server.url + "/{code}", CODE, GATE).lookup(("JFK",))


@pytest.mark.parametrize("text", ["1E+999999999", "1E-999999999", "NaN", "Infinity", "123456789", "0.001", "-1e8"])
def test_a_decimal_that_its_type_does_not_hold_is_bad_data(text):
    (read,) = readers("planes", pa.schema([("price", pa.decimal128(10, 2))]))
    with pytest.raises(DataError, match=r"expected decimal128\(10, 2\)"):
        read(text)
    assert read("12345678.50") == Decimal("12345678.50")
    assert read("0E+999999999") == 0


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("{code}/x", ("", ".", "..")),
        ("{code}", ("", ".", "..")),
        ("a/{code}/b", ("", ".", "..")),
        ("x.{code}", ("",)),
        (".{code}", ("", ".")),
    ],
)
def test_a_key_is_one_segment_of_a_path_and_never_dots_or_nothing(server, path, refused):
    lookup = HttpLookup(f"{server.url}/api/{path}", CODE, GATE)
    for code in refused:
        with pytest.raises(DataError, match="another resource"):
            lookup.lookup((code,))
    assert server.asked == []
    lookup.lookup(("../admin?x#y",))
    assert server.asked[0][1] == "/api/" + path.format(code="..%2Fadmin%3Fx%23y")


def test_two_keys_cannot_make_dots_together(server):
    two = pa.schema([("one", pa.string()), ("other", pa.string())])
    with pytest.raises(DataError, match="another resource"):
        HttpLookup(server.url + "/api/{one}{other}/admin", two, GATE).lookup((".", "."))
    with pytest.raises(OptionError, match="names no server"):
        HttpLookup("http://{one}/{other}", two, GATE)
    assert server.asked == []


# --- the KV store


def test_no_bit_of_a_stored_row_can_be_flipped_unnoticed():
    store, table = MemoryStore(), pa.table({"code": ["JFK"], "gate": pa.array([7], pa.int64())})
    write_kv_table(store, "gates", table, ["code"])
    ((row,),) = store.get_many([Get("gates", b"\x91\xa3JFK")])
    lookup = KvLookup(store, "gates", CODE, GATE)
    assert lookup.lookup(("JFK",)) == [(7,)]
    for bit in range(8 * len(row.value)):
        altered = bytearray(row.value)
        altered[bit // 8] ^= 1 << bit % 8
        store.put_many("gates", [Put(b"\x91\xa3JFK", bytes(altered))])
        with pytest.raises((CorruptionError, DataError), match="KV dataset 'gates'"):
            lookup.lookup(("JFK",))
    store.put_many("gates", [Put(b"\x91\xa3EWR", row.value)])
    with pytest.raises(CorruptionError, match="of another key"):
        lookup.lookup(("EWR",))


def test_a_row_of_format_1_is_still_read():
    store = MemoryStore()
    store.put_many("gates", [Put(b"\x91\xa3JFK", b"\x92\x91\xa4gate\x91\x91\x07")])
    assert KvLookup(store, "gates", CODE, GATE).lookup(("JFK",)) == [(7,)]


def test_a_dataset_with_other_columns_or_other_bytes_is_refused():
    store = MemoryStore()
    write_kv_table(store, "gates", pa.table({"code": ["JFK"], "terminal": ["T4"]}), ["code"])
    with pytest.raises(DataError, match=r"'gates'.*\['gate'\].*\['terminal'\]"):
        KvLookup(store, "gates", CODE, GATE).lookup(("JFK",))
    store.put_many("other", [Put(b"\x91\xa3JFK", b"\xff")])
    with pytest.raises(DataError, match="write_kv_table"):
        KvLookup(store, "other", CODE, GATE).lookup(("JFK",))


def test_a_closed_store_is_unavailable_and_no_missing_row():
    store = MemoryStore()
    lookup = PartialCachingLookup(
        KvLookup(store, "gates", CODE, GATE), DefaultLookupCache(max_rows=1), retries=no_wait()
    )
    store.close()
    with pytest.raises(UnavailableError, match="closed"):
        lookup.lookup(("JFK",))


def test_rows_written_again_replace_those_of_their_key_only():
    store = MemoryStore()
    write_kv_table(store, "gates", pa.table({"code": ["JFK", "JFK", "LGA", None], "gate": [1, 2, 3, 4]}), ["code"])
    write_kv_table(store, "gates", pa.table({"code": ["JFK"], "gate": [9]}), ["code"])
    assert KvLookup(store, "gates", CODE, GATE).lookup_many([("JFK",), ("LGA",)]) == {
        ("JFK",): [(9,)],
        ("LGA",): [(3,)],
    }


# --- values


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.bool_(), ["true", b"0", False], ["yes", 2]),
        (pa.int32(), ["-7", b"7", 7], ["7.5", 7.5, True]),
        (pa.float64(), ["1e3", 1, 1.5], ["x", True]),
        (pa.decimal128(9, 2), ["1.50", 2, 1.5], ["x", True]),
        (pa.string(), ["x", b"x"], [1, b"\xff"]),
        (pa.binary(), [b"\xff", "x"], [1]),
        (pa.date32(), ["2013-01-02"], ["02/01/2013", 5]),
        (pa.timestamp("us"), ["2013-01-02T03:04:05"], ["2013-01-02T03:04:05Z", 5]),
        (pa.timestamp("us", "UTC"), ["2013-01-02T03:04:05+01:00"], ["2013-01-02T03:04:05"]),
    ],
    ids=str,
)
def test_values_are_read_as_declared_or_refused(kind, good, bad):
    (read,) = readers("gates", pa.schema([("gate", kind)]))
    assert read(None) is None
    assert pa.array([read(value) for value in good], kind).null_count == 0
    for value in bad:
        with pytest.raises(DataError, match="'gate'"):
            read(value)


def test_a_store_that_cannot_be_walked_over_cannot_be_cached_in_full():
    class Plain:
        """A store of somebody else's: what `KVStore` asks for and no more."""

        put_many = get_many = drop = datasets = close = None

    with pytest.raises(OptionError, match=r"'gates'.*Plain cannot be walked over.*PARTIAL"):
        KvLookup(Plain(), "gates", CODE, GATE).scan()
