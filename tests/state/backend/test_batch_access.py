"""A value state of many keys at once is the same as one key after the other, on every backend."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.state import WriteBack, msgspec_serializer
from millpond.state.backend.batch_access import ManyKeys, add_many, clear_many, get_many, update_many
from millpond.state.operator.ttl_handles import TtlValue
from millpond.state.spi import ABSENT, CachedValues, HeapBackend, RocksDbBackend, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.lru.backend import LruStateCache
from tests.state.conformance.subjects import IN_MEMORY
from tests.state.spillable.restless import Restless

FLAT = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())]))
NUMBER = StateDescriptor("number", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
MUTABLE = StateDescriptor("list", StateKind.VALUE, pa.schema([("l", pa.list_(pa.int64()))]))
TTL = StateDescriptor("short", StateKind.VALUE, pa.schema([("n", pa.int64())]), ttl=Ttl(10))

_KEYS = st.lists(st.integers(0, 11), max_size=12)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "update", "add", "clear", "single", "commit", "rollback", "undo"]),
        _KEYS,
        st.integers(0, 9),
    ),
    max_size=12,
)


def _many(keys):
    """Three key groups; keys in any order, so that a group may come in several runs."""
    return ManyKeys.of([(key,) for key in keys], [key % 3 for key in keys])


def _rocksdb(folder):
    return RocksDbBackend(range(3), folder, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)


_OPEN = {
    "heap": lambda _: HeapBackend(range(3)),
    "lru": lambda _: LruStateCache(HeapBackend(range(3)), max_entries=2),
    "lru of all": lambda _: LruStateCache(HeapBackend(range(3)), max_entries=20),
    "lru of bytes": lambda _: LruStateCache(HeapBackend(range(3)), max_bytes=500),
    "lru over rocksdb": lambda folder: LruStateCache(_rocksdb(folder), max_entries=4),
    "rocksdb": _rocksdb,
    "king": lambda _: CachedValues(HeapBackend(range(3)), WriteBack(max_size=2)),
    "spillable": lambda folder: Restless(range(3), folder),
}


@pytest.mark.parametrize("kind_of_backend", _OPEN)
@pytest.mark.parametrize("descriptor", [FLAT, NUMBER, MUTABLE, TTL], ids=lambda descriptor: descriptor.name)
@given(steps=_STEPS)
@settings(max_examples=25, deadline=None)
def test_many_keys_are_read_and_changed_as_one_by_one(kind_of_backend, descriptor, steps):
    with TemporaryDirectory(dir=IN_MEMORY) as folder, closing(_OPEN[kind_of_backend](Path(folder, "state"))) as backend:
        _compare_with_dictionaries(backend, descriptor, steps)


def _compare_with_dictionaries(backend, descriptor, steps):
    state = backend.value_state(descriptor) if descriptor.ttl is None else TtlValue(backend, descriptor, descriptor.ttl)
    value = {"list": lambda n: ([n],), "number": lambda n: n}.get(descriptor.name, lambda n: (n,))
    live, committed, before, undoable = {}, {}, {}, False
    for kind, keys, number in steps:
        many = _many(keys)
        if kind == "get":
            assert get_many(backend, state, many) == [live.get(key) for key in keys]
        elif kind == "update":
            update_many(backend, state, many, [value(number + at) for at in range(len(keys))])
            live.update((key, value(number + at)) for at, key in enumerate(keys))
        elif kind == "add" and descriptor is NUMBER:
            numbers = [number + at for at in range(len(keys))]
            add_many(backend, state, many, numbers if number % 2 else number)
            for key, each in zip(keys, numbers, strict=True):
                live[key] = live.get(key, 0) + (each if number % 2 else number)
        elif kind == "clear":
            clear_many(backend, state, many)
            for key in keys:
                live.pop(key, None)
        elif kind == "single":
            for key in keys:
                backend.enter(key % 3)
                backend.context.key = (key,)
                state.update(value(number))
                live[key] = value(number)
        elif kind == "commit":
            changes = dict(backend.commit().changes())
            if descriptor.ttl is None and descriptor.name in changes:
                cells = changes[descriptor.name]
                assert {key: live.get(key) for (key,) in cells.keys} == {
                    key: None if found is ABSENT else found
                    for (key,), found in zip(cells.keys, cells.values, strict=True)
                }
            assert descriptor.name in changes or live == committed
            before, committed, undoable = committed, dict(live), True
        elif kind == "rollback":
            backend.rollback()
            live = dict(committed)
        elif undoable:
            backend.rollback()
            backend.undo_commit()
            live, committed, undoable = dict(before), before, False
    everything = list(range(12))
    assert get_many(backend, state, _many(everything)) == [live.get(key) for key in everything]


def test_a_snapshot_does_not_see_what_many_keys_change_after_it():
    backend = HeapBackend(range(3))
    state = backend.value_state(FLAT)
    update_many(backend, state, _many([0, 1, 3]), [(1,), (2,), (3,)])
    snapshot = backend.commit()
    update_many(backend, state, _many([0, 6]), [(10,), (11,)])
    clear_many(backend, state, _many([3]))
    assert dict(zip(snapshot.cells("count", 0).keys, snapshot.cells("count", 0).values, strict=True)) == {
        (0,): (1,),
        (3,): (3,),
    }
    assert dict(snapshot.changes())["count"].values == [(1,), (3,), (2,)]


def test_no_keys_at_all_change_nothing():
    backend = HeapBackend(range(3))
    state = backend.value_state(FLAT)
    update_many(backend, state, _many([]), [])
    assert get_many(backend, state, _many([])) == []
    assert not list(backend.commit().changes())


@pytest.mark.parametrize("kind_of_backend", _OPEN)
@pytest.mark.parametrize("unfit", [[1, "2"], [1, True], [1, 1 << 63], True, 1.5, [1 << 64, 1]], ids=str)
def test_a_number_that_does_not_fit_is_refused_by_name(kind_of_backend, unfit):
    with TemporaryDirectory(dir=IN_MEMORY) as folder, closing(_OPEN[kind_of_backend](Path(folder, "state"))) as backend:
        state = backend.value_state(NUMBER)
        many = _many([0, 3])
        update_many(backend, state, many, [7, 1 << 63])
        with pytest.raises(DataError, match="state 'number'"):
            add_many(backend, state, many, unfit)
        found = get_many(backend, state, many)
        assert found[0] in (7, 8)
        assert found[1] == 1 << 63


@pytest.mark.parametrize("kind_of_backend", _OPEN)
def test_only_numbers_are_added_up(kind_of_backend):
    with TemporaryDirectory(dir=IN_MEMORY) as folder, closing(_OPEN[kind_of_backend](Path(folder, "state"))) as backend:
        with pytest.raises(OptionError, match=r"add\(\) adds to numbers, and state 'count' is"):
            add_many(backend, backend.value_state(FLAT), _many([0, 3]), 1)
        assert get_many(backend, backend.value_state(FLAT), _many([0, 3])) == [None, None]
