"""The lookup cache is a plain reference that only forgets, and forgets what it must."""

import copy
import gc
import pickle
import tracemalloc
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.cache.curves.registry import recordings_of
from millpond.errors import DataError, OptionError
from millpond.lookup import CacheMetricGroup, DefaultLookupCache, LookupFullCache, LookupTable, PythonLookup

NUMBERS = pa.schema([("n", pa.int64())])
KEYS = st.integers(0, 6).map(lambda number: (number,))
ROWS = st.lists(st.tuples(st.integers(0, 3)), max_size=3)


class Reference:
    """The same in the plainest words: a list of entries, coldest first, looked through at every step."""

    def __init__(self, max_rows, after_access_ms, after_write_ms, *, missing):
        self.max_rows, self.after_access_ms, self.after_write_ms = max_rows, after_access_ms, after_write_ms
        self.missing = missing
        self.entries = []

    def expire(self, now_ms):
        self.entries = [
            entry
            for entry in self.entries
            if (self.after_access_ms is None or now_ms - entry["used"] < self.after_access_ms)
            and (self.after_write_ms is None or now_ms - entry["written"] < self.after_write_ms)
        ]

    def find(self, key):
        return next((entry for entry in self.entries if entry["key"] == key), None)

    def get(self, key, now_ms):
        self.expire(now_ms)
        entry = self.find(key)
        if entry is None:
            return None
        self.entries.remove(entry)
        self.entries.append(entry | {"used": now_ms})
        return entry["rows"]

    def put(self, key, rows, now_ms):
        self.expire(now_ms)
        before = self.find(key)
        self.entries = [entry for entry in self.entries if entry["key"] != key]
        if rows or self.missing:
            self.entries.append({"key": key, "rows": rows, "used": now_ms, "written": now_ms})
            if self.max_rows is not None:
                self.entries = self.entries[max(0, len(self.entries) - self.max_rows) :]
        return None if before is None else before["rows"]

    def invalidate(self, key):
        self.entries = [entry for entry in self.entries if entry["key"] != key]


class CacheAgainstReference(RuleBasedStateMachine):
    now_ms = 0

    @initialize(
        max_rows=st.one_of(st.none(), st.integers(0, 4)),
        after_access_ms=st.one_of(st.none(), st.integers(1, 20)),
        after_write_ms=st.integers(1, 20),
        missing=st.booleans(),
    )
    def begin(self, max_rows, after_access_ms, after_write_ms, missing):
        self.reference = Reference(max_rows, after_access_ms, after_write_ms, missing=missing)
        self.cache = DefaultLookupCache(
            max_rows=max_rows,
            expire_after_access_ms=after_access_ms,
            expire_after_write_ms=after_write_ms,
            cache_missing_key=missing,
            clock=lambda: self.now_ms,
        )
        self.metrics = CacheMetricGroup("model")
        self.cache.open(self.metrics)

    @rule(ms=st.integers(1, 12))
    def time_passes(self, ms):
        self.now_ms += ms

    @rule(key=KEYS)
    def get(self, key):
        assert self.cache.get_if_present(key) == self.reference.get(key, self.now_ms)

    @rule(key=KEYS, rows=ROWS)
    def put(self, key, rows):
        assert self.cache.put(key, rows) == self.reference.put(key, rows, self.now_ms)

    @rule(key=KEYS)
    def invalidate(self, key):
        self.cache.invalidate(key)
        self.reference.invalidate(key)

    @invariant()
    def sizes_agree(self):
        if hasattr(self, "reference"):
            self.reference.expire(self.now_ms)
            assert self.cache.size() == len(self.reference.entries)
            assert self.metrics.stats().num_cached_record == len(self.reference.entries)
            assert (self.metrics.stats().num_cached_bytes > 0) == bool(self.reference.entries)


