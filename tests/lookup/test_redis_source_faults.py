"""What Redis sources do when something is wrong: a typed error that says what, and never a missing row."""

import socket
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from benchmarks import database_servers
from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import (
    DefaultLookupCache,
    HttpLookup,
    PartialCachingLookup,
    RedisLookup,
    Retries,
)

CODE = pa.schema([("code", pa.string())])
GATE = pa.schema([("gate", pa.int64())])


@pytest.fixture
def redis_client(redis_url):
    import redis

    client = redis.Redis.from_url(redis_url)
    client.flushall()
    yield client
    client.close()


def no_wait(max_retries=2):
    return Retries(max_retries, sleep=lambda _: None)


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


@pytest.mark.parametrize("value", ["hash", "json"])
def test_a_key_of_bytes_is_in_the_name_as_it_is(redis_client, redis_url, value):
    for code, gate in ((b"JFK", 7), (b"\xff{}", 8)):
        if value == "hash":
            redis_client.hset(b"gate:" + code, mapping={"gate": gate})
        else:
            redis_client.set(b"gate:" + code, f'{{"gate": {gate}}}')
    with RedisLookup(redis_url, "gate:{code}", pa.schema([("code", pa.binary())]), GATE, value=value) as gates:
        found = gates.lookup_many([(b"JFK",), (b"\xff{}",), (b"EWR",)])
    assert found == {(b"JFK",): [(7,)], (b"\xff{}",): [(8,)], (b"EWR",): []}


def test_equal_keys_have_one_name(redis_client, redis_url):
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    elsewhere = noon.astimezone(timezone(timedelta(hours=-4)))
    redis_client.hset(f"gate:{noon}:0.00", mapping={"gate": 7})
    keys = pa.schema([("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2))])
    with RedisLookup(redis_url, "gate:{at}:{price}", keys, GATE) as gates:
        for at in (noon, elsewhere):
            for price in (0, Decimal("-0"), Decimal("0.000")):
                assert gates.lookup((at, price)) == [(7,)]


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
