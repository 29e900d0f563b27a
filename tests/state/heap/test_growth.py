"""Large dictionaries grow before they must, and are what they were."""

import sys
import threading
from contextlib import contextmanager

import pytest

from millpond.state import HeapBackend, StateDescriptor, StateKind
from millpond.state.backend.protocols import Cells
from millpond.state.heap.growth import make_room
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer

COUNT = StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
NEARLY_FULL = 40_000
"""Of 65,536 slots, of which two thirds may be in use."""
KEYS = {
    "text": str,
    "number": int,
    "row": lambda number: (number, "x"),
    "date or none": lambda number: None if number == 7 else number + 0.5,
}


@pytest.mark.parametrize("kind", KEYS)
def test_one_that_is_getting_full_grows_once_and_is_what_it_was(kind):
    table = {KEYS[kind](number): number for number in range(NEARLY_FULL)}
    before, size = list(table.items()), sys.getsizeof(table)
    assert make_room(table)
    assert list(table.items()) == before
    assert sys.getsizeof(table) > 1.9 * size
    assert not make_room(table)


@pytest.mark.parametrize("keys", [0, 1, 20_000, 45_000, 58_000])
def test_a_small_one_and_one_with_room_are_left_alone(keys):
    table = dict.fromkeys(map(str, range(keys)))
    size = sys.getsizeof(table)
    assert not make_room(table)
    assert sys.getsizeof(table) == size


def test_one_whose_keys_were_deleted_is_what_is_left():
    table = dict.fromkeys(map(str, range(2 * NEARLY_FULL)), 1)
    for number in range(NEARLY_FULL):
        del table[str(number)]
    left = dict(table)
    make_room(table)
    assert table == left
    assert list(table) == list(left)


@contextmanager
def switching_often():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def test_another_thread_never_sees_the_keys_that_nobody_has():
    keys = dict.fromkeys(map(str, range(NEARLY_FULL)))
    tables = [dict(keys) for _ in range(30)]
    table, sizes, done = tables[0], set(), threading.Event()

    def read():
        while not done.is_set():
            sizes.add(len(table.copy()))

    reader = threading.Thread(target=read)
    with switching_often():
        reader.start()
        for table in tables:
            make_room(table)
        done.set()
        reader.join(30)
    assert sizes == {NEARLY_FULL}


def filled(backend, *key_groups):
    for key_group in key_groups:
        keys = [(f"{key_group}-{number}",) for number in range(NEARLY_FULL)]
        backend.load(COUNT, Cells([key_group] * len(keys), keys, None, [1] * len(keys)))
    return backend


def sizes(backend):
    return [sys.getsizeof(table) for table in backend.states["count"].tables.live.values()]


def test_what_is_restored_has_room():
    cramped = filled(HeapBackend(range(4), lambda: False), 1, 2)
    roomy = filled(HeapBackend(range(4)), 1, 2)
    assert all(2 * small > large > 1.9 * small for small, large in zip(sizes(cramped), sizes(roomy), strict=True))


def test_one_table_grows_at_the_end_of_a_version_while_there_is_memory():
    memory = []
    backend = filled(HeapBackend(range(4), lambda: bool(memory)), 1, 2)
    before = sizes(backend)
    backend.commit().release()
    assert sizes(backend) == before
    memory.append("enough")
    backend.commit().release()
    assert sizes(backend)[0] > before[0]
    assert sizes(backend)[1] == before[1]
    backend.commit().release()
    assert sizes(backend)[1] > before[1]
