"""What only the Redis store owes: its layout, its options, forks and loops."""

import asyncio
import multiprocessing
import pickle
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.errors import CorruptionError, MissingDependencyError, UnavailableError
from millpond.kv import AsyncRedisStore, Get, Put, RedisStore
from millpond.kv.expiry import wall_ms
from millpond.kv.redis import async_store as redis_async
from millpond.kv.redis import connections as redis_connections
from millpond.kv.redis import operations as redis_operations
from millpond.kv.redis.connections import Connections
from millpond.kv.redis.layout import encode_expiring_row, encode_row

GOLDEN = Path(__file__).parent / "golden"
HOUR_MS = 3_600_000


@pytest.fixture
def client(redis):
    with redis.client() as client:
        yield client


@pytest.fixture
def store(redis, open_redis):
    return open_redis(redis.url)


def values(store, dataset="d", key=b"k"):
    return [row.value for row in store.get_many([Get(dataset, key)])[0]]


# The layout


def test_names_and_rows_are_those_that_the_layout_promises(store, client):
    store.create("batch", rows="one")
    store.put_many("batch", [Put(b"EWR", b"batch row", 5)])
    store.put_many("tiles", [Put(b"{}%", b"tile", -5), Put(b"{}%", b"tile", 7)])
    assert sorted(client.keys()) == [
        b"millpond:datasets",
        b"millpond:keys:{095}:tiles",
        b"millpond:keys:{114}:batch",
        b"millpond:{EWR}:batch",
        b"millpond:{{%7D%25}:tiles",
    ]
    assert client.get("millpond:{EWR}:batch") == encode_row(5, b"batch row")
    assert client.zrange("millpond:{{%7D%25}:tiles", 0, -1, withscores=True) == [
        (encode_row(-5, b"tile"), -5),
        (encode_row(7, b"tile"), 7),
    ]
    assert client.zrange("millpond:keys:{095}:tiles", 0, -1, withscores=True) == [(b"{}%", float("inf"))]
    assert client.hgetall("millpond:datasets") == {
        b"batch": b'{"format":1,"rows":"one"}',
        b"tiles": b'{"format":1,"rows":"many"}',
    }


@pytest.mark.parametrize(
    ("version", "row"), [(1, encode_row(-7, b"value")), (2, encode_expiring_row(1 << 50, b"value", 1_700_000_000_000))]
)
def test_a_row_is_what_it_always_was(version, row):
    assert row == (GOLDEN / f"redis_row_v{version}.bin").read_bytes()


def test_a_drop_leaves_no_key_on_the_server(store, client):
    store.create("one", rows="one", ttl_ms=HOUR_MS)
    for dataset in ("one", "many"):
        store.put_many(dataset, [Put(b"%d" % number, b"v") for number in range(15_000)])
        store.drop(dataset)
    assert client.dbsize() == 0


def test_what_expires_has_its_time_on_the_server(store, client):
    store.create("one", rows="one", ttl_ms=HOUR_MS)
    store.create("many", rows="many", ttl_ms=HOUR_MS)
    for dataset in ("one", "many"):
        store.put_many(dataset, [Put(b"k", b"v")])
        assert HOUR_MS - 60_000 < client.pttl(f"millpond:{{k}}:{dataset}") <= HOUR_MS
    store.create("many", rows="many", ttl_ms=1_000)
    store.put_many("many", [Put(b"k", b"v", 1)])
    assert client.pttl("millpond:{k}:many") > HOUR_MS - 60_000


def test_what_names_its_own_time_has_that_on_the_server(store, client):
    until_ms = wall_ms() + 5 * HOUR_MS
    for dataset in ("one", "many"):
        store.create(dataset, rows=dataset, ttl_ms=HOUR_MS)
        store.put_many(dataset, [Put(b"k", b"early", 0, until_ms - HOUR_MS), Put(b"k", b"late", 1, until_ms)])
        assert 5 * HOUR_MS - 60_000 < client.pttl(f"millpond:{{k}}:{dataset}") <= 5 * HOUR_MS
    registered = [client.zrange(f"millpond:keys:{{{n:03}}}:many", 0, -1, withscores=True) for n in range(128)]
    assert [score for found in registered for _, score in found] >= [until_ms]


