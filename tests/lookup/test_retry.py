"""A failure that passes is tried again, and no failure is taken for an answer."""

import random

import pytest

from millpond.errors import UnavailableError
from millpond.lookup import (
    DefaultLookupCache,
    PythonLookup,
    Retries,
)

from .partial_source import KEYS, ROWS, Longest, Source, open_lookup


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
