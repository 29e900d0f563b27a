"""A column cache holds, and lets go of, what a `DefaultLookupCache` of the same limits does."""

import gc
import tracemalloc
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.cache import new_cache
from millpond.errors import OptionError
from millpond.lookup import DefaultLookupCache, PythonLookup
from millpond.lookup.column_cache import chunks, hashed_keys, slot_log
from millpond.lookup.column_cache.cache import ColumnCache, ColumnCacheLimits
from millpond.lookup.column_cache.chunks import Rows
from millpond.lookup.column_cache.hash_index import HashIndex
from millpond.lookup.column_cache.hashed_keys import HashedKeys
from millpond.lookup.column_cache.slot_log import SlotLog

from .in_columns import open_in_columns

KEYS = {
    "number": pa.schema([("n", pa.int64())]),
    "text": pa.schema([("n", pa.string())]),
    "pair": pa.schema([("n", pa.int32()), ("code", pa.string())]),
    "decimal": pa.schema([("n", pa.decimal128(9, 2))]),
}
KEY_OF = {
    "number": lambda n: (n,),
    "text": lambda n: (f"key {n}",),
    "pair": lambda n: (n // 3, "abc"[n % 3]),
    "decimal": lambda n: (Decimal(n) / 4,),
}
NUMBERS = st.lists(st.integers(0, 30), max_size=12, unique=True)
STEPS = st.lists(st.tuples(st.sampled_from(["look up", "look up", "invalidate", "wait"]), NUMBERS), max_size=25)


def hashed(keys, schema):
    columns = [pa.array([key[place] for key in keys], field.type) for place, field in enumerate(schema)]
    return HashedKeys.of(columns, schema)[0]


def rows_of(numbers, version):
    """As many rows as the number modulo 3 says."""
    counts = np.array([number % 3 for number in numbers], np.int64)
    values = [f"{version}.{number}.{row}" for number in numbers for row in range(number % 3)]
    return Rows(np.cumsum(counts) - counts, counts, pa.record_batch({"text": pa.array(values, pa.string())}))


def python_rows(rows):
    values = rows.rows.column(0).to_pylist()
    spans = zip(rows.starts.tolist(), rows.counts.tolist(), strict=True)
    return [[(value,) for value in values[first : first + count]] for first, count in spans]


@settings(deadline=None)
@given(
    steps=STEPS,
    kind=st.sampled_from(list(KEYS)),
    max_rows=st.one_of(st.none(), st.integers(0, 20)),
    after_write=st.one_of(st.none(), st.integers(1, 40)),
    after_access=st.integers(1, 40),
    cache_missing_key=st.booleans(),
)
def test_it_holds_what_a_cache_of_rows_holds(steps, kind, max_rows, after_write, after_access, cache_missing_key):
    now_ms = 0
    limits = {
        "max_rows": max_rows,
        "expire_after_access_ms": after_access,
        "expire_after_write_ms": after_write,
        "cache_missing_key": cache_missing_key,
    }
    oracle = DefaultLookupCache(**limits, clock=lambda: now_ms)
    cache = ColumnCache(ColumnCacheLimits(**limits), clock=lambda: now_ms)
    for version, (step, numbers) in enumerate(steps):
        keys = [KEY_OF[kind](number) for number in numbers]
        in_columns = hashed(keys, KEYS[kind])
        if step == "wait":
            now_ms += sum(numbers) % 23
        elif step == "invalidate":
            cache.invalidate(in_columns)
            for key in keys:
                oracle.invalidate(key)
        else:
            present = oracle.find_present(keys)
            slots = cache.find(in_columns)
            found = cache.rows(slots[slots >= 0])
            there = [key for key, slot in zip(keys, slots.tolist(), strict=True) if slot >= 0]
            assert dict(zip(there, python_rows(found) if found else [], strict=True)) == present
            missing = np.flatnonzero(slots < 0)
            asked = [numbers[place] for place in missing.tolist()]
            rows = rows_of(asked, version)
            cache.put(in_columns.take(missing), rows)
            for number, key_rows in zip(asked, python_rows(rows), strict=True):
                oracle.put(KEY_OF[kind](number), key_rows)
        assert len(cache) == oracle.size()


@settings(deadline=None)
@given(batches=st.lists(NUMBERS, max_size=60), max_rows=st.integers(1, 12))
def test_w_tinylfu_decides_as_the_cache_below_decides_for_the_same_hashes(batches, max_rows):
    oracle = new_cache("oracle", max_entries=max_rows, policy="w-tinylfu")
    cache = ColumnCache(ColumnCacheLimits(max_rows=max_rows, policy="w-tinylfu"))
    for numbers in batches:
        keys = hashed([(number,) for number in numbers], KEYS["number"])
        present = oracle.get_present(keys.hashes.tolist())
        slots = cache.find(keys)
        assert [key for key, slot in zip(keys.hashes.tolist(), slots.tolist(), strict=True) if slot >= 0] == list(
            present
        )
        missing = keys.take(np.flatnonzero(slots < 0))
        cache.put(missing, rows_of(range(len(missing)), 0))
        for key in missing.hashes.tolist():
            oracle.put(key, True)


@settings(deadline=None)
@given(batches=st.lists(NUMBERS, max_size=40), max_rows=st.integers(1, 12))
def test_w_tinylfu_keeps_its_limit_and_its_rows_when_present_keys_are_put_again(batches, max_rows):
    cache = ColumnCache(ColumnCacheLimits(max_rows=max_rows, policy="w-tinylfu"))
    version_of = {}
    for version, numbers in enumerate(batches):
        cache.put(hashed([(number,) for number in numbers], KEYS["number"]), rows_of(numbers, version))
        version_of |= dict.fromkeys(numbers, version)
        slots = cache.find(hashed([(number,) for number in range(31)], KEYS["number"]))
        present = np.flatnonzero(slots >= 0)
        assert len(cache) == len(present) <= max_rows
        for number, slot in zip(present.tolist(), slots[present], strict=True):
            (rows,) = python_rows(cache.rows(np.array([slot])))
            assert rows == [(f"{version_of[number]}.{number}.{row}",) for row in range(number % 3)]


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 200), max_size=40, unique=True), max_size=30), max_kb=st.integers(0, 20)
)
def test_it_never_holds_more_bytes_than_it_may(batches, max_kb):
    cache = ColumnCache(ColumnCacheLimits(max_bytes=max_kb * 1_000))
    last_used = {}
    for time, numbers in enumerate(batches):
        keys = hashed([(number,) for number in numbers], KEYS["number"])
        slots = cache.find(keys)
        missing = np.flatnonzero(slots < 0)
        counts = np.ones(len(missing), np.int64)
        texts = pa.array(["x" * (10 * numbers[place]) for place in missing.tolist()], pa.string())
        cache.put(keys.take(missing), Rows(np.cumsum(counts) - counts, counts, pa.record_batch({"text": texts})))
        assert cache.nbytes <= max_kb * 1_000
        last_used |= {number: (time, slots[place] < 0, place) for place, number in enumerate(numbers)}
    by_use = sorted(last_used, key=last_used.get)
    held = [number for number in by_use if cache.find(hashed([(number,)], KEYS["number"]))[0] >= 0]
    if max_kb >= 4:  # The heaviest entry has room.
        assert held == by_use[len(by_use) - len(held) :]
        assert held or not by_use


