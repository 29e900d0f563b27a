"""A source that answers in columns is one like any other: whatever fails, the other keys of a batch have their rows."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.lookup import DefaultLookupCache, FoundColumns, LookupFunction

from .in_columns import open_in_columns
from .partial_source import KEYS, PATIENCE_S, ROWS


class Columns(LookupFunction):
    """Every key has one row; a request with a key of `poison` raises `error`."""

    key_schema, row_schema = KEYS, ROWS

    def __init__(self, *poison, error=ValueError):
        self.poison, self.error = set(poison), error
        self.entered, self.leave = threading.Event(), threading.Event()
        self.leave.set()

    def lookup(self, keys):
        raise NotImplementedError("batches are looked up in columns")

    def lookup_columns(self, keys):
        (numbers,) = keys
        self.entered.set()
        assert self.leave.wait(PATIENCE_S)
        if self.poison & set(numbers.to_pylist()):
            raise self.error("poison")
        return FoundColumns(np.arange(len(numbers)), pa.record_batch([numbers.cast(pa.string())], schema=ROWS))


@pytest.mark.parametrize("cached", [[], [(1,), (2,)]])
def test_a_batch_whose_every_missing_key_fails_has_the_declared_columns(cached):
    lookup = open_in_columns(Columns(7, 8), DefaultLookupCache(max_rows=9))
    lookup.lookup_many(cached)
    answers = lookup.lookup_each([*cached, (7,), (8,)])
    assert set(answers.failures) == {(7,), (8,)}
    assert answers.rows == {key: [(str(key[0]),)] for key in cached}
    matched = lookup.lookup_in_columns.match([pa.array([7])], isolate=True)
    assert matched.rows.rows.schema == ROWS


def test_who_waits_for_a_request_without_any_answer_has_the_rows_of_the_other_keys():
    source = Columns(7)
    lookup = open_in_columns(source, DefaultLookupCache(max_rows=9))
    lookup.lookup((1,))
    source.entered.clear(), source.leave.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lookup.lookup_each, [(7,)])
        assert source.entered.wait(PATIENCE_S)
        waiting = pool.submit(lookup.lookup_each, [(1,), (7,)])
        while lookup.stats().hit_count < 2:
            threading.Event().wait(0.001)
        source.leave.set()
        assert set(first.result(PATIENCE_S).failures) == {(7,)}
        assert waiting.result(PATIENCE_S).rows == {(1,): [("1",)]}


def test_rows_that_are_too_old_are_given_to_who_waits_for_a_source_that_is_down():
    now_ms = 0
    cache = DefaultLookupCache(max_rows=9, expire_after_write_ms=10, stale_if_error_ms=1_000, clock=lambda: now_ms)
    source = Columns()
    lookup = open_in_columns(source, cache)
    lookup.lookup_many([(1,), (7,)])
    now_ms = 20
    source.poison, source.error = {7}, UnavailableError
    source.entered.clear(), source.leave.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lookup.lookup_many, [(7,)])
        assert source.entered.wait(PATIENCE_S)
        waiting = pool.submit(lookup.lookup_many, [(7,), (1,)])
        while lookup.stats().hit_count < 1:
            threading.Event().wait(0.001)
        source.leave.set()
        assert first.result(PATIENCE_S) == {(7,): [("7",)]}
        assert waiting.result(PATIENCE_S) == {(7,): [("7",)], (1,): [("1",)]}
