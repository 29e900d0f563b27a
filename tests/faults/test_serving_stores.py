"""Stores that are slow, hang, or come back under a fetcher and a server, and clocks that disagree."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from benchmarks.redis_servers import redis_server, wait_until
from millpond.errors import UnavailableError
from millpond.features import MINUTE_MS, batch_dataset
from millpond.kv import AsyncRedisStore, Get, LmdbStore, MemoryStore, Put, RedisStore
from millpond.serving import FetchClient, Fetcher, FetchRequest
from tests.faults.slow_proxy import slow_proxy
from tests.serving.world import (
    BATCH_END_MS,
    EWR,
    NOON_MS,
    ROUTE,
    ROUTE_PLAN,
    Stream,
    read_directly,
    upload,
)

CALLERS = 40
EVENTS = [(BATCH_END_MS - 90 * MINUTE_MS * number - 1, (float(number), f"N{number % 3}")) for number in range(30)]


@pytest.fixture
def redis():
    """A server that a test may ruin, and that keeps its rows when it is killed."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


def key(number):
    return b"k%d" % number


def test_threads_that_ask_a_slow_store_are_all_told_so_and_never_get_anothers_answer(redis):
    failures, right = [], []
    with slow_proxy(redis.port) as proxy:
        store = RedisStore(proxy.url, timeout_ms=50, retry_ms=150, pool_size=4)
        store.put_many("d", [Put(key(number), key(number)) for number in range(CALLERS)])
        proxy.delay_s = 0.15

        def ask(number):
            try:
                right.append(store.get_many([Get("d", key(number))])[0][0].value == key(number))
            except UnavailableError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert len(failures) == CALLERS
        assert all("failed for 150 ms" in failure for failure in failures)
        proxy.delay_s = 0.0
        # The late answers to the calls above may still arrive: they are nobody's.
        for number in range(CALLERS):
            wait_until(lambda number=number: ask(number) is None and len(right) > number, "the store answers again")
        assert all(right)
        store.close()


def test_while_a_store_is_known_to_be_slow_one_call_asks_it_and_the_others_fail_at_once(redis):
    async def main(proxy):
        store = AsyncRedisStore(proxy.url, timeout_ms=50, retry_ms=100)
        await store.put_many("d", [Put(b"k", b"v")])
        proxy.delay_s = 0.2
        with pytest.raises(UnavailableError):
            await store.get_many([Get("d", b"k")])
        before = proxy.requests
        told = await asyncio.gather(*(store.get_many([Get("d", b"k")]) for _ in range(100)), return_exceptions=True)
        asked = proxy.requests - before
        proxy.delay_s = 0.0
        again = await store.get_many([Get("d", b"k")])
        await store.close()
        return told, asked, again

    with slow_proxy(redis.port) as proxy:
        told, asked, again = asyncio.run(main(proxy))
    assert all(isinstance(one, UnavailableError) for one in told)
    assert len({id(one) for one in told}) == 100
    assert asked <= 2  # one call: its connection may say hello first
    assert again[0][0].value == b"v"


