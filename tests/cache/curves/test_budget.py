"""A budget moves room to where it brings hits, and says so."""

import logging
import threading

import pytest

from millpond.cache import new_cache
from millpond.cache.curves import Budget, record
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import recordings
from millpond.errors import OptionError

from .test_recording import ask
from .test_reuse_distances import zipf


def two_caches(prefix, **options):
    """One that much room helps, and one that it does not; the functions that a budget over them needs."""
    caches = {
        name: record(new_cache(f"{prefix} {name}", weigher=lambda _key, _value: 100, **options))
        for name in ("looping", "scanned")
    }
    names = {f"{prefix} {name}" for name in caches}
    return *caches.values(), lambda: {name: one for name, one in recordings().items() if name in names}


def test_room_goes_from_a_cache_that_never_hits_to_one_that_would(caplog):
    looping, scanned, chosen = two_caches("split", max_bytes=50_000)
    ask(looping, list(range(900)) * 20)
    ask(scanned, range(10_000, 28_000))
    budget = Budget(100_000, chosen)
    with caplog.at_level(logging.INFO, logger="millpond.cache"):
        done = budget.apply()
    assert done == budget.done
    assert {resized.cache: resized.after for resized in done} == {
        "split looping": looping.bounds.max_bytes,
        "split scanned": scanned.bounds.max_bytes,
    }
    assert looping.bounds.max_bytes >= 90_000
    assert looping.bounds.max_bytes + scanned.bounds.max_bytes <= 100_000
    assert scanned.stats().bytes <= scanned.bounds.max_bytes
    assert "split scanned: 50 kB to 2.5 kB" in caplog.text
    assert "split looping: 50 kB to 9" in caplog.text
    before = looping.stats().hits
    ask(looping, list(range(900)) * 3)
    assert looping.stats().hits - before > 1_500
    assert budget.apply() == []


def test_a_cache_that_is_bounded_in_entries_is_resized_in_entries():
    looping, scanned, chosen = two_caches("entries", max_entries=500)
    ask(looping, zipf(0.7, count=20_000, of=2_000))
    ask(scanned, range(20_000))
    Budget(100_000, chosen).apply()
    assert looping.bounds.max_entries > 800
    assert looping.bounds.max_bytes is None
    assert scanned.bounds.max_entries < 100


def test_nothing_moves_before_there_is_something_to_go_by():
    looping, scanned, chosen = two_caches("early", max_bytes=50_000)
    ask(looping, range(10))
    assert Budget("100kb", chosen).apply() == []
    assert looping.bounds.max_bytes == scanned.bounds.max_bytes == 50_000


def test_a_started_budget_is_applied_until_it_is_closed():
    applied = threading.Event()

    def none() -> dict[str, Recording]:
        applied.set()
        return {}

    budget = Budget(1_000_000, none)
    budget.start(every_ms=1)
    assert applied.wait(10)
    budget.close()
    assert "millpond-budget" not in {thread.name for thread in threading.enumerate()}
    budget.close()


@pytest.mark.parametrize("budget", ["2 gigs", 0, None])
def test_a_budget_that_is_no_size_is_refused(budget):
    with pytest.raises(OptionError, match="budget"):
        Budget(budget)
