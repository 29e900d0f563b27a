"""What the Redis store owes on a cluster: slots that move, nodes that stop, replicas that take over."""

import signal
import threading

import pytest

from benchmarks.redis_servers import redis_cluster, wait_until
from millpond.errors import UnavailableError
from millpond.kv import AsyncRedisStore, Get, Put, RedisStore
from millpond.kv.redis.layout import slot_of, tag_of
from tests.kv.on_a_loop import OnALoop


@pytest.fixture
def cluster(server):
    """The cluster of the whole run, emptied; tests leave it whole."""
    running = server("cluster")
    for node in running.primaries:
        with node.client() as client:
            client.flushall()
    return running


@pytest.fixture(scope="module")
def replicated():
    """A cluster of which every node has a replica."""
    with redis_cluster(primaries=3, replicas=3) as cluster:
        yield cluster


@pytest.fixture(params=["sync", "async"])
def open_redis(request):
    """Opens a store on a URL, by either face, under a prefix of the test's own."""
    opened = []

    def open_one(url, **options):
        options.setdefault("prefix", request.node.name.replace("[", ".").replace("]", ""))
        store = RedisStore(url, **options) if request.param == "sync" else OnALoop(AsyncRedisStore(url, **options))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


def values(store, *keys):
    return [[row.value for row in rows] for rows in store.get_many([Get("d", key) for key in keys])]


def keys_of_each_node(cluster):
    """A key in the share of each primary."""
    found = {}
    for number in range(1_000):
        key = b"key%d" % number
        found.setdefault(slot_of(tag_of(key)) * 3 // 16_384, key)
    return [found[number] for number in range(3)]


def test_a_read_of_many_keys_asks_each_node_once_and_all_together(cluster, open_redis):
    store = open_redis(cluster.url)
    keys = [b"%d" % number for number in range(300)]
    store.put_many("d", [Put(key, key, 1) for key in keys])
    assert values(store, *keys) == [[key] for key in keys]
    inner = store.store if isinstance(store, OnALoop) else store
    sent = []
    send = inner._connections.send
    inner._connections.send = lambda pipelines: sent.append(pipelines) or send(pipelines)
    assert values(store, *keys) == [[key] for key in keys]
    assert [len(pipelines) for pipelines in sent] == [3]


def test_the_rows_of_a_key_lie_on_one_node_whatever_is_in_the_key(cluster, open_redis):
    store = open_redis(cluster.url)
    keys = [b"", b"{", b"}", b"}{", b"{}", b"a}b", b"%", b"{a}b", b"\r\n", b"\xff"]
    store.create("batch", rows="one")
    store.put_many("batch", [Put(key, b"batch", 1) for key in keys])
    store.put_many("d", [Put(key, key, 1) for key in keys])
    assert values(store, *keys) == [[key] for key in keys]
    assert [len(rows) for rows in store.get_many([Get("batch", key, 1, 2) for key in keys])] == [1] * len(keys)


def test_a_slot_that_moves_is_followed_while_it_moves_and_after(cluster, open_redis):
    store = open_redis(cluster.url)
    key, _, _ = keys_of_each_node(cluster)
    store.put_many("d", [Put(key, b"before")])
    source, target, _ = cluster.primaries
    slot = slot_of(tag_of(key))
    with source.client() as from_node, target.client() as to_node:
        source_id, target_id = (one.execute_command("CLUSTER", "MYID").decode() for one in (from_node, to_node))
        to_node.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        from_node.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        assert values(store, key) == [[b"before"]]
        for name in from_node.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            from_node.execute_command("MIGRATE", "127.0.0.1", target.port, name, 0, 5_000)
        # The rows are at the target, and the slot still belongs to the source: ASK.
        assert values(store, key) == [[b"before"]]
        store.put_many("d", [Put(key, b"between")])
        assert values(store, key) == [[b"between"]]
        for one in (to_node, from_node):
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        # The slot belongs to the target: MOVED.
        assert values(store, key) == [[b"between"]]
        store.put_many("d", [Put(key, b"after")])
        assert values(store, key) == [[b"after"]]
        to_node.flushall()
        cluster.wait_until_whole()
        from_node.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", target_id)
        to_node.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", source_id)
        for one in (from_node, to_node):
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", source_id)
    cluster.wait_until_whole()


def test_a_node_that_stops_is_named_and_used_again_when_it_is_back(cluster, open_redis):
    store = open_redis(cluster.url, retry_ms=200, timeout_ms=100)
    keys = keys_of_each_node(cluster)
    store.put_many("d", [Put(key, key) for key in keys])
    node = cluster.primaries[2]
    node.freeze()
    with pytest.raises(UnavailableError, match=f"Redis at {node.address} failed for 200 ms"):
        values(store, keys[2])
    node.thaw()
    cluster.wait_until_whole()
    assert values(store, *keys) == [[key] for key in keys]


def test_a_cluster_of_which_no_node_answers_is_unavailable(open_redis):
    store = open_redis("redis+cluster://127.0.0.1:1,127.0.0.1:2", retry_ms=50)
    with pytest.raises(UnavailableError, match=r"Redis at 127\.0\.0\.1:[12] failed for 50 ms"):
        values(store, b"k")


def test_a_server_that_is_no_cluster_says_so(server, open_redis):
    url = server("redis").url.replace("redis://", "redis+cluster://").removesuffix("/0")
    with pytest.raises(UnavailableError, match="cluster support disabled"):
        values(open_redis(url), b"k")


def test_replicas_answer_reads(replicated, open_redis):
    store = open_redis(replicated.url, read_from="replicas")
    keys = keys_of_each_node(replicated)
    store.put_many("d", [Put(key, key) for key in keys])
    wait_until(lambda: values(store, *keys) == [[key] for key in keys], "the replicas have the rows")
    inner = store.store if isinstance(store, OnALoop) else store
    asked = []
    send = inner._connections.send
    inner._connections.send = lambda pipelines: asked.extend(pipelines) or send(pipelines)
    assert values(store, *keys) == [[key] for key in keys]
    assert {one.port for one in asked} == {one.port for one in replicated.replicas}


def test_when_a_primary_is_killed_in_the_middle_of_traffic_its_replica_takes_over(replicated):
    store = RedisStore(replicated.url, prefix="failover", retry_ms=30_000, timeout_ms=300)
    keys = keys_of_each_node(replicated)
    answered = dict.fromkeys(keys, -1)
    stop, failures = threading.Event(), []

    def write(key):
        number = 0
        while not stop.is_set():
            try:
                store.put_many("d", [Put(key, b"%d" % number)])
                answered[key] = number
                ((row,),) = store.get_many([Get("d", key)])
                if row.value != b"%d" % number:
                    failures.append((key, number, row))
            except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
                failures.append(error)
                return
            number += 1

    threads = [threading.Thread(target=write, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()

    def wait_for(more):
        before = dict(answered)
        wait_until(lambda: failures or all(answered[key] >= before[key] + more for key in keys), "writes go on")

    wait_for(20)
    replicated.primaries[1].stop(signal.SIGKILL)
    wait_for(20)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    store.close()