def test_the_bytes_that_are_told_are_those_that_are_taken():
    limits = ColumnCacheLimits(max_rows=20_000)

    def fill(cache, first, last):
        for number in range(first, last, 2_000):
            numbers = range(number, number + 2_000)
            text = pa.record_batch({"text": [f"Customer {each:020d}" for each in numbers], "balance": [*numbers]})
            keys = hashed([(each,) for each in numbers], KEYS["number"])
            cache.put(keys, Rows(np.arange(2_000), np.ones(2_000, np.int64), text))

    fill(ColumnCache(limits), 0, 4_000)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
        cache = ColumnCache(limits)
        fill(cache, 0, 60_000)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert len(cache) == 20_000
    assert 0.8 <= cache.nbytes / taken <= 1.3


@pytest.mark.parametrize("hashes", [1, 5])
@settings(deadline=None, max_examples=40)
@given(batches=st.lists(NUMBERS, max_size=8), max_rows=st.integers(0, 8))
def test_keys_of_one_hash_are_told_apart(hashes, batches, max_rows):
    def few(columns, seed=0):
        """Not a hash at all."""
        return np.array([len(text) % hashes for text in columns[0].to_pylist()], np.uint64)

    source = PythonLookup(
        lambda text: [(text.upper(),)] * (len(text) % 3), KEYS["text"], pa.schema([("upper", pa.string())])
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hashed_keys, "hashes", few)
        lookup = open_in_columns(source, DefaultLookupCache(max_rows=max_rows))
        for numbers in batches:
            keys = [("k" * number,) for number in numbers]
            assert lookup.lookup_many(keys) == {key: source.lookup(key) for key in keys}


def test_what_is_gathered_stays_right_whatever_is_put_or_let_go_afterwards():
    cache = ColumnCache(ColumnCacheLimits(max_rows=4))
    first = hashed([(1,), (2,)], KEYS["number"])
    cache.put(first, rows_of([1, 2], 0))
    found = cache.rows(cache.find(first))
    for version in range(1, 20):
        cache.put(hashed([(1,), (version + 7,)], KEYS["number"]), rows_of([1, 2], version))
    assert python_rows(found) == [[("0.1.0",)], [("0.2.0",), ("0.2.1",)]]
    assert python_rows(cache.rows(cache.find(hashed([(1,)], KEYS["number"])))) == [[("19.1.0",)]]


