"""What only the Redis store owes: its layout, its options, forks, and servers that fail in every way."""

import asyncio
import multiprocessing
import pickle
import signal
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.redis_servers import redis_server
from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError
from millpond.kv import AsyncRedisStore, Get, Put, RedisStore, redis_operations
from millpond.kv.expiry import wall_ms
from millpond.kv.redis_connections import Connections
from millpond.kv.redis_layout import encode_expiring_row, encode_row
from tests.kv.on_a_loop import OnALoop
from tests.kv.tls_proxy import tls_proxy

GOLDEN = Path(__file__).parent / "golden"
HOUR_MS = 3_600_000


@pytest.fixture
def redis(server):
    """The server of the whole run, emptied."""
    running = server("redis")
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture
def client(redis):
    with redis.client() as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def open_redis(request):
    """Opens a store on a URL, by either face."""
    opened = []

    def open_one(url, **options):
        store = RedisStore(url, **options) if request.param == "sync" else OnALoop(AsyncRedisStore(url, **options))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(redis, open_redis):
    return open_redis(redis.url)


@pytest.fixture
def own_server():
    """A server that a test may ruin."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


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
    send = Connections.send
    monkeypatch.setattr(Connections, "send", lambda self, sent: pipelines.append(sent) or send(self, sent))
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


# Servers that fail


def test_a_server_that_is_down_is_named_after_the_time_for_retries(open_redis):
    store = open_redis("redis://127.0.0.1:1", retry_ms=50)
    for act in (lambda: values(store), lambda: store.put_many("d", [Put(b"k", b"v")])):
        with pytest.raises(
            UnavailableError, match=r"Redis at 127\.0\.0\.1:1 failed for 50 ms.*(refused|Connect call failed)"
        ):
            act()


def test_a_server_that_is_killed_and_comes_back_in_the_middle_of_traffic_loses_no_answered_write(own_server):
    store = RedisStore(own_server.url, retry_ms=20_000, timeout_ms=500)
    impatient = RedisStore(own_server.url, retry_ms=20, timeout_ms=500)
    stop, failures, refusals = threading.Event(), [], []
    answered = [-1]

    def write():
        number = 0
        while not stop.is_set():
            value = b"%d" % number
            store.put_many("d", [Put(b"k", value, 0), Put(b"k", value, 1)])
            answered[0] = number
            number += 1

    def read(reader):
        last = -1
        while not stop.is_set():
            least = max(answered[0], last)
            try:
                found = values(reader)
            except UnavailableError as error:
                refusals.append(str(error))
                continue
            if len(set(found)) > 1 or (found and int(found[0]) < least) or (not found and least >= 0):
                failures.append((least, found))
            last = int(found[0]) if found else last

    threads = [
        threading.Thread(target=write),
        *(threading.Thread(target=read, args=(one,)) for one in (store, impatient)),
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        before = answered[0]
        while answered[0] < before + 50:
            assert threads[0].is_alive()
        own_server.stop(signal.SIGKILL)
        seen = len(refusals)
        while len(refusals) == seen:
            assert threads[2].is_alive()
        own_server.start()
    before = answered[0]
    while answered[0] < before + 50:
        assert threads[0].is_alive()
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert all(own_server.address in refusal for refusal in refusals)
    store.close()
    impatient.close()


def test_a_server_that_answers_nothing_is_given_up_and_used_again_when_it_does(own_server, open_redis):
    store = open_redis(own_server.url, timeout_ms=50, retry_ms=100)
    store.put_many("d", [Put(b"k", b"v")])
    own_server.freeze()
    with pytest.raises(UnavailableError, match=f"Redis at {own_server.address} failed for 100 ms.*[Tt]ime"):
        values(store)
    own_server.thaw()
    assert values(store) == [b"v"]


def test_threads_without_a_free_connection_say_so(own_server):
    store = RedisStore(own_server.url, timeout_ms=100, retry_ms=100, pool_size=1)
    patient = RedisStore(own_server.url, timeout_ms=20_000, pool_size=1)
    store.put_many("d", [Put(b"k", b"v")])
    own_server.freeze()
    store._connections = patient._connect()
    store._connections._options = store.options
    held = store._connections._take(store.options.nodes[0])
    with pytest.raises(UnavailableError, match="all 1 connections are in use by other threads; raise pool_size"):
        values(store)
    own_server.thaw()
    store._connections._give_back(store.options.nodes[0], held, sound=False)
    assert values(store) == [b"v"]
    store.close()


def test_a_full_server_fails_the_write_at_once_and_keeps_what_was_there(own_server, open_redis):
    store = open_redis(own_server.url, retry_ms=60_000)
    store.create("batch", rows="one")
    store.put_many("d", [Put(b"k", b"old", 1)])
    with own_server.client() as client:
        client.config_set("maxmemory", 1)
        for act in (
            lambda: store.put_many("d", [Put(b"k", b"new", 1), Put(b"k", b"new", 2)]),
            lambda: store.bulk_put("batch", [Put(b"%d" % number, b"x" * 1_000) for number in range(10_000)]),
        ):
            with pytest.raises(UnavailableError, match=f"Redis at {own_server.address} is full"):
                act()
        assert values(store) == [b"old"]
        # The script itself changes nothing.
        row = encode_row(1, b"new")
        with pytest.raises(Exception, match="maxmemory"):
            client.eval(redis_operations.WRITE_ROWS, 1, "millpond:{k}:d", 0, 0, 0, 1, row)
        assert values(store) == [b"old"]
        client.config_set("maxmemory", 0)
    store.put_many("d", [Put(b"k", b"new", 1)])
    assert values(store) == [b"new"]


def test_a_read_only_replica_answers_reads_and_says_what_it_is_to_writes(own_server, redis, open_redis):
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", redis.port)
        store = open_redis(own_server.url, retry_ms=50)
        with pytest.raises(UnavailableError, match="It is a read-only replica: give the address of the primary"):
            store.put_many("d", [Put(b"k", b"v")])
        assert values(store) == []
        client.execute_command("REPLICAOF", "NO", "ONE")
    store.put_many("d", [Put(b"k", b"v")])
    assert values(store) == [b"v"]


def test_reads_go_to_replicas_and_to_the_primary_when_these_are_down(own_server, redis, open_redis):
    store = open_redis(redis.url, read_from="replicas", replicas=own_server.address)
    store.put_many("d", [Put(b"k", b"primary")])
    on_the_replica = open_redis(own_server.url)
    on_the_replica.put_many("d", [Put(b"k", b"replica")])
    assert values(store) == [b"replica"]
    own_server.stop(signal.SIGKILL)
    assert values(store) == [b"primary"]


# Who may


def test_a_password_is_needed_and_never_told(own_server, open_redis):
    with own_server.client() as client:
        client.config_set("requirepass", "right")
    store = open_redis(f"redis://:right@{own_server.address}")
    store.put_many("d", [Put(b"k", b"v")])
    for user in ("", ":wrong-one@"):
        other = open_redis(f"redis://{user}{own_server.address}", retry_ms=60_000)
        with pytest.raises(OptionError, match=f"Redis at {own_server.address} let this user not in") as refused:
            values(other)
        assert "wrong-one" not in str(refused.value)


def test_a_user_needs_the_keys_of_the_prefix_and_no_others(own_server, open_redis):
    with own_server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "ada", "on", ">pa%ss", "~shop:*", "+@read", "+@write", "+@scripting", "+@connection"
        )
    store = open_redis(f"redis://ada:pa%25ss@{own_server.address}", prefix="shop")
    store.create("batch", rows="one", ttl_ms=HOUR_MS)
    for dataset in ("batch", "tiles"):
        store.put_many(dataset, [Put(b"k", b"v")])
        assert values(store, dataset) == [b"v"]
        store.delete_keys(dataset, [b"k"])
        store.drop(dataset)
    foreign = open_redis(f"redis://ada:pa%25ss@{own_server.address}", retry_ms=60_000)
    with pytest.raises(OptionError, match=r"the user may use the keys millpond:\*"):
        values(foreign)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_over_tls_the_certificate_is_checked(redis, certificate, open_redis):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with tls_proxy(redis.port, context) as port:
        store = open_redis(f"rediss://127.0.0.1:{port}?tls_ca_file={certificate / 'cert.pem'}")
        store.put_many("d", [Put(b"k", b"v")])
        assert values(store) == [b"v"]
        with pytest.raises(UnavailableError, match=r"(?i)certificate.verify.failed"):
            values(open_redis(f"rediss://127.0.0.1:{port}", retry_ms=50))


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