def test_a_store_that_is_killed_and_comes_back_under_a_fetcher_makes_no_answer_wrong(redis):
    store = RedisStore(redis.url, timeout_ms=200, retry_ms=50)
    info = upload(store, ROUTE_PLAN, {("EWR", "UA"): EVENTS})
    expected = read_directly(store, ROUTE_PLAN, info, ["EWR", "UA"], NOON_MS)
    fetcher = Fetcher(store, [ROUTE], enable_fetcher_caching=False, refresh_ms=50)
    stop, right, refused, wrong = threading.Event(), [], [], []

    def fetch_on():
        while not stop.is_set():
            try:
                answer = fetcher.fetch("route", EWR, NOON_MS)
            except UnavailableError as error:
                refused.append(error)
                continue
            (right if answer.features == expected and not answer.errors else wrong).append(answer)

    threads = [threading.Thread(target=fetch_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        count = len(right)
        wait_until(lambda count=count: wrong or len(right) > count + 20, "fetches are answered")
        redis.stop(signal.SIGKILL)
        count = len(refused)
        wait_until(lambda count=count: wrong or len(refused) > count, "fetches are refused")
        redis.start()
    count = len(right)
    wait_until(lambda: wrong or len(right) > count + 20, "fetches are answered again")
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    store.close()


@pytest.mark.parametrize("writers_ms", [-MINUTE_MS, MINUTE_MS])
@pytest.mark.parametrize("servers_ms", [-MINUTE_MS, MINUTE_MS])
def test_clocks_that_disagree_by_a_minute_make_no_answer_wrong(writers_ms, servers_ms):
    """The stream and the store go by one clock, the server by another; `real_ms` is what both should say."""
    real_ms = NOON_MS
    store = MemoryStore(clock=lambda: real_ms + writers_ms)
    info = upload(store, ROUTE_PLAN, {("EWR", "UA"): EVENTS}, landing_ms=real_ms - writers_ms)
    stream = Stream(store, ROUTE_PLAN)
    store.create(stream.dataset, rows="many", ttl_ms=2 * MINUTE_MS)
    cached = Fetcher(store, [ROUTE], enable_fetcher_caching=True, refresh_ms=0, now=lambda: real_ms + servers_ms)
    for step in range(8):
        real_ms = NOON_MS + step * MINUTE_MS // 2
        # Events of the stream bear its clock's time: they may lie in the server's future, and tiles close early.
        stream.add(("EWR", "UA"), [(real_ms + writers_ms, (float(step), f"N{step}"))])
        stream.close(real_ms + writers_ms)
        answer = cached.fetch("route", EWR)
        assert answer.at == real_ms + servers_ms
        assert answer.features == read_directly(store, ROUTE_PLAN, info, ["EWR", "UA"], answer.at)
        assert answer.errors == {}


def test_a_server_whose_clock_is_a_minute_before_the_batch_end_says_so_until_it_is_there():
    store = MemoryStore()
    upload(store, ROUTE_PLAN, {("EWR", "UA"): EVENTS})
    now_ms = BATCH_END_MS - MINUTE_MS
    fetcher = Fetcher(store, [ROUTE], now=lambda: now_ms)
    early = fetcher.fetch("route", EWR)
    assert set(early.states.values()) == {"unavailable"}
    assert f"is before the batch end {BATCH_END_MS}" in early.errors["route"]
    now_ms = BATCH_END_MS
    assert fetcher.fetch("route", EWR).errors == {}


def test_of_two_uploads_with_clocks_that_disagree_the_one_that_finished_last_is_served():
    store = MemoryStore()
    fetcher = Fetcher(store, [ROUTE], enable_fetcher_caching=True, refresh_ms=0)
    for landing_ms, events in ((9 * MINUTE_MS, EVENTS), (8 * MINUTE_MS, EVENTS[:5])):
        info = upload(store, ROUTE_PLAN, {("EWR", "UA"): events}, landing_ms=landing_ms)
        assert info.batch_dataset == batch_dataset("route", BATCH_END_MS, landing_ms)
        answer = fetcher.fetch("route", EWR, NOON_MS)
        assert answer.features == read_directly(store, ROUTE_PLAN, info, ["EWR", "UA"], NOON_MS)


@pytest.fixture
def definitions(tmp_path):
    """A folder with what `millpond serve` is to serve."""
    (tmp_path / "routes.py").write_text("from tests.serving.world import ROUTE\n")
    return tmp_path


@contextmanager
def served(store_url, folder, *options, port=0):
    """`millpond serve` in a process of its own, and its URL."""
    command = [sys.executable, "-c", "from millpond.cli import main; main()", "serve", str(folder / "routes.py")]
    process = subprocess.Popen(
        [*command, "--store", store_url, "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stdout.readline()
        assert said.startswith("millpond: serving on http"), said + process.stderr.read()
        yield process, said.split()[-1]
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_server_that_is_killed_and_restarted_under_load_gives_no_wrong_answer(definitions):
    store = LmdbStore(definitions / "kv", sync=False)
    info = upload(store, ROUTE_PLAN, {("EWR", "UA"): EVENTS})
    expected = read_directly(store, ROUTE_PLAN, info, ["EWR", "UA"], NOON_MS)
    store.close()
    stop, right, wrong = threading.Event(), [], []

    def fetch_on(url):
        with FetchClient(url, timeout_ms=30_000, retries=1_000) as client:
            while not stop.is_set():
                answer = client.fetch("route", EWR, NOON_MS)
                (right if answer.features == expected and not answer.errors else wrong).append(answer)

    with ExitStack() as running:
        threads, port = [], 0
        for life in range(3):
            process, url = running.enter_context(served(f"lmdb://{definitions}/kv", definitions, port=port))
            port = urlsplit(url).port
            if not threads:
                threads = [threading.Thread(target=fetch_on, args=(url,)) for _ in range(3)]
                for thread in threads:
                    thread.start()
            count = len(right)
            wait_until(lambda count=count: wrong or len(right) > count + 50, "calls are answered")
            if life < 2:
                process.kill()
                process.wait(30)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_store_that_hangs_does_not_hold_up_the_end_of_a_server(redis, definitions):
    patient = f"{redis.url}?timeout_ms=60000&retry_ms=60000"
    store = RedisStore(redis.url)
    upload(store, ROUTE_PLAN, {("EWR", "UA"): EVENTS})
    store.close()
    with served(patient, definitions, "--drain-ms", "300", "--timeout-ms", "60000") as (process, url):
        with FetchClient(url) as client:
            assert client.fetch("route", EWR, NOON_MS).errors == {}
        redis.freeze()
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        body = json.dumps({"requests": [{"keys": EWR, "at": NOON_MS}]})
        connection.request("POST", "/v1/fetch/route", body)
        ready = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        ready.request("GET", "/ready")
        # That metrics are answered shows that the loop has taken the calls above.
        other = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        other.request("GET", "/metrics")
        assert other.getresponse().status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 1
        assert "was not over in time" in process.stderr.read()
        for one in (connection, ready, other):
            one.close()
    redis.thaw()


@pytest.mark.parametrize("face", ["fetch_many", "fetch_many_async"])
def test_a_fetch_of_a_store_that_hangs_fails_within_its_time_out(redis, face):
    store = RedisStore(redis.url, timeout_ms=100, retry_ms=100)
    upload(store, ROUTE_PLAN, {("EWR", "UA"): EVENTS})
    fetcher = Fetcher(store, [ROUTE])
    fetcher.fetch("route", EWR, NOON_MS)
    redis.freeze()
    wanted = [FetchRequest("route", EWR, NOON_MS)]
    with pytest.raises(UnavailableError, match=f"Redis at {redis.address} failed for 100 ms"):
        asyncio.run(fetcher.fetch_many_async(wanted)) if face == "fetch_many_async" else fetcher.fetch_many(wanted)
    redis.thaw()
    assert fetcher.fetch("route", EWR, NOON_MS).errors == {}
    store.close()
