"""A Redis Cluster under a fetcher: a node that stops, a slot that moves, and what is answered meanwhile."""

import asyncio
import signal
import threading

import pytest

from benchmarks.redis_servers import redis_cluster, wait_until
from millpond.features import Aggregation, Field, GroupBy, Join, JoinPart, compile_group_by, serving_info_key
from millpond.kv import RedisStore
from millpond.kv.redis.layout import SLOTS, slot_of, tag_of
from millpond.serving import Fetcher, FetchRequest
from tests.serving.world import BATCH_END_MS, NOON_MS, Clock, upload

NODES = 3
EVENTS = [(BATCH_END_MS - 1 - number, ()) for number in range(5)]


def node_of(key):
    """The number of the primary that has a key."""
    return slot_of(tag_of(key)) * NODES // SLOTS


def group_on(node):
    """A GroupBy whose serving info lies on a node."""
    name = next(f"g{number}" for number in range(100) if node_of(serving_info_key(f"g{number}")) == node)
    return GroupBy(
        name,
        keys=(Field(f"{name}_key", "string"),),
        aggregations=(Aggregation("count", windows=("1d", None)),),
        enable_fetcher_caching=True,
    )


GROUPS = [group_on(node) for node in range(NODES)]
PLANS = [compile_group_by(group) for group in GROUPS]
JOIN = Join("all", parts=tuple(JoinPart(group) for group in GROUPS))
KEYS = [
    [key for number in range(200) if node_of(plan.encode_key([key := f"k{number}"])) == node][:8]
    for node, plan in enumerate(PLANS)
]
"""Of each GroupBy some keys that lie on the node of its serving info."""


def ask(number):
    """Ask the Join for one key on each node."""
    return FetchRequest("all", {f"{GROUPS[node].name}_key": KEYS[node][number] for node in range(NODES)}, NOON_MS)


def load(store, node):
    upload(store, PLANS[node], {(key,): EVENTS for key in KEYS[node]})


@pytest.fixture(scope="module")
def cluster():
    """A cluster that goes on without a node: Redis refuses every slot otherwise."""
    with redis_cluster(options=("--cluster-require-full-coverage", "no")) as running:
        yield running


@pytest.fixture
def store(cluster, request):
    prefix = request.node.name.replace("[", ".").replace("]", "")
    store = RedisStore(cluster.url, prefix=prefix, retry_ms=200, timeout_ms=100)
    for node in range(NODES):
        load(store, node)
    yield store
    store.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["blocking", "async"])
def fetch(request, store, clock):
    """Fetches by one face of a fetcher whose refreshes run in the caller's time."""
    fetcher = Fetcher(store, [JOIN], clock=clock, background=lambda work: work())
    if request.param == "blocking":
        yield lambda *requests: fetcher.fetch_many(requests)
        return
    with asyncio.Runner() as loop:
        yield lambda *requests: loop.run(fetcher.fetch_many_async(requests))
        loop.run(fetcher._answerer._async_store.close())


def is_whole(answers):
    return all(len(answer.features) == 2 * NODES and set(answer.features.values()) == {5} for answer in answers)


def assert_all_but(node, address, answers):
    """Only what lies on a node is missing, and its reason names the node."""
    for answer in answers:
        lost = {name for name, state in answer.states.items() if state == "unavailable"}
        assert {name.partition("_")[0] for name in lost} == {GROUPS[node].name}
        assert len(lost) == 2
        assert len(answer.features) == 2 * (NODES - 1)
        assert set(answer.features.values()) == {5}
        assert [*answer.errors] == [GROUPS[node].name]
        assert f"Redis at {address} failed" in answer.errors[GROUPS[node].name]


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_parts_on_other_nodes_are_answered_while_one_node_is_down_and_all_when_it_is_back(
    cluster, store, fetch, clock, how
):
    assert is_whole(fetch(ask(0)))
    node = cluster.primaries[1]
    node.freeze() if how == "frozen" else node.stop(signal.SIGKILL)
    try:
        assert_all_but(1, node.address, fetch(ask(1), ask(2)))
        # A serving info is believed for 16 s. That of the node cannot be read again, those of the others can.
        clock.now_ms += 20_000
        assert_all_but(1, node.address, fetch(ask(3), ask(4)))
    finally:
        node.thaw() if how == "frozen" else node.start()
    cluster.wait_until_whole()
    if how == "killed":
        load(store, 1)  # it keeps nothing on disk
    clock.now_ms += 20_000
    wait_until(lambda: is_whole(fetch(ask(1), ask(5))), "all parts are answered again")


def test_a_slot_that_moves_under_traffic_leaves_every_answer_whole(cluster, store):
    source, target, _ = cluster.primaries
    slot = slot_of(tag_of(PLANS[0].encode_key([KEYS[0][0]])))
    stop, answers, failures = threading.Event(), [], []

    def fetch_on():
        fetcher = Fetcher(store, [JOIN], enable_fetcher_caching=False)
        try:
            while not stop.is_set():
                found = fetcher.fetch_many([ask(0), ask(1)])
                answers.append(found) if is_whole(found) else failures.append(found)
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            failures.append(error)

    def wait_for_more():
        before = len(answers)
        wait_until(lambda: failures or len(answers) > before + 10, "fetches go on")

    threads = [threading.Thread(target=fetch_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for_more()
    for giver, taker in ((source, target), (target, source)):
        with giver.client() as from_node, taker.client() as to_node:
            giver_id, taker_id = (one.execute_command("CLUSTER", "MYID").decode() for one in (from_node, to_node))
            to_node.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", giver_id)
            from_node.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", taker_id)
            wait_for_more()
            for name in from_node.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1_000):
                from_node.execute_command("MIGRATE", "127.0.0.1", taker.port, name, 0, 5_000)
            wait_for_more()
            for one in (to_node, from_node):
                one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", taker_id)
        cluster.wait_until_whole()
        wait_for_more()
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
