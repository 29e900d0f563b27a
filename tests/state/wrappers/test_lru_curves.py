"""An LRU cache of state can be recorded and resized, and answers as before."""

import random

import pyarrow as pa
import pytest

from millpond.cache import Bounds
from millpond.cache.curves import Budget, reports
from millpond.cache.curves.registry import recordings_of
from millpond.errors import OptionError
from millpond.state import msgspec_serializer
from millpond.state.backend.batch_access import ManyKeys, add_many, clear_many, get_many, update_many
from millpond.state.spi import HeapBackend, LruStateCache, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA

GROUPS = range(4)
VALUE = pa.schema([("count", pa.int64())])
COUNT = StateDescriptor("count", StateKind.VALUE, VALUE)
LOG = StateDescriptor("log", StateKind.LIST, VALUE)
PAGES = StateDescriptor("pages", StateKind.MAP, VALUE, pa.schema([("page", pa.string())]))


def opened(**options):
    return LruStateCache(HeapBackend(GROUPS), **options)


def set_current_key(cache, number):
    cache.enter(number % len(GROUPS))
    cache.context.key = (number,)


def acts(cache, count=4_000):
    """Random reads and writes of three states; every answer."""
    value, log, pages = cache.value_state(COUNT), cache.list_state(LOG), cache.map_state(PAGES)
    generator, answers = random.Random(1), []
    for _ in range(count):
        set_current_key(cache, int(generator.expovariate(0.01)))
        match generator.randrange(6):
            case 0:
                answers.append(value.get())
            case 1:
                value.update((generator.randrange(9),))
            case 2:
                answers.append(list(log.get()))
            case 3:
                log.append((generator.randrange(9),))
            case 4:
                answers.append((pages.contains(("home",)), pages.get(("home",))))
            case 5:
                pages.put(("home",), (generator.randrange(9),))
    return answers


@pytest.mark.parametrize("limit", [{"max_entries": 100}, {"max_bytes": 50_000}], ids=str)
def test_a_recorded_cache_answers_as_one_that_is_not(limit):
    plain, recorded = opened(**limit), opened(**limit, hit_rate_curve=True)
    assert acts(recorded) == acts(plain)
    assert recorded.stats() == plain.stats()
    (recording,) = recordings_of([recorded]).values()
    assert 1_500 < recording.requests <= recorded.stats().hits + recorded.stats().misses
    assert recordings_of([plain]) == {}


def test_a_recording_hears_of_every_way_to_read_a_value():
    numbers = StateDescriptor("number", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
    cache = opened(max_entries=100, hit_rate_curve=True)
    value = cache.value_state(numbers)
    (recording,) = recordings_of([cache]).values()
    set_current_key(cache, 1)
    for read in (value.get, value.exists, lambda: value.add(2), lambda: value.update_with(lambda old: old + 1)):
        before = recording.requests
        read()
        assert recording.requests == before + 1
    keys = ManyKeys.of([(1,), (2,), (1,)], [1, 1, 1])
    for read, answer in (
        (lambda: add_many(cache, value, keys, 5), None),
        (lambda: get_many(cache, value, keys), [13, 5, 13]),
        (lambda: clear_many(cache, value, keys), None),
    ):
        before = recording.requests
        assert read() == answer
        assert recording.requests == before + 3
    assert value.get() is None
    before = recording.requests
    update_many(cache, value, keys, [7, 8, 9])
    assert recording.requests == before, "what is only written neither hits nor misses"


def test_its_curve_tells_the_hit_rate_of_other_sizes():
    small = opened(max_entries=100, hit_rate_curve=True)
    value = small.value_state(COUNT)
    for turn in range(20_000):
        set_current_key(small, turn % 400)
        value.get()
    assert small.stats().hits == 0
    (report,) = [one for one in reports() if one.name.startswith("state") and one.requests == 20_000]
    assert report.curve.at_entries(450) > 0.9
    assert report.policy == "lru"


def test_a_cache_that_shrinks_writes_what_is_dirty_and_loses_nothing():
    cache = opened(max_entries=100)
    value = cache.value_state(COUNT)
    for number in range(100):
        set_current_key(cache, number)
        value.update((number,))
    cache.resize(Bounds(10))
    for _ in range(2_000):
        set_current_key(cache, 1)
    assert cache.stats().entries == 10
    assert cache.bounds == Bounds(10)
    for number in range(100):
        set_current_key(cache, number)
        assert value.get() == (number,)
    cache.resize(Bounds(200))
    acts(cache, 6_000)
    assert 100 < cache.stats().entries <= 200


def test_a_bound_of_another_kind_is_refused():
    for bounds in (Bounds(None, 1_000), Bounds(0), Bounds(10, 10)):
        with pytest.raises(OptionError, match="max_"):
            opened(max_entries=100).resize(bounds)


def test_a_budget_resizes_a_cache_of_state():
    cache = opened(max_entries=100, hit_rate_curve=True)
    value = cache.value_state(COUNT)
    (recording,) = recordings_of([cache]).values()
    for turn in range(20_000):
        set_current_key(cache, turn % 400)
        value.get()
        recording._distances.weigh(hash(("count", cache.context.key)), 100)
    assert Budget(100_000, lambda: recordings_of([cache])).apply() != []
    for _ in range(2_000):
        set_current_key(cache, 1)
    assert cache.bounds.max_entries >= 350