TestCacheAgainstReference = CacheAgainstReference.TestCase
TestCacheAgainstReference.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_bytes_are_a_limit_of_their_own():
    cache = DefaultLookupCache(max_bytes=20_000)
    for number in range(100):
        cache.put((number,), [(f"{number:04d}" * 250,)])
    assert 5 < cache.size() < 20
    cache.put(("huge",), [("x" * 30_000,)])
    assert cache.get_if_present(("huge",)) is None
    metrics = CacheMetricGroup("t")
    cache.open(metrics)
    assert 5_000 < metrics.stats().num_cached_bytes <= 20_000


def test_more_rows_weigh_more():
    sizes = []
    for count in (0, 1, 10, 100):
        metrics = CacheMetricGroup("t")
        cache = DefaultLookupCache(max_rows=1)
        cache.open(metrics)
        cache.put((1,), [(number, "text") for number in range(count)])
        sizes.append(metrics.stats().num_cached_bytes)
    assert all(fewer < more for fewer, more in pairwise(sizes))


def test_nobody_can_change_what_is_cached():
    cache = DefaultLookupCache(max_rows=9)
    rows = [("a",)]
    cache.put((1,), rows)
    rows.append(("b",))
    cache.get_if_present((1,)).append(("c",))
    assert cache.get_if_present((1,)) == [("a",)]


@pytest.mark.parametrize("again", [lambda cache: pickle.loads(pickle.dumps(cache)), copy.deepcopy])
def test_a_copy_for_another_process_is_empty_and_has_the_same_limits(again):
    cache = DefaultLookupCache(max_rows=2, cache_missing_key=False)
    cache.put((1,), [("a",)])
    other = again(cache)
    assert other.size() == 0
    for number in range(5):
        other.put((number,), [("b",)] if number else [])
    assert (other.size(), cache.size()) == (2, 1)
    assert other.get_if_present((0,)) is None


@pytest.mark.parametrize("limit", ["max_rows", "max_bytes", "expire_after_access_ms", "expire_after_write_ms"])
def test_any_limit_alone_is_enough_and_a_negative_one_is_refused(limit):
    DefaultLookupCache(**{limit: 1})
    with pytest.raises(OptionError, match="got -1"):
        DefaultLookupCache(**{limit: -1})


def test_nothing_can_be_put_into_a_full_cache_or_taken_out():
    cache = LookupFullCache(["gate"])
    with pytest.raises(OptionError, match="nothing can be put"):
        cache.put((1,), [])
    with pytest.raises(OptionError, match="invalidated"):
        cache.invalidate((1,))
    with pytest.raises(OptionError, match="not loaded yet"):
        cache.get_if_present((1,))
    assert cache.size() == 0


@pytest.mark.parametrize(("key", "rows"), [(None, []), ((1,), None), ("N1", []), ((1,), "rows")])
def test_what_is_no_key_or_are_no_rows_is_refused(key, rows):
    cache = DefaultLookupCache(max_rows=9)
    with pytest.raises(DataError, match="key as a tuple and its rows as a list"):
        cache.put(key, rows)
    assert cache.size() == 0


def test_no_entry_outlives_its_limit_when_the_clock_steps_back():
    now_ms = 1_000_000
    cache = DefaultLookupCache(expire_after_write_ms=100, expire_after_access_ms=100, clock=lambda: now_ms)
    cache.put((1,), [("a",)])
    now_ms = 500_000
    cache.put((2,), [("b",)])
    now_ms += 99
    assert cache.size() == 2
    now_ms += 1
    assert cache.get_if_present((1,)) is None
    assert cache.get_if_present((2,)) is None


SHARED = [("row" * 30, 5.5, "city" * 5)]
SHAPES = {
    "missing keys": lambda n: ((n,), []),
    "missing keys of text": lambda n: ((f"key {n}",), []),
    "flat rows": lambda n: ((n,), [(f"name {n}", n * 0.5, f"city {n}", n + 5_000)]),
    "wide rows": lambda n: ((n,), [tuple(f"v{column} {n}" for column in range(20))]),
    "several rows": lambda n: ((n,), [(f"name {n} {row}", n * 0.5) for row in range(3)]),
    "lists": lambda n: ((n,), [([f"tag {n} {tag}" for tag in range(10)],)]),
    "dictionaries": lambda n: ((n,), [({f"a{tag}": f"tag {n} {tag}" for tag in range(10)},)]),
    "shared rows": lambda n: ((n,), SHARED),
    "rows shared within and without": lambda n: ((n,), SHARED * 10),
}


