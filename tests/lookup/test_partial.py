"""Partial caching asks the source once per key, and takes no failure for an answer."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import (
    CacheMetricGroup,
    DefaultLookupCache,
    LookupFunction,
    LookupFunctionProvider,
    LookupTable,
    PartialCachingLookup,
    PartialCachingLookupProvider,
    PythonLookup,
    Retries,
)
from millpond.metrics import MemoryRecorder

KEYS = pa.schema([("n", pa.int64())])
ROWS = pa.schema([("text", pa.string())])
PATIENCE_S = 20


class Source(LookupFunction):
    """Even keys have as many rows as half their value modulo 3 says; failures are queued."""

    key_schema, row_schema = KEYS, ROWS

    def __init__(self):
        self.batches = []
        self.failures = []

    def lookup(self, keys):
        (n,) = keys
        return [(f"{n}.{row}",) for row in range(n // 2 % 3)] if n % 2 == 0 else []

    def lookup_many(self, keys):
        self.batches.append(list(keys))
        if self.failures:
            raise self.failures.pop(0)
        return super().lookup_many(keys)


class Longest(random.Random):
    def uniform(self, a, b):
        return b


def open_lookup(source, cache, *, max_retries=0, waits=None, recorder=None):
    metrics = CacheMetricGroup("planes", recorder) if recorder else CacheMetricGroup("planes")
    retries = Retries(max_retries, sleep=(waits if waits is not None else []).append, randomness=Longest())
    lookup = PartialCachingLookup(source, cache, metrics, retries)
    lookup.open()
    return lookup


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 20)), max_size=12), max_size=12),
    max_rows=st.integers(0, 8),
    cache_missing_key=st.booleans(),
)
def test_any_cache_gives_the_answers_of_the_source(batches, max_rows, cache_missing_key):
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=max_rows, cache_missing_key=cache_missing_key))
    for keys in batches:
        assert lookup.lookup_many(keys) == {key: source.lookup(key) for key in keys}
    stats = lookup.stats()
    assert stats.hit_count + stats.miss_count == sum(len(set(keys)) for keys in batches)
    assert stats.load_count == stats.miss_count == sum(map(len, source.batches))
    assert stats.num_cached_record <= max_rows


def test_a_batch_is_one_request_for_its_distinct_missing_keys():
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=10))
    lookup.lookup_many([(2,), (4,), (2,)])
    lookup.lookup_many([(4,), (6,)])
    assert source.batches == [[(2,), (4,)], [(6,)]]


def test_a_missing_key_is_remembered_as_an_empty_list_and_not_as_none():
    cache = DefaultLookupCache(max_rows=10)
    source = Source()
    lookup = open_lookup(source, cache)
    assert cache.get_if_present((1,)) is None
    assert lookup.lookup((1,)) == []
    assert cache.get_if_present((1,)) == []
    assert lookup.lookup((1,)) == []
    assert len(source.batches) == 1


def test_a_missing_key_is_asked_again_when_missing_keys_are_not_cached():
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=10, cache_missing_key=False))
    lookup.lookup((1,))
    lookup.lookup((1,))
    assert len(source.batches) == 2


def test_a_key_with_several_rows_counts_as_one():
    lookup = open_lookup(Source(), cache := DefaultLookupCache(max_rows=2))
    lookup.lookup_many([(4,), (10,)])
    assert cache.size() == lookup.stats().num_cached_record == 2
    assert lookup.stats().num_cached_bytes > 0


def test_put_tells_what_was_there_before():
    cache = DefaultLookupCache(max_rows=2)
    assert cache.put((1,), [("a",)]) is None
    assert cache.put((1,), []) == [("a",)]
    assert cache.put((1,), [("b",)]) == []


def test_rows_expire_by_the_injected_clock():
    now_ms = 0
    cache = DefaultLookupCache(expire_after_write_ms=100, clock=lambda: now_ms)
    source = Source()
    lookup = open_lookup(source, cache)
    lookup.lookup((2,))
    now_ms = 99
    lookup.lookup((2,))
    assert len(source.batches) == 1
    now_ms = 100
    lookup.lookup((2,))
    assert len(source.batches) == 2


def test_a_cache_without_any_limit_is_refused():
    with pytest.raises(OptionError, match="no bound"):
        DefaultLookupCache()


def test_a_passing_failure_is_tried_again_with_doubling_waits_and_counts_one_load():
    source, waits = Source(), []
    source.failures = [ConnectionError("reset"), TimeoutError("slow"), UnavailableError("down")]
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9), max_retries=3, waits=waits)
    assert lookup.lookup((4,)) == [("4.0",), ("4.1",)]
    assert waits == [0.1, 0.2, 0.4]
    assert (lookup.stats().load_count, lookup.stats().num_load_failure) == (1, 0)


def test_a_failure_that_lasts_is_raised_counted_and_not_cached():
    source, waits = Source(), []
    source.failures = [ConnectionError("reset")] * 2
    cache = DefaultLookupCache(max_rows=9)
    lookup = open_lookup(source, cache, max_retries=1, waits=waits)
    with pytest.raises(UnavailableError, match=r"2 tries.*reset.*max-retries"):
        lookup.lookup_many([(4,), (5,)])
    assert cache.size() == 0
    assert (lookup.stats().load_count, lookup.stats().num_load_failure) == (2, 2)
    assert lookup.lookup_many([(4,), (5,)]) == {(4,): [("4.0",), ("4.1",)], (5,): []}


def test_a_failure_that_no_retry_can_help_is_raised_at_once_as_it_is():
    source, waits = Source(), []
    source.failures = [KeyError("bug")]
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9), max_retries=3, waits=waits)
    with pytest.raises(KeyError, match="bug"):
        lookup.lookup((4,))
    assert waits == []


def test_threads_that_miss_one_key_make_one_request_and_all_see_its_failure():
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


def test_threads_with_crossing_batches_all_get_their_answers():
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


def test_a_row_of_the_wrong_width_names_function_key_and_columns():
    def broken(n):
        return [(n, n)]

    lookup = open_lookup(PythonLookup(broken, KEYS, ROWS), cache := DefaultLookupCache(max_rows=9))
    with pytest.raises(DataError, match=r"broken.*\(7,\).*1 values \(text\).*\(7, 7\)"):
        lookup.lookup((7,))
    assert cache.size() == 0


def test_metrics_reach_the_recorder_and_have_the_names_of_the_seed():
    recorder = MemoryRecorder()
    lookup = open_lookup(Source(), DefaultLookupCache(max_rows=9), recorder=recorder)
    lookup.lookup((2,))
    lookup.lookup((2,))
    assert recorder.total("millpond_lookup_requests_total", name="planes", result="hit") == 1
    assert recorder.total("millpond_lookup_loads_total", name="planes") == 1
    assert recorder.level("millpond_lookup_cached_records", name="planes") == 1
    assert recorder.level("millpond_lookup_cached_bytes", name="planes") > 0
    named = lookup.stats().named()
    assert {name: named[name] for name in ("hitCount", "missCount", "loadCount", "numLoadFailure")} == {
        "hitCount": 1,
        "missCount": 1,
        "loadCount": 1,
        "numLoadFailure": 0,
    }
    assert named["numCachedRecord"] == 1
    assert named["latestLoadTime"] >= 0


def test_a_table_without_a_cache_asks_the_source_every_time():
    source = Source()
    table = LookupTable("planes", source)
    with table.open() as lookup:
        lookup.lookup((2,))
        lookup.lookup((2,))
    assert len(source.batches) == 2
    assert table.stats().miss_count == table.stats().load_count == 2


def test_a_scan_alone_cannot_be_cached_partially():
    class OnlyScan:
        key_schema, row_schema = KEYS, ROWS

        def scan(self):
            raise AssertionError("never scanned")

    with pytest.raises(OptionError, match=r"'planes'.*PARTIAL.*LookupFunction.*OnlyScan"):
        LookupTable("planes", OnlyScan(), {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 1})


def test_a_function_without_a_batched_form_is_asked_key_by_key_with_retries_of_each():
    asked, waits = [], []

    def flaky(n):
        asked.append(n)
        if asked.count(n) == 1:
            raise ConnectionError("reset")
        return [(str(n),)]

    lookup = open_lookup(PythonLookup(flaky, KEYS, ROWS), DefaultLookupCache(max_rows=9), max_retries=1, waits=waits)
    assert lookup.lookup_many([(1,), (2,)]) == {(1,): [("1",)], (2,): [("2",)]}
    assert asked == [1, 1, 2, 2]
    assert (lookup.stats().load_count, lookup.stats().num_load_failure) == (2, 0)


def test_waits_double_up_to_a_limit_and_are_drawn_below_it():
    waits = []
    retries = Retries(8, sleep=waits.append, randomness=Longest())
    with pytest.raises(UnavailableError, match="9 tries"):
        retries.run("t", lambda: (_ for _ in ()).throw(TimeoutError))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    drawn = []
    with pytest.raises(UnavailableError):
        Retries(8, sleep=drawn.append, randomness=random.Random(7)).run(
            "t", lambda: (_ for _ in ()).throw(TimeoutError)
        )
    assert all(0 <= wait <= longest for wait, longest in zip(drawn, waits, strict=True))
    assert len(set(drawn)) == 8


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({(1,): [], (99,): []}, r"\(99,\), which was not asked for"),
        ({(1,): [("a", "b")]}, r"1 values \(text\), got tuple \('a', 'b'\)"),
        ({(1,): [["a"]]}, r"got list \['a'\]"),
        ({(1,): ("a",)}, "got str 'a'"),
        ({(1,): "rows"}, "got str 'rows'"),
        ([("a",)], "expected a mapping from keys to rows, got list"),
    ],
)
def test_an_answer_that_is_none_is_refused_whole_and_not_cached(answer, complaint):
    class Wrong(Source):
        def lookup_many(self, keys):
            return answer

    lookup = open_lookup(Wrong(), cache := DefaultLookupCache(max_rows=9))
    with pytest.raises(DataError, match=rf"'planes' \(.*Wrong\).*{complaint}"):
        lookup.lookup_many([(1,), (2,)])
    assert cache.size() == 0
    assert lookup.stats().num_load_failure == 2


def test_keys_that_an_answer_leaves_out_have_no_rows_and_that_is_remembered():
    class Sparse(Source):
        def lookup_many(self, keys):
            return {key: rows for key, rows in super().lookup_many(keys).items() if rows}

    source = Sparse()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9))
    assert lookup.lookup_many([(1,), (4,)]) == {(1,): [], (4,): [("4.0",), ("4.1",)]}
    assert lookup.lookup((1,)) == []
    assert len(source.batches) == 1


def test_a_caller_who_changes_his_rows_changes_nobody_elses():
    lookup = open_lookup(Source(), DefaultLookupCache(max_rows=9))
    lookup.lookup((4,)).clear()
    lookup.lookup((4,)).append("x")
    assert lookup.lookup((4,)) == [("4.0",), ("4.1",)]


def test_a_function_that_needs_its_own_key_is_refused_instead_of_waiting_for_ever():
    lookup = None
    function = PythonLookup(lambda n: lookup.lookup((n,)), KEYS, ROWS)
    lookup = open_lookup(function, DefaultLookupCache(max_rows=9))
    with pytest.raises(OptionError, match="wait for itself"):
        lookup.lookup((1,))
    other = PythonLookup(lambda n: nested.lookup((n - 1,)) if n else [("0",)], KEYS, ROWS)
    nested = open_lookup(other, DefaultLookupCache(max_rows=9))
    assert nested.lookup((3,)) == [("0",)]


def test_two_threads_whose_functions_need_each_others_keys_do_not_wait_for_ever():
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


def test_rows_that_were_loaded_before_an_invalidation_are_given_but_not_cached():
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


def test_a_cache_of_ones_own_needs_six_methods():
    class Shelf:
        def __init__(self):
            self.rows = {}

        def open(self, metrics):
            metrics.sizes(self.size, lambda: None)

        def get_if_present(self, key):
            return self.rows.get(key)

        def put(self, key, rows):
            before = self.rows.get(key)
            self.rows[key] = rows
            return before

        def invalidate(self, key):
            self.rows.pop(key, None)

        def size(self):
            return len(self.rows)

        def close(self):
            self.rows.clear()

    source, shelf = Source(), Shelf()
    table = LookupTable("planes", PartialCachingLookupProvider.of(source, shelf), {"lookup.max-retries": 0})
    assert table.options.mode == "PARTIAL"
    with table, table.open() as lookup:
        assert lookup.lookup_many([(1,), (4,)]) == lookup.lookup_many([(1,), (4,)])
        assert table.stats().num_cached_record == shelf.size() == 2
    assert len(source.batches) == 1


def test_a_provider_and_options_of_a_cache_are_refused_together():
    provider = PartialCachingLookupProvider.of(Source(), DefaultLookupCache(max_rows=1))
    with pytest.raises(OptionError, match=r"'planes'.*PartialCachingLookupProvider says itself"):
        LookupTable("planes", provider, {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 1})
    with pytest.raises(OptionError, match="not asynchronous"):
        LookupTable("planes", Source(), {"table.exec.async-lookup.buffer-capacity": 3})


def test_a_narrowed_table_has_a_cache_of_its_own():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    provider = PartialCachingLookupProvider.of(
        PythonLookup(lambda n: [(n, -n)], KEYS, schema), DefaultLookupCache(max_rows=9)
    )
    whole = LookupTable("numbers", provider)
    narrow = whole.select(["b"], [("a", ">", 1)])
    with whole.open() as all_columns, narrow.open() as one_column:
        assert all_columns.lookup_many([(1,), (2,)]) == {(1,): [(1, -1)], (2,): [(2, -2)]}
        assert one_column.lookup_many([(1,), (2,)]) == {(1,): [], (2,): [(-2,)]}
        assert all_columns.lookup((2,)) == [(2, -2)]
    assert (whole.stats().hit_count, narrow.stats().hit_count) == (1, 0)


def test_without_a_cache_equal_keys_of_a_batch_are_asked_once():
    source = Source()
    with LookupTable("planes", LookupFunctionProvider.of(source)).open() as lookup:
        lookup.lookup_many([(2,), (2,), (4,), (2,)])
    assert source.batches == [[(2,), (4,)]]


def test_the_hit_rate_of_every_minute_is_kept_for_an_hour():
    now_ms = 0
    metrics = CacheMetricGroup("planes", clock=lambda: now_ms)
    lookup = PartialCachingLookup(Source(), DefaultLookupCache(max_rows=99), metrics, Retries(0))
    for minute in range(100):
        now_ms = minute * 60_000
        lookup.lookup_many([(minute // 2,)])
    rates = lookup.hit_rates()
    assert [rate.rate for rate in rates] == [0.0, 1.0] * 30
    assert [rate.age_ms for rate in rates] == [minute * 60_000 for minute in range(59, -1, -1)]
    now_ms += 59 * 60_000
    assert len(lookup.hit_rates()) == 1


@pytest.mark.parametrize("invalidate", [False, True])
def test_threads_over_a_failing_source_get_right_answers_or_its_error_and_nothing_wrong_is_cached(invalidate):
    """The stress test: 8 threads, a cache for a quarter of the keys, one request in four fails."""
    failing, lock, under_way, doubled = random.Random(11), threading.Lock(), set(), []

    class Flaky(Source):
        def lookup_many(self, keys):
            with lock:
                doubled.extend(under_way.intersection(keys))
                under_way.update(keys)
                fails = failing.random() < 0.25
            try:
                if fails:
                    raise ConnectionError("reset")
                return {key: LookupFunction.lookup_many(self, [key])[key] for key in keys}
            finally:
                with lock:
                    under_way.difference_update(keys)

    source = Flaky()
    lookup = open_lookup(source, cache := DefaultLookupCache(max_rows=10))
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
    assert cache.size() <= 10
    for number in range(40):
        assert cache.get_if_present((number,)) in (None, source.lookup((number,)))
    assert bool(doubled) <= invalidate, "a key was asked for while it was being asked for"
    assert lookup._in_flight._requests == {}
    assert lookup._in_flight._waiting == {}
