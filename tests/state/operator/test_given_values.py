"""What a caller does to a value that was given or handed out becomes state with an update, and only then."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from millpond.errors import DataError
from millpond.state import WriteBack
from millpond.state.operator.states import States
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import CachedValues, HeapBackend
from millpond.state.wrappers.lru.backend import LruStateCache

GROUPS = range(4)


@dataclass
class Point:
    x: int


@pytest.fixture(params=["heap", "rocksdb", "lru over heap", "lru over rocksdb", "write-back over heap"])
def backend(request, tmp_path):
    made = RocksDbBackend(GROUPS, Path(tmp_path, "db")) if "rocksdb" in request.param else HeapBackend(GROUPS)
    if request.param.startswith("lru"):
        made = LruStateCache(made, max_entries=8)
    if request.param.startswith("write-back"):
        made = CachedValues(made, WriteBack(max_size=8))
    yield made
    made.close()


def set_current_key(backend, key="ann"):
    backend.enter(1)
    backend.context.key = (key,)


def committed(snapshot):
    return [value for _, cells in snapshot.changes() for value in cells.values]


def test_a_list_that_get_returned_after_an_update_does_not_reach_the_checkpoint(backend):
    state = States(backend).value("list", list[int])
    set_current_key(backend)
    state.update([1])
    held = state.get()
    snapshot = backend.commit()
    held.append(666)
    assert committed(snapshot) == [[1]]


@pytest.mark.parametrize("serializer", [None, "pickle"])
def test_an_object_changed_after_its_update_is_state_as_it_was_updated(backend, serializer):
    state = States(backend).value("point", Point, serializer=serializer)
    set_current_key(backend)
    point = Point(1)
    state.update(point)
    point.x = 5
    snapshot = backend.commit()
    assert committed(snapshot) == [Point(1)]
    set_current_key(backend)
    assert state.get() == Point(1)


def test_elements_and_entries_changed_after_they_were_given_are_state_as_they_were_given(backend):
    states = States(backend)
    several, by_name = states.list("several", Point), states.map("by_name", str, Point)
    set_current_key(backend)
    first, second, third = Point(1), Point(2), Point(3)
    several.put([first])
    several.append(second)
    by_name.put("a", third)
    for point in (first, second, third, *several.get(), by_name.get("a")):
        point.x = 99
    backend.commit()
    set_current_key(backend)
    assert (list(several.get()), by_name.get("a")) == ([Point(1), Point(2)], Point(3))


def test_what_cannot_be_written_or_read_again_is_refused_at_the_update(backend):
    state = States(backend).value("anything", object, serializer="pickle")
    set_current_key(backend)
    with pytest.raises(DataError, match=r"'anything' of key \('ann',\).*can write"):
        state.update({"f": lambda: 0})
    assert state.get() is None
