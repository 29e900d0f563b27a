"""The curve of LRU is LRU's own hit rate where every key is sampled, and near it where few are."""

import random
from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cache import new_cache
from millpond.cache.curves import reuse_distances
from millpond.cache.curves.reuse_distances import ReuseDistances

KEYS = st.lists(st.integers(0, 25), min_size=1, max_size=300)


def lru_hits(keys, size, weigh=lambda _key: 1):
    """The oracle: an LRU list, and room for `size`."""
    held, hits = OrderedDict(), 0
    for key in keys:
        if key in held:
            held.move_to_end(key)
            hits += 1
        else:
            held[key] = weigh(key)
            while sum(held.values()) > size:
                held.popitem(last=False)
    return hits


def told(keys, distances):
    for key in keys:
        spread = hash((key,))
        if spread < distances.limit:
            distances.use(spread)
    return distances


def rates(distances, sizes, requests):
    return distances.hit_rates(np.array(sizes, dtype=float), requests=requests).tolist()


@given(KEYS)
def test_with_every_key_in_the_sample_the_curve_is_exact(keys):
    distances = told(keys, ReuseDistances(share=1.0))
    sizes = range(1, 27)
    expected = [lru_hits(keys, size) / len(keys) for size in sizes]
    assert rates(distances, sizes, len(keys)) == pytest.approx(expected)


def batched_lru_hits(batches, size):
    """The oracle of batches: an LRU list that is asked for all keys of a batch before one of them is put."""
    held, hits = OrderedDict(), 0
    for batch in batches:
        present = [key for key in batch if key in held]
        hits += len(present)
        for key in present:
            held.move_to_end(key)
        for key in dict.fromkeys(batch):
            if key not in present:
                held[key] = True
                if len(held) > size:
                    held.popitem(last=False)
    return hits


@pytest.mark.parametrize("together", [20, 300])
def test_of_batches_that_are_looked_up_whole_the_curve_is_that_of_such_a_cache(together):
    keys = zipf(0.9, count=30_000, of=2_000)
    batches = [list(dict.fromkeys(keys[start : start + together])) for start in range(0, len(keys), together)]
    distances, requests = ReuseDistances(share=1.0), sum(map(len, batches))
    for batch in batches:
        assert len(distances.use_together([hash((key,)) for key in batch])) == len(batch)
    assert list(distances._recency) == sorted(distances._uses)
    assert list(distances._hashes) == sorted(distances._hashes)
    for size, told in zip(sizes := (300, 700, 1_500), rates(distances, sizes, requests), strict=True):
        assert told == pytest.approx(batched_lru_hits(batches, size) / requests, abs=0.005)


def state_of(distances):
    """All that is counted and known, with the counts as whole numbers."""
    arrays = (distances._hashes, distances._uses, distances._weights, distances._recency)
    counts = [round(count * distances.share, 6) for count in distances._counts]
    return [list(each) for each in arrays], counts, distances.now, distances.limit, round(distances._cold, 6)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_batch_in_columns_is_the_same_batch_key_by_key(monkeypatch, share):
    monkeypatch.setattr(reuse_distances, "_MOST_KEYS", 2_000)
    monkeypatch.setattr(reuse_distances, "_KEPT_KEYS", 1_500)
    monkeypatch.setattr(reuse_distances, "_USES_PER_SHARE", 6_000)
    plain, columns = ReuseDistances(share), ReuseDistances(share)
    keys, start = zipf(0.9, count=30_000, of=5_000), 0
    while start < len(keys):
        length = random.Random(start).randrange(1, 1_500)
        batch = [spread for key in keys[start : start + length] if (spread := hash((key,))) < plain.limit]
        monkeypatch.setattr(reuse_distances, "_LARGE_BATCH", len(batch) + 1)
        told = plain.use_together(batch)
        monkeypatch.setattr(reuse_distances, "_LARGE_BATCH", 0)
        assert columns.use_together(batch) == told
        for spread in batch[:20]:
            plain.weigh(spread, spread & 255)
            columns.weigh(spread, spread & 255)
        assert state_of(columns) == state_of(plain)
        start += length
    assert plain.share < share
    assert len(plain._hashes) > 300


@given(KEYS)
def test_batches_of_one_key_are_keys_one_after_the_other(keys):
    one, other = ReuseDistances(share=1.0), ReuseDistances(share=1.0)
    for key in keys:
        assert [one.use(hash((key,)))] == other.use_together([hash((key,))])


def test_in_batches_too_the_sample_stays_bounded_and_becomes_smaller_with_time(monkeypatch):
    monkeypatch.setattr(reuse_distances, "_MOST_KEYS", 100)
    monkeypatch.setattr(reuse_distances, "_KEPT_KEYS", 80)
    monkeypatch.setattr(reuse_distances, "_LATEST", 5_000)
    monkeypatch.setattr(reuse_distances, "_USES_PER_SHARE", 500)
    distances = ReuseDistances()
    for start in range(0, 50_000, 50):
        spreads = [hash((key % 20_000,)) for key in range(start, start + 50)]
        distances.use_together([spread for spread in spreads if spread < distances.limit])
        assert len(distances._hashes) <= 100
    assert list(distances._recency) == sorted(distances._uses)
    assert distances.keys() == pytest.approx(20_000, rel=0.5)
    assert rates(distances, [5_000], 50_000)[0] < 0.1


