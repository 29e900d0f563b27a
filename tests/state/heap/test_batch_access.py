"""A value state of many keys at once is the same as one key after the other, on every backend."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.state.heap.batch_access import ManyKeys, clear_many, get_many, update_many
from millpond.state.operator.ttl_handles import TtlValue
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.lru.backend import LruStateCache
from tests.state.spillable.restless import Restless

FLAT = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())]))
MUTABLE = StateDescriptor("list", StateKind.VALUE, pa.schema([("l", pa.list_(pa.int64()))]))
TTL = StateDescriptor("short", StateKind.VALUE, pa.schema([("n", pa.int64())]), ttl=Ttl(10))

_KEYS = st.lists(st.integers(0, 11), max_size=12)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "update", "clear", "single", "commit", "rollback", "undo"]), _KEYS, st.integers(0, 9)
    ),
    max_size=12,
)


def _many(keys):
    """Three key groups; keys in any order, so that a group may come in several runs."""
    return ManyKeys.of([(key,) for key in keys], [key % 3 for key in keys])


_OPEN = {
    "heap": lambda _: HeapBackend(range(3)),
    "lru": lambda _: LruStateCache(HeapBackend(range(3)), max_entries=2),
    "spillable": lambda folder: Restless(range(3), folder),
}


@pytest.mark.parametrize("kind_of_backend", _OPEN)
@pytest.mark.parametrize("descriptor", [FLAT, MUTABLE, TTL], ids=lambda descriptor: descriptor.name)
@given(steps=_STEPS)
@settings(max_examples=30, deadline=None)
def test_many_keys_are_read_and_changed_as_one_by_one(kind_of_backend, descriptor, steps):
    with TemporaryDirectory() as folder, closing(_OPEN[kind_of_backend](Path(folder, "state"))) as backend:
        _compare_with_dictionaries(backend, descriptor, steps)


def _compare_with_dictionaries(backend, descriptor, steps):
    state = backend.value_state(descriptor) if descriptor.ttl is None else TtlValue(backend, descriptor, descriptor.ttl)
    value = (lambda n: ([n],)) if descriptor is MUTABLE else lambda n: (n,)
    live, committed, before, undoable = {}, {}, {}, False
    for kind, keys, number in steps:
        many = _many(keys)
        if kind == "get":
            assert get_many(backend, state, many) == [live.get(key) for key in keys]
        elif kind == "update":
            update_many(backend, state, many, [value(number + at) for at in range(len(keys))])
            live.update((key, value(number + at)) for at, key in enumerate(keys))
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
                    key: found if isinstance(found, tuple) else None
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
