"""The sketch never forgets a use before it ages, and ages by halves."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millpond.cache.sketch import FrequencySketch


@given(st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=300))
def test_an_estimate_is_never_below_the_truth(keys):
    sketch = FrequencySketch(64)
    for key in keys:
        sketch.increment(key)
    for key, count in Counter(keys).items():
        assert min(15, count) <= sketch.frequency(key) <= 15


def test_most_estimates_are_exact_when_the_rows_are_as_wide_as_the_keys_are_many():
    sketch = FrequencySketch(1_024)
    for key in range(1_024):
        for _ in range(key % 4):
            sketch.increment(key)
    exact = sum(sketch.frequency(key) == key % 4 for key in range(1_024))
    assert exact > 900


@given(st.lists(st.lists(st.integers(0, 40), max_size=300), max_size=5), st.integers(-(1 << 62), 1 << 62))
def test_counting_many_is_counting_one_by_one(batches, limit):
    together, one_by_one = FrequencySketch(64), FrequencySketch(64)
    for keys in batches:
        spreads = [one_by_one.increment(key) for key in keys]
        assert together.increment_all(keys, limit) == [spread for spread in spreads if spread < limit]
    assert [together.frequency(key) for key in range(41)] == [one_by_one.frequency(key) for key in range(41)]


def test_keys_at_the_cap_are_counted_again_once_all_counts_were_halved():
    together, one_by_one = FrequencySketch(64), FrequencySketch(64)
    keys = [key for number in range(3_000) for key in ("hot", "warm" if number % 3 else number)]
    frequencies = []
    for start in range(0, len(keys), 10):
        part = keys[start : start + 10]
        together.increment_all(part, 0)
        for key in part:
            one_by_one.increment(key)
        assert together._rows == one_by_one._rows
        frequencies.append(one_by_one.frequency("hot"))
    assert 15 in frequencies
    assert any(later < earlier for earlier, later in pairwise(frequencies))


@given(st.lists(st.integers(), max_size=200))
def test_growing_keeps_every_estimate(keys):
    sketch = FrequencySketch(64)
    for key in keys:
        sketch.increment(key)
    before = {key: sketch.frequency(key) for key in keys}
    sketch.ensure_width(1_000)
    assert before == {key: sketch.frequency(key) for key in keys}


def test_what_was_popular_once_fades():
    sketch = FrequencySketch(64)
    for _ in range(15):
        sketch.increment("hot")
    for key in range(64 * 10):
        sketch.increment(key)
    assert sketch.frequency("hot") < 15
