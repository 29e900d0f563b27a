"""Asynchronous lookups: bounded, in order or as they come, one load a key, and no failure for an answer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import (
    AsyncLookupFunction,
    AsyncLookupFunctionProvider,
    AsyncPartialCachingLookup,
    AsyncPythonLookup,
    BlockingLookup,
    CacheMetricGroup,
    DefaultLookupCache,
    LookupTable,
    PartialCachingAsyncLookupProvider,
    PythonLookup,
    ThreadedLookup,
)
from millpond.lookup.caches import blocking
from millpond.metrics import NullRecorder
from tests.lookup.async_source import KEYS, PARTIAL, PATIENCE_S, ROWS, Batched, Source, asked, cached, rows_of, run


def test_callers_who_miss_one_key_share_one_load_and_the_others_count_hits():
    async def look():
        source = Source()
        source.hold(4)
        async with cached(source) as lookup:
            callers = [asyncio.ensure_future(lookup.lookup((4,))) for _ in range(5)]
            await asked(source)
            source.gates[4].set()
            assert await asyncio.gather(*callers) == [rows_of(4)] * 5
            assert source.asked == [4]
            assert (lookup.stats().hit_count, lookup.stats().miss_count, lookup.stats().load_count) == (4, 1, 1)

    run(look())


def test_a_caller_who_is_cancelled_leaves_the_load_to_the_others():
    async def look():
        source = Source()
        source.hold(4)
        async with cached(source) as lookup:
            first = asyncio.ensure_future(lookup.lookup((4,)))
            await asked(source)
            second = asyncio.ensure_future(lookup.lookup((4,)))
            first.cancel()
            await asyncio.sleep(0)
            source.gates[4].set()
            assert await second == rows_of(4)
            assert source.asked == [4]

    run(look())


def test_a_failure_reaches_everyone_who_waits_and_is_not_cached():
    async def look():
        source = Source()
        source.failures = [ConnectionError("reset")]
        async with cached(source) as lookup:
            results = await asyncio.gather(*(lookup.lookup((4,)) for _ in range(3)), return_exceptions=True)
            assert all(isinstance(result, UnavailableError) for result in results)
            assert await lookup.lookup((4,)) == rows_of(4)
            assert lookup.stats().num_load_failure == 1

    run(look())


def test_a_passing_failure_is_tried_again_and_a_lasting_one_is_not():
    async def look():
        source = Source()
        async with cached(source, max_retries=2) as lookup:
            source.failures = [ConnectionError("reset"), TimeoutError()]
            assert await lookup.lookup((4,)) == rows_of(4)
            assert (lookup.stats().load_count, lookup.stats().num_load_failure) == (1, 0)
            source.failures = [KeyError("bug")]
            with pytest.raises(KeyError, match="bug"):
                await lookup.lookup((5,))
        assert source.asked == [4, 4, 4, 5]

    run(look())


def test_a_slow_source_ends_in_a_time_out():
    async def look():
        source = Source()
        source.hold(4)
        async with cached(source, timeout_ms=20) as lookup:
            with pytest.raises(UnavailableError, match="no answer within 20 ms"):
                await lookup.lookup((4,))
            source.gates[4].set()
            assert await lookup.lookup((4,)) == rows_of(4)

    run(look())


def test_a_batch_is_one_request_where_the_function_can_answer_it():
    async def look():
        source = Batched()
        async with cached(source) as lookup:
            await lookup.lookup_many([(1,), (2,), (1,)])
            await lookup.lookup_many([(2,), (3,)])
        return source.asked

    assert run(look()) == [[(1,), (2,)], [(3,)]]


def test_wrong_keys_and_wrong_answers_are_refused_and_null_keys_match_nothing():
    async def wrong(n):
        return [(n, n)]

    async def look():
        async with cached(AsyncPythonLookup(wrong, KEYS, ROWS)) as lookup:
            with pytest.raises(DataError, match="got str 'x'"):
                await lookup.lookup(("x",))
            with pytest.raises(DataError, match=r"1 values \(text\)"):
                await lookup.lookup((7,))
            assert await lookup.lookup((None,)) == []

    run(look())


def test_a_function_that_needs_its_own_key_is_refused_instead_of_waiting_for_ever():
    async def look():
        async def crossing(n):
            await asyncio.sleep(0)
            return await lookup.lookup((3 - n,) if n < 3 else (n,))

        async with cached(AsyncPythonLookup(crossing, KEYS, ROWS)) as lookup:
            with pytest.raises(OptionError, match="wait for itself"):
                await lookup.lookup((5,))
            errors = await asyncio.gather(lookup.lookup((1,)), lookup.lookup((2,)), return_exceptions=True)
            assert all(isinstance(error, OptionError) for error in errors)

    run(look())


def test_rows_loaded_before_an_invalidation_are_not_cached():
    async def look():
        source = Source()
        source.hold(4)
        async with cached(source) as lookup:
            before = asyncio.ensure_future(lookup.lookup((4,)))
            await asked(source)
            lookup.invalidate([(4,)])
            source.gates[4].set()
            assert await before == rows_of(4)
            await lookup.lookup((4,))
            assert source.asked == [4, 4]

    run(look())


def test_a_table_opens_its_asynchronous_source_for_those_who_wait_and_for_those_who_await():
    table = LookupTable("planes", Source(), PARTIAL | {"table.exec.async-lookup.buffer-capacity": 2})
    with table:
        blocking = table.open()
        assert isinstance(blocking, BlockingLookup)
        assert blocking.lookup_many([(n,) for n in range(9)]) == {(n,): rows_of(n) for n in range(9)}
        assert table.source.most_under_way == 2
        blocking.invalidate([(4,)])
        assert blocking.lookup((4,)) == rows_of(4)

        async def look():
            async with await table.open_async() as lookup:
                return await lookup.lookup((5,))

        assert run(look()) == rows_of(5)
        assert table.stats().load_count == 11
    with pytest.raises(OptionError, match="not open"):
        blocking.lookup((1,))
    assert not [thread for thread in threading.enumerate() if thread.name == "millpond-lookup"]


def test_many_threads_share_a_blocking_lookup():
    source = Batched()
    with LookupTable("planes", source, PARTIAL) as table, ThreadPoolExecutor(4) as pool:
        lookup = table.open()
        answers = pool.map(lookup.lookup_many, [[(n % 7,), (n % 5,)] for n in range(100)])
        assert list(answers) == [{(n % 7,): rows_of(n % 7), (n % 5,): rows_of(n % 5)} for n in range(100)]
        assert table.stats().load_count == 7


def test_a_blocking_lookup_called_in_its_own_loop_is_refused_instead_of_waiting_for_ever():
    opened = []

    async def nested(n):
        return opened[0].lookup((n,))

    with LookupTable("planes", AsyncPythonLookup(nested, KEYS, ROWS), PARTIAL) as table:
        opened.append(table.open())
        with pytest.raises(OptionError, match="its own event loop"):
            opened[0].lookup((1,))


def test_a_source_that_does_not_open_leaves_no_thread():
    class Down(Source):
        async def open(self):
            raise ConnectionError("refused")

    with pytest.raises(UnavailableError, match="refused"):
        LookupTable("planes", Down(), PARTIAL).open()
    assert not [thread for thread in threading.enumerate() if thread.name == "millpond-lookup"]


def test_providers_say_how_an_asynchronous_function_is_cached():
    source = Source()
    plain = LookupTable("planes", AsyncLookupFunctionProvider.of(source))
    caching = LookupTable("planes", PartialCachingAsyncLookupProvider.of(source, DefaultLookupCache(max_rows=9)))
    for table, times in ((plain, 2), (caching, 1)):
        source.asked.clear()
        with table.open() as lookup:
            lookup.lookup((4,))
            lookup.lookup((4,))
        assert len(source.asked) == times


def test_a_plain_source_cannot_be_awaited_unless_it_is_put_into_threads():
    plain = PythonLookup(rows_of, KEYS, ROWS)
    with pytest.raises(OptionError, match="ThreadedLookup"):
        LookupTable("planes", plain).async_lookup_function()
    with LookupTable("planes", ThreadedLookup(plain, threads=3), PARTIAL).open() as lookup:
        assert lookup.lookup_many([(n,) for n in range(9)]) == {(n,): rows_of(n) for n in range(9)}
    with pytest.raises(OptionError, match="at least 1, got 0"):
        ThreadedLookup(plain, threads=0)


@pytest.mark.parametrize("choice", ["capacity", "timeout_ms"])
def test_bounds_are_positive(choice):
    with pytest.raises(OptionError, match=f"{choice}: expected at least 1, got 0"):
        cached(Source(), **{choice: 0})


def test_a_key_that_fails_leaves_the_others_their_rows_however_many_a_request_asks_for():
    async def rows_but_of_2(n):
        if n == 2:
            raise ValueError("poison")
        return rows_of(n)

    class Together(Source):
        async def lookup_many(self, keys):
            return {key: await rows_but_of_2(*key) for key in keys}

    async def look(source):
        lookup = cached(source)
        async with lookup:
            answers = await lookup.lookup_each([(1,), (2,), (4,)])
            return answers, lookup.stats()

    for source in (AsyncPythonLookup(rows_but_of_2, KEYS, ROWS), Together()):
        answers, stats = asyncio.run(look(source))
        assert answers.rows == {(1,): rows_of(1), (4,): rows_of(4)}
        assert list(answers.failures) == [(2,)]
        assert (stats.num_load_failure, stats.num_cached_record) == (1, 2)


def test_a_source_that_does_not_close_in_time_is_named(monkeypatch):
    class Slow(Source):
        async def close(self):
            await asyncio.sleep(60)

    monkeypatch.setattr(blocking, "_CLOSE_S", 0.05)
    lookup = BlockingLookup(AsyncPartialCachingLookup(Slow(), None, CacheMetricGroup("planes")))
    lookup.open()
    with pytest.raises(UnavailableError, match=r"'planes'.*did not close within"):
        lookup.close()
    lookup.close()


def test_a_lookup_that_a_close_comes_upon_fails_instead_of_waiting_for_ever():
    entered, closing, leave = threading.Event(), threading.Event(), threading.Event()

    class Slow(AsyncLookupFunction):
        key_schema, row_schema = KEYS, ROWS

        async def lookup(self, keys):
            entered.set()
            await asyncio.sleep(PATIENCE_S)
            return []

        async def close(self):
            closing.set()
            await asyncio.to_thread(leave.wait, PATIENCE_S)

    lookup = BlockingLookup(AsyncPartialCachingLookup(Slow(), None, CacheMetricGroup("planes")))
    lookup.open()
    with ThreadPoolExecutor(3) as pool:
        before = pool.submit(lookup.lookup, (1,))
        assert entered.wait(PATIENCE_S)
        entered.clear()
        ended = pool.submit(lookup.close)
        assert closing.wait(PATIENCE_S)
        meanwhile = pool.submit(lookup.lookup, (2,))
        assert entered.wait(PATIENCE_S)
        leave.set()
        for under_way in (before, meanwhile):
            with pytest.raises(UnavailableError, match="'planes' was closed during this lookup"):
                under_way.result(PATIENCE_S / 2)
        ended.result(PATIENCE_S)
    with pytest.raises(OptionError, match="not open"):
        lookup.lookup((3,))


def test_threads_that_open_one_blocking_lookup_open_its_source_once_and_wait_for_that():
    opened = []

    class Slow(Source):
        async def open(self):
            await asyncio.sleep(0.05)
            opened.append(threading.current_thread())

    lookup = BlockingLookup(AsyncPartialCachingLookup(Slow(), None, CacheMetricGroup("planes")))
    together = threading.Barrier(4)

    def open_and_look_up():
        together.wait(PATIENCE_S)
        lookup.open()
        assert opened
        return lookup.lookup((2,))

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(open_and_look_up) for _ in range(4)]
        assert [answer.result(PATIENCE_S) for answer in answers] == [rows_of(2)] * 4
    lookup.close()
    assert len(opened) == 1
    assert not opened[0].is_alive()


def test_a_recorder_that_raises_leaves_no_load_whose_failure_others_get():
    class RaisesOnce(NullRecorder):
        raised = False

        def gauge(self, metric, value, *, name=""):
            if metric == "millpond_lookup_latest_load_seconds" and not self.raised:
                self.raised = True
                raise ValueError("no room for another series")

    async def look_up_twice():
        lookup = AsyncPartialCachingLookup(Source(), None, CacheMetricGroup("planes", RaisesOnce()))
        with pytest.raises(ValueError, match="another series"):
            await lookup.lookup((2,))
        return await lookup.lookup((2,))

    assert asyncio.run(look_up_twice()) == rows_of(2)