@given(KEYS)
def test_renumbering_the_uses_changes_no_distance(keys):
    plain, renumbered = ReuseDistances(share=1.0), ReuseDistances(share=1.0)
    for key in keys:
        assert renumbered.use(hash((key,))) == plain.use(hash((key,)))
        renumbered._renumber()


def test_uses_are_renumbered_when_their_numbers_end(monkeypatch):
    monkeypatch.setattr(reuse_distances, "_LATEST", 40)
    keys = [number % 7 for number in range(1_000)]
    distances = told(keys, ReuseDistances(share=1.0))
    assert rates(distances, [6, 7], 1_000) == pytest.approx([0.0, 0.993])


def test_the_limit_falls_so_that_the_sample_stays_bounded(monkeypatch):
    monkeypatch.setattr(reuse_distances, "_MOST_KEYS", 100)
    monkeypatch.setattr(reuse_distances, "_KEPT_KEYS", 80)
    distances = told(range(50_000), ReuseDistances())
    assert 80 <= len(distances._hashes) <= 100
    assert list(distances._hashes) == sorted(distances._hashes)
    assert distances._hashes[-1] < distances.limit
    assert list(distances._recency) == sorted(distances._uses)
    assert distances.keys() == pytest.approx(50_000, rel=0.3)
    assert rates(distances, [1_000_000], 50_000) == [0.0]


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_a_sample_of_skewed_keys_is_within_a_point_on_average(exponent):
    keys = zipf(exponent, count=100_000, of=40_000)
    distances = told(keys, ReuseDistances())
    sizes = np.geomspace(200, 40_000, 8).astype(int).tolist()
    errors = np.abs(np.array(rates(distances, sizes, len(keys))) - [plain_rate(keys, size) for size in sizes])
    assert errors.mean() < 0.01


def test_the_bytes_of_the_last_used_entries_are_those_of_an_lru_cache_in_bytes():
    keys = zipf(1.0, count=60_000, of=10_000)
    # Hot keys are heavy: a mean weight for all would be far off.
    hottest = {key for key, _ in Counter(keys).most_common(500)}
    weight = {key: 1_000 if key in hottest else 50 for key in keys}
    distances = ReuseDistances()
    for key in keys:
        spread = hash((key,))
        if spread < distances.limit:
            distances.use(spread)
            distances.weigh(spread, weight[key])
    entries = np.array([250.0, 1_000.0, 3_000.0])
    for expected, size in zip(rates(distances, entries, len(keys)), distances.bytes_of(entries), strict=True):
        cache = new_cache("bytes", max_bytes=int(size), weigher=lambda key, _: weight[key])
        for key in keys:
            if cache.get(key) is None:
                cache.put(key, True)
        assert cache.stats().hit_rate == pytest.approx(expected, abs=0.02)


def test_what_was_counted_long_ago_counts_less():
    distances = told([1, 2, 3] * 100, ReuseDistances(share=1.0))
    distances.age()
    scan = list(range(10, 160))
    told(scan, distances)
    assert rates(distances, [3], 300) == pytest.approx([297 / 600])


def plain_rate(keys, size):
    cache = new_cache("plain", max_entries=size)
    for key in keys:
        if cache.get(key) is None:
            cache.put(key, True)
    return cache.stats().hit_rate


def zipf(exponent, *, count, of, seed=1):
    generator = random.Random(seed)
    names = [generator.getrandbits(60) for _ in range(of)]
    return generator.choices(names, [1 / rank**exponent for rank in range(1, of + 1)], k=count)


def test_the_sample_becomes_smaller_with_time_and_what_was_counted_stays(monkeypatch):
    monkeypatch.setattr(reuse_distances, "_USES_PER_SHARE", 500)
    keys = [number % 2_000 for number in range(60_000)]
    distances = told(keys, ReuseDistances())
    assert distances.share == reuse_distances._LEAST_SHARE
    assert len(distances._hashes) == pytest.approx(2_000 / 16, rel=0.4)
    assert list(distances._recency) == sorted(distances._uses)
    assert distances._hashes[-1] < distances.limit
    low, high = rates(distances, [1_000, 3_000], len(keys))
    assert low < 0.15
    assert high > 0.95


def test_the_sample_becomes_smaller_with_keys_that_are_never_put_too(monkeypatch):
    monkeypatch.setattr(reuse_distances, "_USES_PER_SHARE", 500)
    distances = ReuseDistances()
    for number in range(60_000):
        if (spread := hash((number,))) < distances.limit:
            distances.use_in_turn([spread], only_put=True)
    assert distances.share == reuse_distances._LEAST_SHARE
    assert rates(distances, [1_000_000], 60_000) == pytest.approx([0.0], abs=0.02)
