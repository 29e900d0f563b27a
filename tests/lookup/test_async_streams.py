"""Streams of asynchronous lookups: in order or as they come, bounded, and ended by the first failure."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lookup.async_source import Batched, Source, asked, cached, rows_of, run


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 9)), max_size=6), max_size=12),
    max_rows=st.one_of(st.none(), st.integers(0, 6)),
    capacity=st.integers(1, 4),
    ordered=st.booleans(),
    kind=st.sampled_from([Source, Batched]),
)
def test_any_cache_order_and_capacity_give_the_answers_of_the_source(batches, max_rows, capacity, ordered, kind):
    async def look():
        source = kind()
        async with cached(source, max_rows, capacity=capacity) as lookup:
            answers = [answer async for answer in lookup.stream(batches, ordered=ordered)]
        assert source.most_under_way <= capacity
        stats = lookup.stats()
        assert stats.load_count == stats.miss_count
        return answers

    answers = run(look())
    assert sorted(map(repr, answers)) == sorted(
        repr((batch, {key: rows_of(*key) for key in batch})) for batch in batches
    )
    if ordered:
        assert [batch for batch, _ in answers] == batches


def test_in_order_a_slow_key_holds_up_those_behind_it_and_unordered_it_does_not():
    async def look(ordered):
        source = Source()
        source.hold(1)
        async with cached(source, capacity=3) as lookup:
            stream = lookup.stream([[(1,)], [(2,)], [(3,)], [(4,)]], ordered=ordered)
            first = asyncio.ensure_future(anext(stream))
            await asked(source, 3)
            for _ in range(20):
                await asyncio.sleep(0)
            came_first = first.done()
            source.gates[1].set()
            return came_first, [(await first)[0], *[batch async for batch, _ in stream]]

    assert run(look(ordered=True)) == (False, [[(1,)], [(2,)], [(3,)], [(4,)]])
    came_first, order = run(look(ordered=False))
    assert came_first
    assert order[0] != [(1,)]
    assert sorted(order) == [[(1,)], [(2,)], [(3,)], [(4,)]]


def test_no_more_is_asked_ahead_of_the_reader_than_the_capacity():
    async def look():
        taken = []

        def batches():
            for n in range(100):
                taken.append(n)
                yield [(n,)]

        async with cached(Source(), capacity=5) as lookup:
            stream = lookup.stream(batches())
            await anext(stream)
            assert len(taken) == 5
            await stream.aclose()

    run(look())


def test_a_stream_takes_batches_as_they_come():
    async def events():
        for n in range(3):
            await asyncio.sleep(0)
            yield [(n,)]

    async def look():
        async with cached(Source()) as lookup:
            return [rows async for _, rows in lookup.stream(events())]

    assert run(look()) == [{(n,): rows_of(n)} for n in range(3)]


def test_the_first_failure_ends_a_stream_and_cancels_what_it_waited_for():
    async def look():
        source = Source()
        source.hold(2)
        source.failures = [ValueError("broken")]
        async with cached(source, capacity=2) as lookup:
            with pytest.raises(ValueError, match="broken"):
                async for _ in lookup.stream([[(1,)], [(2,)]]):
                    pass
            assert len(lookup._in_flight) == 1  # others may wait for that load, so it goes on
        assert lookup._in_flight == {}

    run(look())