CHOICES = {
    "lru": {},
    "expiring": {"expire_after_write_ms": 10**9, "expire_after_access_ms": 10**9},
    "w-tinylfu": {"policy": "w-tinylfu"},
}
SIZES = [680, 700]
"""A dictionary grows between them."""

_EVERY_CASE = [
    # Each shape with each choice in every run, and in turn with one of the sizes.
    pytest.param(shape, SIZES[at], CHOICES[choice], marks=() if (of_shape + of_choice) % 2 == at else pytest.mark.soak)
    for of_shape, shape in enumerate(SHAPES)
    for of_choice, choice in enumerate(CHOICES)
    for at in range(len(SIZES))
]


@pytest.mark.parametrize(("shape", "entries", "choices"), _EVERY_CASE)
def test_the_bytes_that_are_counted_are_those_that_are_taken(shape, entries, choices):
    metrics, made = CacheMetricGroup("t"), SHAPES[shape]
    cache = DefaultLookupCache(max_bytes=1 << 40, **choices)
    cache.open(metrics)
    gc.collect()  # Python's own lists of free tuples would hide some.
    tracemalloc.start()
    try:
        for number in range(1_000, 1_000 + entries):
            cache.put(*made(number))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cache.size() == entries
    assert 0.8 <= metrics.stats().num_cached_bytes / taken <= 1.3


def test_the_policy_of_a_table_decides_whether_hot_keys_stay_through_a_scan():
    stayed = {}
    for policy in ("LRU", "w-tinylfu"):
        options = {
            "lookup.cache": "PARTIAL",
            "lookup.partial-cache.max-rows": 100,
            "lookup.partial-cache.policy": policy,
        }
        asked = []
        source = PythonLookup(lambda n, asked=asked: asked.append(n) or [(n,)], NUMBERS, NUMBERS)
        with LookupTable("numbers", source, options).open() as lookup:
            for _ in range(5):
                lookup.lookup_many([(number,) for number in range(50)])
            for number in range(1_000, 2_000):
                lookup.lookup((number,))
            asked.clear()
            lookup.lookup_many([(number,) for number in range(50)])
        stayed[policy] = 50 - len(asked)
    assert stayed["LRU"] == 0
    assert stayed["w-tinylfu"] >= 25


def test_a_limit_in_bytes_holds_for_nested_values():
    cache = DefaultLookupCache(max_bytes=1_000_000)
    tracemalloc.start()
    try:
        for number in range(1_500):
            cache.put((number,), [({"tags": [f"{number} {tag}" for tag in range(30)]},)])
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 100 < cache.size() < 1_000
    assert taken < 1_300_000


def test_a_recorded_cache_has_a_curve_and_answers_as_before():
    plain, recorded = DefaultLookupCache(max_rows=50), DefaultLookupCache(max_rows=50, hit_rate_curve=True)
    for cache in (plain, recorded):
        for number in range(4_000):
            key = (number % 100,)
            if cache.get_if_present(key) is None:
                cache.put(key, [(number,)])
    assert recorded.find_present([(number,) for number in range(100)]) == plain.find_present(
        [(number,) for number in range(100)]
    )
    (recording,) = recordings_of([recorded._cache]).values()
    assert recording.requests == 4_100
    assert recording.curve("lru").at_entries(110) > 0.9


@pytest.mark.parametrize("option", ["refresh_after_write_ms", "stale_if_error_ms", "expiry_jitter_ms"])
def test_the_curve_of_a_cache_whose_entries_grow_old_has_all_requests(option):
    cache = DefaultLookupCache(max_rows=50, expire_after_write_ms=1_000, hit_rate_curve=True, **{option: 500})
    for number in range(200):
        key = (number % 100,)
        if cache.get_if_present(key) is None:
            cache.put(key, [(number,)])
    assert cache.recording.requests == 200
    assert cache._cache.stats().misses == 200
