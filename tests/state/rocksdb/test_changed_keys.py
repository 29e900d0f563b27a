"""The changed keys of a version: packed or not, each comes once and in order, and delta and rollbacks are whole."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.rocksdb import changed_keys
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.rocksdb.changed_keys import ChangedKeys
from millpond.state.spi import ABSENT, StateDescriptor, StateKind

COUNT = pa.schema([("count", pa.int64())])
MAP = StateDescriptor("pages", StateKind.MAP, COUNT, COUNT)
KEYS = 40


@given(st.lists(st.one_of(st.binary(max_size=6), st.none()), max_size=50))
def test_packed_or_not_each_key_comes_once_and_in_order(keys):
    changed, expected = ChangedKeys(), set()
    for key in keys:
        if key is None:
            changed.pack()
        else:
            changed.recent.add(key)
            expected.add(key)
    assert list(changed) == sorted(expected)
    assert bool(changed) == bool(list(changed))


def test_many_keys_are_packed(monkeypatch):
    monkeypatch.setattr(changed_keys, "_MOST_RECENT", 10)
    changed = ChangedKeys()
    for first in range(0, 100, 4):
        changed.update(b"%03d" % number for number in range(first, first + 4))
    assert len(changed.recent) <= 10
    assert list(changed) == [b"%03d" % number for number in range(100)]


@pytest.fixture
def backend(tmp_path, monkeypatch):
    monkeypatch.setattr(changed_keys, "_MOST_RECENT", 3)
    monkeypatch.setattr(changed_keys, "_BLOCK", 2)
    backend = RocksDbBackend(range(4), tmp_path / "state")
    yield backend
    backend.close()


def entries(backend, pages):
    found = {}
    for key_group in range(4):
        backend.enter(key_group)
        for key in range(key_group, KEYS, 4):
            backend.context.key = (key,)
            for (page,), (count,) in pages.items():
                found[key, page] = count
    return found


def write(backend, pages, count):
    for key in range(KEYS):
        backend.enter(key % 4)
        backend.context.key = (key,)
        pages.put((key % 3,), (count,))
        pages.remove((7,))


def test_delta_rollback_and_revert_are_whole_though_keys_are_packed(backend):
    pages = backend.map_state(MAP)
    write(backend, pages, 1)
    backend.commit().release()
    backend.acknowledge()
    first = entries(backend, pages)
    assert first == {(key, key % 3): 1 for key in range(KEYS)}

    write(backend, pages, 2)
    assert backend.rollback()
    assert entries(backend, pages) == first

    write(backend, pages, 3)
    snapshot = backend.commit()
    delta = {
        (key, page): value
        for _, cells in snapshot.changes()
        for (key,), (page,), value in zip(cells.keys, cells.map_keys, cells.values, strict=True)
    }
    assert delta == {(key, key % 3): (3,) for key in range(KEYS)}
    assert ABSENT not in delta.values()
    snapshot.release()
    backend.undo_commit()
    assert entries(backend, pages) == first
