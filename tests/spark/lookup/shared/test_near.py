"""How the limits of a table's cache are divided among the keys of an executor and those of others."""

import numpy as np
import pyarrow as pa
import pytest

from millpond.lookup import DefaultLookupCache, LookupTable, PartialCachingLookupProvider, PythonLookup
from millpond.lookup.column_cache.cache import ColumnCacheLimits
from millpond.lookup.column_cache.chunks import Rows
from millpond.lookup.column_cache.hashed_keys import HashedKeys
from millpond.spark.lookup.shared.near import NearCache, divided
from tests.spark.lookup.shared.executors import KEYS, PARTIAL, ROWS

SOURCE = PythonLookup(lambda n: [(str(n),)], KEYS, ROWS)


@pytest.mark.parametrize("limit", ["max-rows", "max-bytes"])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 8_001])
def test_both_caches_together_have_the_configured_size(limit, size):
    options = {"lookup.cache": "PARTIAL", f"lookup.partial-cache.{limit}": size}
    own, near = divided(LookupTable("numbers", SOURCE, options))
    sizes = [(own.limits.max_rows, near.max_rows), (own.limits.max_bytes, near.max_bytes)]
    unlimited, limited = sorted(sizes, key=lambda pair: pair[0] is not None)
    assert unlimited == (None, None)
    assert sum(limited) == size
    assert limited[1] == size // 8


def test_a_cache_object_of_the_users_own_is_not_divided():
    provider = PartialCachingLookupProvider.of(SOURCE, DefaultLookupCache(max_rows=5))
    table = LookupTable("numbers", provider)
    assert divided(table) == (table, None)


def hashed(numbers):
    return HashedKeys.of([pa.array(numbers, pa.int64())], KEYS)[0]


def put(near, numbers):
    keys, there = hashed(numbers), np.arange(len(numbers))
    rows = Rows(there, np.ones(len(numbers), np.int64), pa.record_batch({"text": [str(n) for n in numbers]}))
    near.put(keys, rows, np.zeros(len(numbers), np.int64), near.find(keys).invalidations)


def test_a_key_that_is_missing_twice_within_a_short_time_is_worth_keeping():
    near = NearCache(divided(LookupTable("numbers", SOURCE, PARTIAL))[1])
    assert not near.find(hashed([1, 2, 3])).again.any()
    assert near.find(hashed([2, 9])).again.tolist() == [True, False]
    put(near, [2])
    found = near.find(hashed([1, 2, 3]))
    assert (found.there.tolist(), found.again.tolist()) == ([1], [True, False, True])
    # Two generations of others later it is forgotten.
    for first in (100, 10_000):
        near.find(hashed(range(first, first + 2_048)))
    assert not near.find(hashed([9])).again.any()


def test_a_larger_near_cache_remembers_more_of_the_keys_that_it_lacked():
    near = NearCache(ColumnCacheLimits(max_rows=100_000))
    put(near, list(range(100_000, 150_000)))
    near.find(hashed(range(1_000)))
    near.find(hashed(range(1_000)))
    near.find(hashed(range(10_000, 30_000)))
    assert near.find(hashed(range(1_000))).again.all()


def test_what_is_put_after_an_invalidation_that_find_did_not_see_is_dropped():
    _, limits = divided(LookupTable("numbers", SOURCE, PARTIAL))
    near, (keys, _) = NearCache(limits), HashedKeys.of([pa.array([1, 2])], KEYS)
    rows = Rows(np.arange(2), np.ones(2, np.int64), pa.record_batch({"text": ["1", "2"]}))
    before = near.find(keys)
    assert not len(before.there)
    near.invalidate(keys.take(np.array([0])))
    near.put(keys, rows, np.zeros(2, np.int64), before.invalidations)
    assert near.size()[0] == 0
    near.put(keys, rows, np.zeros(2, np.int64), near.find(keys).invalidations)
    assert near.size()[0] == 2
    near.invalidate(None)
    assert near.size()[0] == 0
