"""Redis servers that fail in every way, replicas, users and TLS."""

import asyncio
import signal
import ssl
import subprocess
import threading
from contextlib import suppress

import pytest

from millpond.errors import OptionError, UnavailableError
from millpond.kv import AsyncRedisStore, Get, Put, RedisStore
from millpond.kv.redis import connections as redis_connections
from millpond.kv.redis import operations as redis_operations
from millpond.kv.redis.connections import Connections
from millpond.kv.redis.dispatch import Pipeline
from millpond.kv.redis.layout import encode_row
from millpond.kv.redis.options import redis_options
from tests.kv.tls_proxy import tls_proxy

HOUR_MS = 3_600_000


def values(store, dataset="d", key=b"k"):
    return [row.value for row in store.get_many([Get(dataset, key)])[0]]


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


def test_a_call_that_is_cancelled_while_it_tries_a_server_that_is_down_leaves_that_to_the_next(own_server):
    process = own_server._process

    async def cancel_one():
        async with AsyncRedisStore(own_server.url, retry_ms=1, timeout_ms=300) as store:
            await store.put_many("d", [Put(b"k", b"v")])
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(UnavailableError):
                await store.get_many([Get("d", b"k")])
            call = asyncio.create_task(store.get_many([Get("d", b"k")]))
            await asyncio.sleep(0)
            call.cancel()
            # Whoever keeps the error, as a report of errors does, keeps the frames of the call.
            kept = await asyncio.gather(call, return_exceptions=True)
            process.send_signal(signal.SIGCONT)
            return kept, await store.get_many([Get("d", b"k")])

    _, (rows,) = asyncio.run(cancel_one())
    assert [row.value for row in rows] == [b"v"]


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


def test_threads_that_ask_several_servers_do_not_wait_for_each_others_connections(monkeypatch):
    options = redis_options("redis+cluster://one:1,two:2", {"pool_size": 1, "timeout_ms": 2_000})
    one, two = options.nodes
    both_began = threading.Barrier(2)

    class Connection:
        """The first connection of each thread is kept until the other thread has one too, or waits for this one."""

        def send_packed_command(self, *_, **__):
            with suppress(threading.BrokenBarrierError):
                both_began.wait(0.2)

        def read_response(self):
            return b"v"

    monkeypatch.setattr(redis_connections, "new_connection", lambda *_: Connection())
    connections, found = Connections(options), []
    threads = [
        threading.Thread(target=lambda of=of: found.append(connections.send(dict.fromkeys(of, Pipeline(b"", 1)))))
        for of in ((one, two), (two, one))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [{one: [b"v"], two: [b"v"]}] * 2


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
