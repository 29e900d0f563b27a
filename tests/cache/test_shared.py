"""Several threads, one cache: one load per key, nothing torn, no deadlock."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.cache import MISSING, new_cache
from millpond.errors import OptionError

PATIENCE_S = 20


def test_many_callers_of_one_missing_key_make_one_load():
    cache = new_cache("c", max_entries=4, shared=True)
    entered, leave = threading.Event(), threading.Event()
    calls = []

    def slow(key):
        calls.append(key)
        entered.set()
        assert leave.wait(PATIENCE_S)
        return object()

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get_or_load, "k", slow)
        assert entered.wait(PATIENCE_S)
        others = [pool.submit(cache.get_or_load, "k", slow) for _ in range(7)]
        while cache.stats().hits < 7:
            threading.Event().wait(0.001)
        leave.set()
        results = {id(future.result(PATIENCE_S)) for future in [first, *others]}
    assert len(results) == 1
    assert calls == ["k"]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.loads) == (7, 1, 1)


def test_a_failed_load_reaches_every_waiter_and_the_next_caller_loads_again():
    cache = new_cache("c", max_entries=4, shared=True)
    entered, leave = threading.Event(), threading.Event()

    def fail(key):
        entered.set()
        assert leave.wait(PATIENCE_S)
        raise ConnectionError("no answer")

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(cache.get_or_load, "k", fail)]
        assert entered.wait(PATIENCE_S)
        futures += [pool.submit(cache.get_or_load, "k", fail) for _ in range(3)]
        while cache.stats().hits < 3:
            threading.Event().wait(0.001)
        leave.set()
        for future in futures:
            with pytest.raises(ConnectionError, match="no answer"):
                future.result(PATIENCE_S)
    assert cache.get_or_load("k", lambda _: 1) == 1
    assert cache.stats().load_failures == 1


@pytest.mark.parametrize("change", ["put", "invalidate", "clear"])
def test_a_load_that_a_change_overtook_is_returned_but_not_cached(change):
    cache = new_cache("c", max_entries=4, shared=True)

    def overtaken(key):
        {"put": lambda: cache.put("k", "newer"), "invalidate": lambda: cache.invalidate("k"), "clear": cache.clear}[
            change
        ]()
        return "older"

    assert cache.get_or_load("k", overtaken) == "older"
    assert cache.peek("k", MISSING) == ("newer" if change == "put" else MISSING)


def test_two_loaders_that_wait_for_each_other_are_found_before_they_wait():
    cache = new_cache("c", max_entries=4, shared=True)
    both_loading = threading.Barrier(2)

    def load_a(_):
        both_loading.wait(PATIENCE_S)
        return cache.get_or_load("b", lambda _: "b")

    def load_b(_):
        both_loading.wait(PATIENCE_S)
        return cache.get_or_load("a", lambda _: "a")

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(cache.get_or_load, "a", load_a), pool.submit(cache.get_or_load, "b", load_b)]
        for future in futures:
            with pytest.raises(OptionError, match="for ever"):
                future.result(PATIENCE_S)
    assert cache.get_or_load("a", lambda _: 1) == 1


@pytest.mark.parametrize("policy", ["lru", "w-tinylfu"])
def test_threads_never_see_a_torn_cache(policy):
    gone = []
    cache = new_cache("c", max_entries=20, policy=policy, shared=True, on_evict=lambda *entry: gone.append(entry))

    def work(seed):
        for step in range(3_000):
            key = (seed * 7919 + step * step) % 60
            if step % 11 == 0:
                cache.invalidate(key)
            elif step % 3 == 0:
                cache.put(key, key)
            else:
                assert cache.get_or_load(key, lambda wanted: wanted) == key
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    stats = cache.stats()
    assert stats.entries == len(dict(cache.items())) <= 20
    assert all(key == value for key, value in cache.items())
    assert stats.evictions == len(gone)
