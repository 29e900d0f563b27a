"""A report that leaves its process is made now and then, and those of several caches are put together."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.cache import new_cache
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import report_on
from millpond.cache.curves.telling import EVERY_MS, Telling, heard, together


def recorded(loop, entries=100, times=40, **options):
    """The recording of a cache that was asked for the same keys again and again, and the cache."""
    cache = new_cache("loop", max_entries=entries, **options)
    recording = Recording(cache)
    for _ in range(times):
        for key in range(loop):
            recording.asked(key)
            if cache.get(key) is None:
                cache.put(key, key)
    return recording, cache


def test_a_report_is_made_at_most_once_in_a_while():
    recording, cache = recorded(50)
    now_ms = [0]
    telling = Telling(recording, lambda: now_ms[0])
    first = telling.now()
    recording.asked(1)
    now_ms[0] = EVERY_MS - 1
    assert telling.now() is first
    now_ms[0] = EVERY_MS
    (before, after) = heard([first, None, telling.now()])
    assert after.requests == before.requests + 1
    assert after == report_on("loop", recording)
    del cache
    now_ms[0] = 2 * EVERY_MS
    assert telling.now() is None


def test_a_thread_that_comes_while_another_makes_the_first_report_gets_it_too():
    recording, cache = recorded(50)
    making, go_on = threading.Event(), threading.Event()
    present_entries = recording.present_entries

    class Slow:
        """The recording, whose size is found out only when `go_on` is set."""

        name, requests, curve, cache = recording.name, recording.requests, recording.curve, recording.cache

        def present_entries(self, cache):
            making.set()
            assert go_on.wait(60)
            return present_entries(cache)

    telling = Telling(Slow(), lambda: 0)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(telling.now)
        assert making.wait(60)
        second = threads.submit(telling.now)
        done = threading.Timer(0.2, go_on.set)
        done.start()
        assert (first.result(60), second.result(60)) == (telling.now(), telling.now())
    assert heard([second.result()])[0].requests == recording.requests
    assert cache.stats().entries == 50


def test_several_caches_have_the_hit_rate_of_all_requests_at_a_size_of_each():
    pairs = [recorded(50), recorded(200, times=30)]
    reports = [report_on("loop", recording) for recording, _ in pairs]
    both = together("lookup squares", reports)
    assert (both.name, both.present, both.requests) == ("lookup squares", 100, 50 * 40 + 200 * 30)
    assert both.entries == 150
    for size in (30, 100, 300):
        hits = sum(report.requests * report.curve.at_entries(size) for report in reports)
        assert both.curve.at_entries(size) == pytest.approx(hits / both.requests, abs=0.02)


def test_a_policy_that_one_cache_does_not_record_is_left_to_the_others():
    recording, cache = recorded(200, policy="w-tinylfu")
    whole = report_on("loop", recording)
    plain, other = recorded(200)
    alone = report_on("loop", Recording(other, ("lru",)))
    both = together("both", [whole, alone])
    assert set(both.curves) == {"lru", "w-tinylfu"}
    assert cache.stats().entries == 100
    assert plain.cache is other


def test_without_reports_there_is_none():
    assert together("nothing", []) is None
    cache = new_cache("silent", max_entries=10)
    assert together("nothing", [report_on("silent", Recording(cache))]) is None
