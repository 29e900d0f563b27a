"""Miniatures sample no more than the distances, rest once much is counted, and still tell how W-TinyLFU does."""

import random

import pytest

from millpond.cache import new_cache
from millpond.cache.curves import miniatures, record, recording, reuse_distances
from millpond.cache.curves.miniatures import Miniatures
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import recordings_of
from millpond.cache.miniature import LEAST_HASH, limit_of


def scans(count, seed=5):
    """Popular keys, and between them keys that never come again: what W-TinyLFU is good at."""
    draw = random.Random(seed)
    popular = [draw.getrandbits(60) for _ in range(2_000)]
    for _ in range(count):
        yield draw.choice(popular)
        yield draw.getrandbits(60)


def rate(policy, entries, count):
    """The oracle: the cache itself."""
    cache = new_cache("oracle", max_entries=entries, policy=policy)
    for key in scans(count):
        if cache.get(key) is None:
            cache.put(key, True)
    return cache.stats().hit_rate


def recorded(entries, count):
    found = Recording(cache := new_cache("recorded", max_entries=entries, policy="w-tinylfu"))
    for key in scans(count):
        found.asked(key)
    return found, cache


def test_fewer_keys_are_simulated_when_fewer_have_a_distance(monkeypatch):
    monkeypatch.setattr(reuse_distances, "_USES_PER_SHARE", 6_000)
    found, cache = recorded(1_500, 60_000)
    assert found._distances.share == reuse_distances._LEAST_SHARE
    assert found._miniatures._share <= found._distances.share
    told = found.curve("w-tinylfu").at_entries(1_500) - found.curve("lru").at_entries(1_500)
    gained = rate("w-tinylfu", 1_500, 60_000) - rate("lru", 1_500, 60_000)
    assert gained > 0.06
    assert told == pytest.approx(gained, abs=0.06)
    assert cache.policy == "w-tinylfu"


def test_miniatures_rest_between_spans_that_are_counted(monkeypatch):
    monkeypatch.setattr(miniatures, "_COUNTED_USES", 1_500)
    monkeypatch.setattr(recording, "_USES_PER_FIT", 64)
    asked = []
    use = Miniatures.use
    monkeypatch.setattr(Miniatures, "use", lambda *given: (asked.append(1), use(*given)))
    found, cache = recorded(600, 60_000)
    small = found._miniatures
    sampled = 120_000 * small._share
    assert 0.1 * sampled < len(asked) < 0.7 * sampled, "without rests it were all of them"
    told = found.curve("w-tinylfu").at_entries(600) - found.curve("lru").at_entries(600)
    assert told == pytest.approx(rate("w-tinylfu", 600, 60_000) - rate("lru", 600, 60_000), abs=0.06)
    assert cache.bounds.max_entries == 600


def test_of_batches_that_are_looked_up_whole_the_gain_is_that_of_such_a_cache():
    keys = list(scans(40_000))
    rates = {}
    found = Recording(cache := new_cache("batched", max_entries=600, policy="w-tinylfu"))
    for policy in ("lru", "w-tinylfu"):
        other = new_cache("oracle", max_entries=600, policy=policy)
        for start in range(0, len(keys), 200):
            batch = list(dict.fromkeys(keys[start : start + 200]))
            present = other.get_present(batch)
            for key in batch:
                if key not in present:
                    other.put(key, True)
        rates[policy] = other.stats().hit_rate
    for start in range(0, len(keys), 200):
        found.asked_many(list(dict.fromkeys(keys[start : start + 200])))
    assert found.curve("lru").at_entries(600) == pytest.approx(rates["lru"], abs=0.03)
    told = found.curve("w-tinylfu").at_entries(600) - found.curve("lru").at_entries(600)
    assert told == pytest.approx(rates["w-tinylfu"] - rates["lru"], abs=0.06)
    assert cache.stats().entries == 0


def test_a_rest_ends_in_uses_that_are_not_counted(monkeypatch):
    monkeypatch.setattr(miniatures, "_COUNTED_USES", 4)
    small = Miniatures(1, began=100.0)
    for number in range(4):
        small.use(7, float("inf"), 101.0 + number)
    assert small.limit == LEAST_HASH
    gains = small.gains([1], requests=104.0)
    small.attend(110.0, 1.0)
    assert small.limit == LEAST_HASH, "it rests three times as long as it counted"
    small.attend(120.0, 1.0)
    assert small.limit == limit_of(small._share)
    for _ in range(small._left):
        small.use(8, 1.0, 121.0)
    assert small.gains([1], requests=121.0) == pytest.approx(gains)
    small.use(8, float("inf"), 122.0)
    assert small.gains([1], requests=122.0) > gains


def test_what_was_counted_long_ago_counts_less(monkeypatch):
    monkeypatch.setattr(miniatures, "_COUNTED_USES", 4)
    small = Miniatures(1)
    for number in range(4):
        small.use(7, float("inf"), 1.0 + number)
    before = small.gains([1], requests=4.0)
    small.age()
    assert small.gains([1], requests=2.0) == pytest.approx(before)


def test_once_the_weights_are_known_few_writes_are_told(monkeypatch):
    monkeypatch.setattr(recording, "_WRITES_TOLD_AT_FIRST", 100)
    weighed = []

    def weigh(key, _value):
        weighed.append(key)
        return 10

    cache = record(new_cache("weighed", max_entries=50, weigher=weigh))
    (found,) = recordings_of([cache._inner]).values()
    before = len(weighed)
    for key in range(1_000):
        cache.put(key, key)
    by_the_cache, by_the_recording = 1_000, len(weighed) - before - 1_000
    assert by_the_cache > 0
    assert 100 <= by_the_recording <= 100 + 900 / recording._WRITES_PER_TOLD + 1
    assert found._mean_bytes(cache) == 10