def test_keys_that_have_expired_leave_their_register(redis, client):
    now_ms = [1_700_000_000_000]
    store = RedisStore(redis.url, clock=lambda: now_ms[0])
    store.create("d", rows="one", ttl_ms=1_000)
    same_register = [b"%d" % number for number in range(20_000) if redis_operations.register_of(b"%d" % number) == 5]
    for key in same_register[:100]:
        store.put_many("d", [Put(key, b"v")])
        now_ms[0] += HOUR_MS
    assert client.zcard("millpond:keys:{005}:d") <= 3
    store.close()


def test_a_server_that_forgot_the_script_is_given_it_again(store, client):
    store.put_many("d", [Put(b"k", b"1", 1)])
    client.script_flush()
    store.put_many("d", [Put(b"k", b"2", 2), Put(b"other", b"3", 3)])
    assert values(store) == [b"1", b"2"]


def test_a_read_of_many_datasets_is_one_pipeline(redis, monkeypatch):
    store = RedisStore(redis.url)
    store.create("batch", rows="one")
    store.put_many("batch", [Put(b"k", b"v", 5)])
    store.put_many("tiles", [Put(b"k", b"v", 5)])
    gets = [Get("batch", b"k", 5, 6), Get("tiles", b"k", 0, 10), Get("tiles", b"k", 10), Get("unknown", b"k")]
    pipelines = []
    for way in ("send", "ask"):
        send = getattr(Connections, way)
        monkeypatch.setattr(
            Connections, way, lambda self, *sent, send=send: pipelines.append(sent) or send(self, *sent)
        )
    assert [len(rows) for rows in store.get_many(gets)] == [1, 1, 0, 0]
    assert len(pipelines) == 1
    store.close()


def test_a_dataset_that_became_another_kind_is_read_as_what_it_is(redis, open_redis):
    writer, reader = open_redis(redis.url), open_redis(redis.url)
    for kind in ("one", "many", "one"):
        writer.create("d", rows=kind)
        writer.put_many("d", [Put(b"k", kind.encode(), 1)])
        assert values(reader) == [kind.encode()]
        writer.drop("d")
        assert values(reader) == []


def test_two_prefixes_do_not_see_each_other(redis, open_redis):
    one, other = open_redis(redis.url, prefix="one"), open_redis(redis.url, prefix="other")
    one.put_many("d", [Put(b"k", b"v")])
    assert values(other) == []
    assert other.datasets() == []
    other.drop("d")
    assert values(one) == [b"v"]


