"""Threads that want the same keys share requests, whatever the source does, and never wait for ever."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.errors import OptionError, UnavailableError
from millpond.lookup import (
    DefaultLookupCache,
    LookupFunction,
    PythonLookup,
)
from millpond.metrics import NullRecorder

from .in_columns import EVERY_FORM
from .partial_source import KEYS, PATIENCE_S, ROWS, Source

pytestmark = pytest.mark.parametrize("open_lookup", EVERY_FORM.values(), ids=EVERY_FORM)


def test_threads_that_miss_one_key_make_one_request_and_all_see_its_failure(open_lookup):
    entered, leave = threading.Event(), threading.Event()
    calls = []

    def slow(n):
        calls.append(n)
        entered.set()
        assert leave.wait(PATIENCE_S)
        raise ValueError("broken")

    lookup = open_lookup(PythonLookup(slow, KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(lookup.lookup, (1,))]
        assert entered.wait(PATIENCE_S)
        futures += [pool.submit(lookup.lookup, (1,)) for _ in range(3)]
        while lookup.stats().hit_count < 3:
            threading.Event().wait(0.001)
        leave.set()
        for future in futures:
            with pytest.raises(ValueError, match="broken"):
                future.result(PATIENCE_S)
    assert calls == [1]


def test_threads_with_crossing_batches_all_get_their_answers(open_lookup):
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=5))

    def work(seed):
        for step in range(300):
            keys = [((seed * 7 + step * part) % 24,) for part in range(1, 9)]
            assert lookup.lookup_many(keys) == {key: source.lookup(key) for key in keys}
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    stats = lookup.stats()
    assert stats.load_count == stats.miss_count


def test_a_function_that_needs_its_own_key_is_refused_instead_of_waiting_for_ever(open_lookup):
    lookup = None
    function = PythonLookup(lambda n: lookup.lookup((n,)), KEYS, ROWS)
    lookup = open_lookup(function, DefaultLookupCache(max_rows=9))
    with pytest.raises(OptionError, match="wait for itself"):
        lookup.lookup((1,))
    other = PythonLookup(lambda n: nested.lookup((n - 1,)) if n else [("0",)], KEYS, ROWS)
    nested = open_lookup(other, DefaultLookupCache(max_rows=9))
    assert nested.lookup((3,)) == [("0",)]


def test_two_threads_whose_functions_need_each_others_keys_do_not_wait_for_ever(open_lookup):
    both = threading.Barrier(2, timeout=PATIENCE_S)
    lookup = None

    def crossing(n):
        both.wait()
        return lookup.lookup((3 - n,))

    lookup = open_lookup(PythonLookup(crossing, KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(lookup.lookup, (n,)) for n in (1, 2)]
        errors = [future.exception(PATIENCE_S) for future in futures]
    assert all(isinstance(error, OptionError) for error in errors)


def test_rows_that_were_loaded_before_an_invalidation_are_given_but_not_cached(open_lookup):
    entered, leave = threading.Event(), threading.Event()
    versions = ["old", "new"]

    def slow(n):
        version = versions.pop(0)
        if version == "old":
            entered.set()
            assert leave.wait(PATIENCE_S)
        return [(version,)]

    lookup = open_lookup(PythonLookup(slow, KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(lookup.lookup, (1,))
        assert entered.wait(PATIENCE_S)
        lookup.invalidate([(1,)])
        assert lookup.lookup((1,)) == [("new",)]
        leave.set()
        assert before.result(PATIENCE_S) == [("old",)]
    assert lookup.lookup((1,)) == [("new",)]


@pytest.mark.parametrize("invalidate", [False, True])
def test_threads_over_a_failing_source_get_right_answers_or_its_error_and_nothing_wrong_is_cached(
    open_lookup, invalidate
):
    """The stress test: 8 threads, a cache for a quarter of the keys, one request in four fails."""
    failing, lock, under_way, doubled = random.Random(11), threading.Lock(), set(), []

    class Flaky(Source):
        failing_share = 0.25

        def lookup_many(self, keys):
            with lock:
                doubled.extend(under_way.intersection(keys))
                under_way.update(keys)
                fails = failing.random() < self.failing_share
            try:
                if fails:
                    raise ConnectionError("reset")
                return {key: LookupFunction.lookup_many(self, [key])[key] for key in keys}
            finally:
                with lock:
                    under_way.difference_update(keys)

    source = Flaky()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=10))
    failures = []

    def work(seed):
        randomness = random.Random(seed)
        for _ in range(400):
            keys = [(randomness.randrange(40),) for _ in range(randomness.randrange(1, 8))]
            if invalidate and randomness.random() < 0.05:
                lookup.invalidate(keys)
            try:
                assert lookup.lookup_many(keys) == {key: source.lookup(key) for key in keys}
            except UnavailableError as error:
                failures.append(error)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    stats = lookup.stats()
    assert stats.load_count == stats.miss_count
    assert 0 < stats.num_load_failure < stats.load_count
    assert failures
    assert stats.num_cached_record <= 10
    source.failing_share = 0
    for number in range(40):
        assert lookup.lookup((number,)) == source.lookup((number,))
    assert bool(doubled) <= invalidate, "a key was asked for while it was being asked for"
    assert lookup._in_flight._under_way == {}
    assert lookup._in_flight._waiting == {}


def test_a_thread_that_is_interrupted_ends_no_other(open_lookup):
    entered, leave = threading.Event(), threading.Event()
    calls = []

    def interrupted(n):
        calls.append(n)
        if len(calls) == 1:
            entered.set()
            assert leave.wait(PATIENCE_S)
            raise KeyboardInterrupt
        return [(str(n),)]

    lookup = open_lookup(PythonLookup(interrupted, KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(lookup.lookup, (1,))
        assert entered.wait(PATIENCE_S)
        others = [pool.submit(lookup.lookup, (1,)) for _ in range(3)]
        while lookup.stats().hit_count < 3:
            threading.Event().wait(0.001)
        leave.set()
        assert [other.result(PATIENCE_S) for other in others] == [[("1",)]] * 3
        with pytest.raises(KeyboardInterrupt):
            first.result(PATIENCE_S)
    assert calls == [1, 1]


class RaisesOnce(NullRecorder):
    """A recorder of a user's own, which cannot take one of its metrics once."""

    def __init__(self, metric):
        self.metric = metric

    def count(self, metric, amount=1, *, name="", result="ok"):
        if metric == self.metric:
            self.metric = None
            raise ValueError("no room for another series")

    def gauge(self, metric, value, *, name=""):
        self.count(metric)


@pytest.mark.parametrize(
    "metric",
    ["millpond_lookup_requests_total", "millpond_lookup_loads_total", "millpond_lookup_latest_load_seconds"],
)
def test_a_recorder_that_raises_leaves_no_request_that_others_wait_for(open_lookup, metric):
    lookup = open_lookup(Source(), DefaultLookupCache(max_rows=9), recorder=RaisesOnce(metric))
    with pytest.raises(ValueError, match="another series"):
        lookup.lookup((2,))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lookup.lookup, (2,)).result(PATIENCE_S) == [("2.0",)]


def test_what_is_loaded_during_a_close_is_given_but_not_cached(open_lookup):
    entered, leave = threading.Event(), threading.Event()

    def slow(n):
        entered.set()
        assert leave.wait(PATIENCE_S)
        return [(str(n),)]

    lookup = open_lookup(PythonLookup(slow, KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(lookup.lookup, (1,))
        assert entered.wait(PATIENCE_S)
        lookup.close()
        leave.set()
        assert under_way.result(PATIENCE_S) == [("1",)]
    assert lookup.stats().num_cached_record == 0
