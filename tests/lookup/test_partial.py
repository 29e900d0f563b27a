"""Partial caching asks the source once per key, and takes no failure for an answer."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import (
    CacheMetricGroup,
    DefaultLookupCache,
    LookupFunctionProvider,
    LookupTable,
    PartialCachingLookup,
    PartialCachingLookupProvider,
    PythonLookup,
    Retries,
)
from millpond.lookup.caches.partial_columns import ColumnCachingLookup
from millpond.lookup.column_cache.cache import ColumnCache, ColumnCacheLimits
from millpond.metrics import MemoryRecorder

from .in_columns import EVERY_FORM
from .partial_source import KEYS, ROWS, Source
from .partial_source import open_lookup as open_in_rows

EVERY_LOOKUP = pytest.mark.parametrize("open_lookup", EVERY_FORM.values(), ids=EVERY_FORM)


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 20)), max_size=12), max_size=12),
    max_rows=st.integers(0, 8),
    cache_missing_key=st.booleans(),
)
@EVERY_LOOKUP
def test_any_cache_gives_the_answers_of_the_source(open_lookup, batches, max_rows, cache_missing_key):
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=max_rows, cache_missing_key=cache_missing_key))
    for keys in batches:
        assert lookup.lookup_many(keys) == {key: source.lookup(key) for key in keys}
    stats = lookup.stats()
    assert stats.hit_count + stats.miss_count == sum(len(set(keys)) for keys in batches)
    assert stats.load_count == stats.miss_count == sum(map(len, source.batches))
    assert stats.num_cached_record <= max_rows


@EVERY_LOOKUP
def test_a_batch_is_one_request_for_its_distinct_missing_keys(open_lookup):
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=10))
    lookup.lookup_many([(2,), (4,), (2,)])
    lookup.lookup_many([(4,), (6,)])
    assert source.batches == [[(2,), (4,)], [(6,)]]


def test_a_missing_key_is_remembered_as_an_empty_list_and_not_as_none():
    cache = DefaultLookupCache(max_rows=10)
    source = Source()
    lookup = open_in_rows(source, cache)
    assert cache.get_if_present((1,)) is None
    assert lookup.lookup((1,)) == []
    assert cache.get_if_present((1,)) == []
    assert lookup.lookup((1,)) == []
    assert len(source.batches) == 1


@EVERY_LOOKUP
def test_a_missing_key_is_asked_again_when_missing_keys_are_not_cached(open_lookup):
    source = Source()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=10, cache_missing_key=False))
    lookup.lookup((1,))
    lookup.lookup((1,))
    assert len(source.batches) == 2


@EVERY_LOOKUP
def test_a_key_with_several_rows_counts_as_one(open_lookup):
    lookup = open_lookup(Source(), DefaultLookupCache(max_rows=2))
    lookup.lookup_many([(4,), (10,)])
    assert lookup.stats().num_cached_record == 2
    assert lookup.stats().num_cached_bytes > 0


def test_put_tells_what_was_there_before():
    cache = DefaultLookupCache(max_rows=2)
    assert cache.put((1,), [("a",)]) is None
    assert cache.put((1,), []) == [("a",)]
    assert cache.put((1,), [("b",)]) == []


@EVERY_LOOKUP
def test_rows_expire_by_the_injected_clock(open_lookup):
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


@EVERY_LOOKUP
def test_a_row_of_the_wrong_width_names_function_key_and_columns(open_lookup):
    def broken(n):
        return [(n, n)]

    lookup = open_lookup(PythonLookup(broken, KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with pytest.raises(DataError, match=r"broken.*\(7,\).*1 values \(text\).*\(7, 7\)"):
        lookup.lookup((7,))
    assert lookup.stats().num_cached_record == 0


@EVERY_LOOKUP
def test_metrics_reach_the_recorder_and_have_the_names_of_the_seed(open_lookup):
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
@EVERY_LOOKUP
def test_an_answer_that_is_none_is_refused_whole_and_not_cached(open_lookup, answer, complaint):
    class Wrong(Source):
        def lookup_many(self, keys):
            return answer

    lookup = open_lookup(Wrong(), DefaultLookupCache(max_rows=9))
    with pytest.raises(DataError, match=rf"'planes' \(.*Wrong\).*{complaint}"):
        lookup.lookup_many([(1,), (2,)])
    assert lookup.stats().num_cached_record == 0
    assert lookup.stats().num_load_failure == 2


@EVERY_LOOKUP
def test_keys_that_an_answer_leaves_out_have_no_rows_and_that_is_remembered(open_lookup):
    class Sparse(Source):
        def lookup_many(self, keys):
            return {key: rows for key, rows in super().lookup_many(keys).items() if rows}

    source = Sparse()
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9))
    assert lookup.lookup_many([(1,), (4,)]) == {(1,): [], (4,): [("4.0",), ("4.1",)]}
    assert lookup.lookup((1,)) == []
    assert len(source.batches) == 1


def test_a_caller_who_changes_his_rows_changes_nobody_elses():
    lookup = open_in_rows(Source(), DefaultLookupCache(max_rows=9))
    lookup.lookup((4,)).clear()
    lookup.lookup((4,)).append("x")
    assert lookup.lookup((4,)) == [("4.0",), ("4.1",)]


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


class Poisoned(Source):
    """Fails for some keys, in whatever request they are."""

    def __init__(self, *poison, error=ValueError):
        super().__init__()
        self.poison, self.error = set(poison), error

    def lookup_many(self, keys):
        self.batches.append(list(keys))
        if self.poison & {key for (key,) in keys}:
            raise self.error("poison")
        return {key: self.lookup(key) for key in keys}


def one_by_one(poison, error=ValueError):
    asked = []

    def look_up(n):
        asked.append(n)
        if n == poison:
            raise error("poison")
        return [(str(n),)]

    return PythonLookup(look_up, KEYS, ROWS), asked


@EVERY_LOOKUP
def test_a_key_that_fails_leaves_the_others_of_its_batch_cached_and_counts_alone(open_lookup):
    source, asked = one_by_one(poison=2)
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9))
    with pytest.raises(ValueError, match="poison"):
        lookup.lookup_many([(1,), (2,), (3,)])
    assert lookup.lookup_many([(1,), (3,)]) == {(1,): [("1",)], (3,): [("3",)]}
    assert asked == [1, 2, 3]
    assert (lookup.stats().num_load_failure, lookup.stats().load_count) == (1, 3)


@EVERY_LOOKUP
def test_a_source_that_does_not_answer_is_not_asked_for_every_key(open_lookup):
    source, asked = one_by_one(poison=2, error=ConnectionError)
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9))
    with pytest.raises(UnavailableError, match="poison"):
        lookup.lookup_each([(1,), (2,), (3,), (4,)])
    assert asked == [1, 2]
    assert lookup.stats().num_load_failure == 1
    assert lookup.lookup((1,)) == [("1",)]


@settings(deadline=None)
@given(poison=st.sets(st.integers(0, 40), max_size=4), cached=st.booleans())
@EVERY_LOOKUP
def test_the_keys_that_fail_are_found_in_a_request_for_many(open_lookup, poison, cached):
    source = Poisoned(*poison)
    lookup = open_lookup(source, DefaultLookupCache(max_rows=99) if cached else None)
    keys = [(number,) for number in range(41)]
    answers = lookup.lookup_each([*keys, (None,)])
    assert {key for (key,) in answers.failures} == poison
    assert answers.rows == {(None,): []} | {key: source.lookup(key) for key in keys if key[0] not in poison}
    assert lookup.stats().num_load_failure == len(poison)


@EVERY_LOOKUP
def test_a_request_that_fails_for_whatever_keys_fails_the_batch_after_a_bounded_number_of_requests(open_lookup):
    source = Poisoned(*range(1_000))
    lookup = open_lookup(source, DefaultLookupCache(max_rows=9))
    with pytest.raises(ValueError, match="poison"):
        lookup.lookup_each([(number,) for number in range(1_000)])
    assert len(source.batches) <= 120


@EVERY_LOOKUP
def test_a_value_of_another_type_than_declared_is_refused_before_it_is_cached(open_lookup):
    lookup = open_lookup(PythonLookup(lambda n: [(n,)], KEYS, ROWS), DefaultLookupCache(max_rows=9))
    with pytest.raises(DataError, match=r"'text': expected string as declared"):
        lookup.lookup((7,))
    assert lookup.stats().num_cached_record == 0


@pytest.mark.parametrize(
    ("key_type", "first", "beyond"),
    [(pa.date32(), 0, 3_000_000), (pa.timestamp("us"), 0, 1 << 60), (pa.timestamp("us", "UTC"), 0, -(1 << 60))],
)
def test_a_date_that_python_does_not_have_is_a_missing_key_and_not_the_end_of_its_batch(key_type, first, beyond):
    source = PythonLookup(lambda day: [(str(day.year),)], pa.schema([("day", key_type)]), ROWS)
    with ColumnCachingLookup(source, ColumnCache(ColumnCacheLimits(max_rows=9))) as lookup:
        for _ in range(2):
            matched = lookup.match([pa.array([beyond, first], key_type)])
            assert matched.rows.counts.tolist() == [0, 1]
            assert matched.rows.rows.to_pylist() == [{"text": "1970"}]