def test_chunks_are_merged_so_that_they_stay_few():
    cache = ColumnCache(ColumnCacheLimits(max_rows=1_000))
    for number in range(2_000):
        cache.put(hashed([(number,)], KEYS["number"]), rows_of([1], number))
    assert len(cache._chunks) <= 12
    assert len(cache) == 1_000
    assert cache._chunks.nbytes < 2 * 1_000 * (10 + 4 + 4 * 8)


def test_chunks_are_not_merged_beyond_what_arrow_can_count(monkeypatch):
    monkeypatch.setattr(chunks, "_MOST_BYTES", 3_000)
    cache = ColumnCache(ColumnCacheLimits(max_rows=100))
    texts = pa.schema([("text", pa.string())])
    for number in range(40):
        row = pa.record_batch([pa.array([str(number) * 200])], schema=texts)
        cache.put(hashed([(number,)], KEYS["number"]), Rows(np.array([0]), np.array([1]), row))
    slots = cache.find(hashed([(number,) for number in range(40)], KEYS["number"]))
    assert python_rows(cache.rows(slots)) == [[(str(number) * 200,)] for number in range(40)]
    assert max(chunk.nbytes for chunk in cache._chunks._chunks.values()) <= 3_000


@given(ages_ms=st.lists(st.integers(0, 15), min_size=1, max_size=20), waits_ms=st.integers(0, 15))
def test_rows_that_bring_their_age_along_expire_when_they_are_as_old_as_rows_may_be(ages_ms, waits_ms):
    now_ms = 100
    cache = ColumnCache(ColumnCacheLimits(max_rows=50, expire_after_write_ms=10), clock=lambda: now_ms)
    numbers = list(range(len(ages_ms)))
    keys = hashed([(number,) for number in numbers], KEYS["number"])
    cache.put(keys, rows_of(numbers, 1), np.array(ages_ms, np.int64))
    assert cache.ages_ms(cache.find_stale(keys)).tolist() == ages_ms
    now_ms += waits_ms
    there = cache.find(keys) >= 0
    assert there.tolist() == [age_ms + waits_ms < 10 for age_ms in ages_ms]


def test_a_cache_without_any_limit_is_refused():
    with pytest.raises(OptionError, match="no bound"):
        ColumnCache(ColumnCacheLimits())


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), max_size=30, unique=True)), max_size=60))
def test_an_index_of_hashes_is_a_map(steps):
    index, oracle = HashIndex(), {}
    for number, (adds, keys) in enumerate(steps):
        # All begin at the same few places.
        wanted = [key for key in keys if (key not in oracle) == adds]
        hashes = np.array([key % 4 << 60 | key for key in wanted], np.uint64)
        if adds:
            slots = np.array([number * 100 + place for place in range(len(wanted))], np.int64)
            index.add(hashes, slots)
            oracle |= dict(zip(wanted, slots.tolist(), strict=True))
        else:
            index.remove(hashes)
            for key in wanted:
                del oracle[key]
        every = np.array([key % 4 << 60 | key for key in range(61)], np.uint64)
        assert index.find(every).tolist() == [oracle.get(key, -1) for key in range(61)]
        assert len(index) == len(oracle)


def test_an_index_that_grows_and_shrinks_again_and_again_finds_everything():
    index, rng = HashIndex(), np.random.default_rng(7)
    for _ in range(20):
        hashes = rng.integers(0, 1 << 63, 3_000).astype(np.uint64)
        index.add(hashes, np.arange(3_000))
        assert (index.find(hashes) == np.arange(3_000)).all()
        index.remove(hashes)
        assert (index.find(hashes) == -1).all()
    assert len(index._slots) <= 16_384


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["note", "forget"]), NUMBERS), max_size=40))
def test_a_log_of_slots_is_an_ordered_map(steps):
    log, oracle = SlotLog(), {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slot_log, "_LEAST_STALE", 3)
        patched.setattr(slot_log, "_WINDOW", 4)
        for now_ms, (step, slots) in enumerate(steps):
            if step == "note":
                log.note(np.array(slots, np.int64), now_ms // 2)
            else:
                log.forget(np.array(slots, np.int64))
            for slot in slots:
                oracle.pop(slot, None)
                if step == "note":
                    oracle[slot] = now_ms // 2
            assert [slot for part in log.oldest() for slot in part.tolist()] == list(oracle)
            at_ms = now_ms // 4
            assert log.due(at_ms).tolist() == [slot for slot, noted in oracle.items() if noted <= at_ms]
            first = log.first_ms
            assert (first is None) == (not oracle)
            assert first is None or first == min(oracle.values())