@pytest.mark.parametrize("finisher", ["drop", "put"])
def test_a_drop_that_died_is_finished_by_the_next_drop_or_put(redis, client, finisher, monkeypatch):
    store = RedisStore(redis.url)
    store.put_many("d", [Put(b"%d" % number, b"old") for number in range(20_000)])
    with monkeypatch.context() as broken:
        broken.setattr(redis_operations.RedisOperations, "_unregister", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.drop("d")
    assert store.datasets() == []
    assert 0 < client.dbsize() < 20_000
    if finisher == "drop":
        store.drop("something else")
        assert client.dbsize() == 0
    else:
        store.put_many("d", [Put(b"k", b"new")])
        assert store.datasets() == ["d"]
        assert client.dbsize() == 3
        assert values(store) == [b"new"]
    store.close()


def test_a_put_into_a_dataset_that_another_process_dropped_makes_it_again(redis, client):
    writer, other = RedisStore(redis.url), RedisStore(redis.url)
    writer.put_many("d", [Put(b"k", b"v", 1)])
    other.drop("d")
    other.create("d", rows="one")
    writer.put_many("d", [Put(b"k", b"v", 2)])
    assert client.type("millpond:{k}:d") == b"string"
    assert values(other) == [b"v"]
    assert [key for key, _ in other.next_keys("d", None, 10)] == [b"k"]
    writer.close()
    other.close()


# What something else wrote


@pytest.mark.parametrize(
    "row", [b"", b"\x01", b"\x01\x00\x00\x00", b"\x07" + b"\x00" * 20, encode_expiring_row(1, b"", 1)[:-1]]
)
def test_a_row_that_is_none_is_named_and_refused(store, client, row):
    store.create("one", rows="one")
    client.set("millpond:{k}:one", row)
    client.zadd("millpond:{k}:many", {row: 1})
    for dataset in ("one", "many"):
        with pytest.raises(CorruptionError, match=f"dataset '{dataset}', key b'k': Redis holds .* no row of version"):
            values(store, dataset)


def test_a_row_at_another_time_than_its_own_is_refused(store, client):
    client.zadd("millpond:{k}:d", {encode_row(100, b"v"): 5})
    with pytest.raises(CorruptionError, match="a row of time_ms 100 for the range 0 to 10"):
        store.get_many([Get("d", b"k", 0, 10)])
    client.zadd("millpond:{k}:d", {encode_row(100, b"w"): 6})
    with pytest.raises(CorruptionError, match="key b'k': Redis answered a row of time_ms 100"):
        store.get_many([Get("d", b"k")])


def test_a_value_of_another_type_is_named_and_refused(store, client):
    client.hset("millpond:{k}:d", "a", "b")
    for _ in range(2):
        with pytest.raises(CorruptionError, match="dataset 'd', key b'k': what Redis holds is neither"):
            values(store)
    with pytest.raises(CorruptionError, match="holds something else under a name of this store"):
        store.put_many("d", [Put(b"k", b"v")])


@pytest.mark.parametrize("entry", [b"", b"{}", b'{"format":2,"rows":"many"}', b'{"format":1,"rows":"two"}'])
def test_a_catalogue_entry_that_is_none_is_named_and_refused(store, client, entry):
    client.hset("millpond:datasets", "d", entry)
    for act in (store.datasets, lambda: store.put_many("d", [])):
        with pytest.raises(CorruptionError, match="dataset 'd': the catalogue in Redis has"):
            act()


# Processes


def test_a_pickled_store_has_its_options_and_hides_its_password(redis):
    store = RedisStore(redis.url, prefix="shop", timeout_ms=700)
    store.put_many("d", [Put(b"k", b"v")])
    twin = pickle.loads(pickle.dumps(store))
    assert values(twin) == [b"v"]
    assert (twin.options.prefix, twin.options.timeout_ms) == ("shop", 700)
    secret = RedisStore("redis://ada:secret@nowhere:1")
    assert "secret" not in repr(secret) + repr(secret.options)
    twin.close()
    store.close()


def test_a_connection_that_is_in_use_during_a_close_is_closed_too(redis, client, monkeypatch):
    exchanged = Connections._exchanged
    store = RedisStore(redis.url)
    store.put_many("d", [Put(b"k", b"1")])

    def closed_meanwhile(connections, *asked):
        replies = exchanged(connections, *asked)
        store.close()
        return replies

    monkeypatch.setattr(Connections, "_exchanged", closed_meanwhile)
    assert values(store) == [b"1"]
    assert store._connections._idle == {}


def test_a_connection_of_a_loop_that_is_in_use_during_a_close_is_closed_too(redis, client, monkeypatch):
    exchanged = redis_async._LoopConnections._exchanged

    async def read_and_close():
        store = AsyncRedisStore(redis.url)

        async def closed_meanwhile(connections, *asked):
            replies = await exchanged(connections, *asked)
            await store.close()
            return replies

        await store.put_many("d", [Put(b"k", b"1")])
        monkeypatch.setattr(redis_async._LoopConnections, "_exchanged", closed_meanwhile)
        (rows,) = await store.get_many([Get("d", b"k")])
        assert [row.value for row in rows] == [b"1"]
        assert store._connections._idle == {}

    asyncio.run(read_and_close())


def test_a_forked_child_and_its_parent_do_not_share_connections(redis):
    store = RedisStore(redis.url)
    store.put_many("d", [Put(b"k", b"parent")])
    context = multiprocessing.get_context("fork")
    seen = context.Queue()

    def use():
        for number in range(50):
            store.put_many("d", [Put(b"child", b"%d" % number)])
        seen.put(values(store))
        store.close()

    children = [context.Process(target=use) for _ in range(2)]
    for child in children:
        child.start()
    for _ in range(50):
        assert values(store) == [b"parent"]
    for child in children:
        child.join(30)
        assert child.exitcode == 0
        assert seen.get(timeout=30) == [b"parent"]
    assert values(store, key=b"child") == [b"49"]
    store.close()


def test_an_async_store_is_used_on_one_loop_after_another(redis):
    store = AsyncRedisStore(redis.url)

    async def write(number):
        await store.put_many("d", [Put(b"k", b"%d" % number)])
        (found,) = await store.get_many([Get("d", b"k")])
        return found[0].value

    assert [asyncio.run(write(number)) for number in range(3)] == [b"0", b"1", b"2"]


def test_an_async_store_is_closed_on_another_loop_than_it_was_used_on(redis):
    store = AsyncRedisStore(redis.url)
    asyncio.run(store.put_many("d", [Put(b"k", b"v")]))
    asyncio.run(store.close())
    with pytest.raises(UnavailableError, match="is closed"):
        asyncio.run(store.get_many([Get("d", b"k")]))


def test_a_cancelled_call_leaves_no_answer_behind_for_the_next(redis):
    async def cancel_some():
        store = AsyncRedisStore(redis.url, pool_size=2)
        await store.put_many("d", [Put(b"%d" % number, b"%d" % number) for number in range(10)])
        for number in range(50):
            call = asyncio.create_task(store.get_many([Get("d", b"1")]))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            call.cancel()
            (found,) = await store.get_many([Get("d", b"2")])
            assert [row.value for row in found] == [b"2"]
        await store.close()

    asyncio.run(cancel_some())


# Versions of redis-py


class Hidden:
    """A connection of a redis-py that keeps its socket and streams elsewhere."""

    def __init__(self, connection):
        self.connection = connection

    def __getattr__(self, name):
        if name in ("_sock", "_reader", "_writer"):
            raise AttributeError(name)
        return getattr(self.connection, name)


@pytest.mark.parametrize("module", [redis_connections, redis_async])
def test_a_connection_that_hides_its_socket_is_read_reply_by_reply(redis, module, monkeypatch):
    made = []
    new = module.new_connection
    monkeypatch.setattr(
        module, "new_connection", lambda *given, **options: made.append(Hidden(new(*given, **options))) or made[-1]
    )
    store = RedisStore(redis.url)
    store.put_many("d", [Put(b"k", b"v")])
    if module is redis_connections:
        assert [values(store) for _ in range(3)] == [[b"v"]] * 3
    else:

        async def read():
            twin = store.async_twin()
            found = [await twin.get_many([Get("d", b"k")]) for _ in range(3)]
            await twin.close()
            return [[row.value for row in rows] for (rows,) in found]

        assert asyncio.run(read()) == [[b"v"]] * 3
    assert len(made) == 1
    store.close()


# Without the packages


@contextmanager
def without(monkeypatch, name):
    with monkeypatch.context() as context:
        for module in [one for one in sys.modules if one.partition(".")[0] == name]:
            context.delitem(sys.modules, module)
        context.setitem(sys.modules, name, None)
        yield


@pytest.mark.parametrize("name", ["redis", "hiredis"])
def test_without_the_packages_the_error_has_the_install_line(open_redis, monkeypatch, name):
    store = open_redis("redis://localhost")
    with (
        without(monkeypatch, name),
        pytest.raises(MissingDependencyError, match=r"pip install 'millpond\[redis\]'"),
    ):
        store.datasets()
