"""The serving infos are read when they are too old, and on demand, and a failure is not remembered."""

import pytest

from millpond.errors import OptionError, UnavailableError
from millpond.kv import MemoryStore
from millpond.serving import ServingInfoCache

from .world import ROUTE_PLAN, Clock, FailingStore, upload


def test_an_info_is_read_again_only_when_it_is_eight_seconds_old():
    store, clock = FailingStore(), Clock()
    infos = ServingInfoCache(store, clock=clock)
    first = upload(store, ROUTE_PLAN, {}, landing_ms=1)
    assert infos.get_many(["route"]) == [first]
    second = upload(store, ROUTE_PLAN, {}, landing_ms=2)
    clock.now_ms = 7_999
    assert infos.get_many(["route"]) == [first]
    clock.now_ms = 8_000
    assert infos.get_many(["route"]) == [second]
    assert len(store.asked) == infos.reads == 2


def test_an_absence_is_known_for_as_long_as_a_presence():
    store, clock = MemoryStore(), Clock()
    infos = ServingInfoCache(store, refresh_ms=100, clock=clock)
    assert infos.get_many(["route"]) == [None]
    info = upload(store, ROUTE_PLAN, {})
    assert infos.get_many(["route"]) == [None]
    clock.now_ms = 100
    assert infos.get_many(["route"]) == [info]


def test_a_refresh_on_demand_reads_now():
    store = MemoryStore()
    infos = ServingInfoCache(store, clock=Clock())
    infos.get_many(["route"])
    info = upload(store, ROUTE_PLAN, {})
    assert infos.refresh(["route"]) == infos.get_many(["route"]) == [info]


def test_several_that_are_due_are_read_in_one_call():
    store = FailingStore()
    assert ServingInfoCache(store).get_many(["a", "b", "c"]) == [None, None, None]
    assert store.asked == [["serving_info"] * 3]


def test_a_failed_read_raises_and_the_next_one_reads_again():
    store = FailingStore()
    info = upload(store, ROUTE_PLAN, {})
    infos = ServingInfoCache(store, clock=Clock())
    store.failing = True
    with pytest.raises(UnavailableError):
        infos.get_many(["route"])
    store.failing = False
    assert infos.get_many(["route"]) == [info]


def test_an_age_below_zero_is_refused():
    with pytest.raises(OptionError, match="refresh_ms is -1"):
        ServingInfoCache(MemoryStore(), refresh_ms=-1)
