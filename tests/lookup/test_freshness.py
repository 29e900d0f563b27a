"""Rows are loaded again before they expire, outlive a source that is down for a while, and do not expire together."""

import threading

import pytest

from millpond.errors import OptionError, UnavailableError
from millpond.lookup import AsyncPythonLookup, DefaultLookupCache, LookupOptions, LookupTable, PythonLookup

from .in_columns import EVERY_FORM
from .partial_source import KEYS, PATIENCE_S, ROWS

EVERY_LOOKUP = pytest.mark.parametrize("open_lookup", EVERY_FORM.values(), ids=EVERY_FORM)
PARTIAL = "lookup.partial-cache."


class Versions:
    """A source whose rows have a version, and which may be down."""

    def __init__(self):
        self.version, self.down, self.asked = 1, False, []
        self.answering = threading.Event()
        self.answering.set()
        self.source = PythonLookup(self.rows, KEYS, ROWS)

    def rows(self, number):
        assert self.answering.wait(PATIENCE_S)
        self.asked.append(number)
        if self.down:
            raise ConnectionError("down")
        return [(f"{number} of version {self.version}",)]


def refreshed(lookup):
    """Wait until no refresh is under way."""
    getattr(lookup, "lookup_in_columns", lookup)._background.close()


@EVERY_LOOKUP
def test_a_key_that_is_used_is_loaded_again_before_it_expires_and_nobody_waits_for_that(open_lookup):
    now_ms, versions = 0, Versions()
    limits = {"expire_after_write_ms": 100, "refresh_after_write_ms": 60}
    lookup = open_lookup(versions.source, DefaultLookupCache(**limits, clock=lambda: now_ms))
    old, new = [("1 of version 1",)], [("1 of version 2",)]
    lookup.lookup_many([(1,), (2,)])
    versions.version, now_ms = 2, 59
    assert lookup.lookup((1,)) == old
    refreshed(lookup)
    assert versions.asked == [1, 2]
    now_ms = 60
    versions.answering.clear()
    assert lookup.lookup((1,)) == lookup.lookup((1,)) == old
    versions.answering.set()
    refreshed(lookup)
    assert versions.asked == [1, 2, 1]
    assert lookup.lookup((1,)) == new
    now_ms = 159
    versions.down = True
    assert lookup.lookup((1,)) == new
    refreshed(lookup)
    assert lookup.lookup((1,)) == new, "a refresh that fails leaves what is there"
    refreshed(lookup)
    stats = lookup.stats()
    assert (stats.hit_count, stats.miss_count) == (6, 2)
    assert stats.load_count == len(versions.asked) - 1, "the last failure is told with the next lookup"
    now_ms = 160
    with pytest.raises(UnavailableError, match="down"):
        lookup.lookup((1,))
    with pytest.raises(UnavailableError, match="down"):
        lookup.lookup((2,))


@EVERY_LOOKUP
def test_a_refresh_of_an_invalidated_key_is_not_cached(open_lookup):
    now_ms, versions = 0, Versions()
    lookup = open_lookup(
        versions.source, DefaultLookupCache(refresh_after_write_ms=60, max_rows=9, clock=lambda: now_ms)
    )
    lookup.lookup((1,))
    now_ms = 60
    versions.answering.clear()
    lookup.lookup((1,))
    lookup.invalidate([(1,)])
    versions.answering.set()
    refreshed(lookup)
    versions.version = 2
    assert lookup.lookup((1,)) == [("1 of version 2",)]


@EVERY_LOOKUP
def test_rows_that_are_too_old_are_given_while_the_source_is_down_and_for_a_bounded_time(open_lookup):
    now_ms, versions = 0, Versions()
    limits = {"expire_after_write_ms": 100, "stale_if_error_ms": 50}
    lookup = open_lookup(versions.source, DefaultLookupCache(**limits, clock=lambda: now_ms))
    lookup.lookup_many([(1,), (2,)])
    versions.version, versions.down, now_ms = 2, True, 149
    old = {(1,): [("1 of version 1",)], (2,): [("2 of version 1",)]}
    assert lookup.lookup_many([(1,), (2,)]) == old
    assert lookup.stats().miss_count == 4
    assert lookup.stats().num_load_failure > 0
    with pytest.raises(UnavailableError, match="down"):
        lookup.lookup_many([(1,), (3,)])
    versions.down = False
    assert lookup.lookup((1,)) == [("1 of version 2",)]
    versions.down, now_ms = True, 150
    with pytest.raises(UnavailableError, match="down"):
        lookup.lookup((2,))


@EVERY_LOOKUP
@pytest.mark.parametrize("batched", [False, True])
def test_a_bug_of_the_source_is_no_reason_for_old_rows(open_lookup, batched):
    now_ms = 0

    def rows(number):
        if now_ms:
            raise ZeroDivisionError
        return [(str(number),)]

    class Batched(PythonLookup):
        def lookup_many(self, keys):
            return {key: self.lookup(key) for key in keys}

    source = (Batched if batched else PythonLookup)(rows, KEYS, ROWS)
    limits = {"expire_after_write_ms": 100, "stale_if_error_ms": 50}
    lookup = open_lookup(source, DefaultLookupCache(**limits, clock=lambda: now_ms))
    lookup.lookup((1,))
    now_ms = 120
    with pytest.raises(ZeroDivisionError):
        lookup.lookup((1,))


@EVERY_LOOKUP
def test_keys_that_were_loaded_together_do_not_expire_together(open_lookup):
    now_ms, versions = 0, Versions()
    limits = {"expire_after_write_ms": 1_000, "expiry_jitter_ms": 500}
    lookup = open_lookup(versions.source, DefaultLookupCache(**limits, clock=lambda: now_ms))
    keys = [(number,) for number in range(1_000)]
    lookup.lookup_many(keys)
    missed = []
    for moment in (499, 625, 750, 875, 1_000):
        now_ms = moment
        before = lookup.stats().miss_count
        lookup.lookup_many(keys)
        missed.append(lookup.stats().miss_count - before)
    assert missed[0] == 0
    assert sum(missed) == 1_000
    assert all(100 < count < 400 for count in missed[1:])


@EVERY_LOOKUP
def test_a_clock_that_steps_back_lengthens_no_age(open_lookup):
    now_ms, versions = 100_000, Versions()
    limits = {"expire_after_write_ms": 100, "stale_if_error_ms": 1_000_000}
    lookup = open_lookup(versions.source, DefaultLookupCache(**limits, clock=lambda: now_ms))
    lookup.lookup((1,))
    now_ms = 50_000
    lookup.lookup((1,))
    now_ms += 100
    lookup.lookup((1,))
    assert lookup.stats().miss_count == 2


def test_freshness_options_are_checked_together():
    limits = {"lookup.cache": "PARTIAL", PARTIAL + "max-rows": 10}
    parsed = LookupOptions.parse(
        {**limits, PARTIAL + "expire-after-write": "10 min", PARTIAL + "refresh-after-write": "5 min",
         PARTIAL + "stale-if-error": "1 h", PARTIAL + "expiry-jitter": "1 min"}
    )  # fmt: skip
    assert (parsed.refresh_after_write_ms, parsed.stale_if_error_ms, parsed.expiry_jitter_ms) == (
        300_000,
        3_600_000,
        60_000,
    )
    with pytest.raises(OptionError, match=r"(?s)stale-if-error' needs.*expiry-jitter' needs"):
        LookupOptions.parse({**limits, PARTIAL + "stale-if-error": 5, PARTIAL + "expiry-jitter": 5})
    with pytest.raises(OptionError, match=r"refresh-after-write = 95 ms: expected less than .* 95 ms"):
        LookupOptions.parse(
            {
                **limits,
                PARTIAL + "expire-after-write": 100,
                PARTIAL + "expiry-jitter": 5,
                PARTIAL + "refresh-after-write": 95,
            }
        )
    with pytest.raises(OptionError, match="expiry-jitter = 100 ms: expected less"):
        LookupOptions.parse({**limits, PARTIAL + "expire-after-write": 100, PARTIAL + "expiry-jitter": 100})

    async def find(n):
        return []

    with pytest.raises(OptionError, match=r"'planes'.*refresh-after-write.*asynchronous"):
        LookupTable("planes", AsyncPythonLookup(find, KEYS, ROWS), {**limits, PARTIAL + "refresh-after-write": 5})
