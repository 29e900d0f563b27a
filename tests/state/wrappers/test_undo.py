"""A call that is undone leaves nothing behind, whatever it did: against a copy of the state as it was."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.state.operator.timers import Timers
from millpond.state.spi import HeapBackend, LruStateCache, RocksDbBackend, StateDescriptor, StateKind
from millpond.state.types.timer_states import TIMERS
from millpond.state.wrappers.undo import UndoableBackend

SCHEMA = pa.schema([("n", pa.int64())])
VALUE = StateDescriptor("value", StateKind.VALUE, SCHEMA)
LIST = StateDescriptor("list", StateKind.LIST, SCHEMA)
MAP = StateDescriptor("map", StateKind.MAP, SCHEMA, map_key_schema=SCHEMA)

SMALL = st.integers(0, 3)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("update"), SMALL),
        st.tuples(st.just("clear")),
        st.tuples(st.just("append"), SMALL),
        st.tuples(st.just("extend"), st.lists(SMALL, max_size=3)),
        st.tuples(st.just("replace"), st.lists(SMALL, max_size=3)),
        st.tuples(st.just("empty")),
        st.tuples(st.just("put"), SMALL, SMALL),
        st.tuples(st.just("remove"), SMALL),
        st.tuples(st.just("wipe")),
        st.tuples(st.just("set"), SMALL),
        st.tuples(st.just("unset"), SMALL),
    ),
    max_size=12,
)


class Subject:
    """Three states and timers of two keys, over one backend."""

    def __init__(self, inner):
        self.backend = UndoableBackend(inner)
        self.value = self.backend.value_state(VALUE)
        self.list = self.backend.list_state(LIST)
        self.map = self.backend.map_state(MAP)
        self.timers = Timers(self.backend, range(4))
        self.at("ann")

    def at(self, key):
        self.backend.enter(2)
        self.backend.context.key = (key,)

    def change(self, changes):
        acts = {
            "update": lambda n: self.value.update((n,)),
            "clear": self.value.clear,
            "append": lambda n: self.list.append((n,)),
            "extend": lambda ns: self.list.extend([(n,) for n in ns]),
            "replace": lambda ns: self.list.put([(n,) for n in ns]),
            "empty": self.list.clear,
            "put": lambda at, n: self.map.put((at,), (n,)),
            "remove": lambda at: self.map.remove((at,)),
            "wipe": self.map.clear,
            "set": self.timers.register,
            "unset": self.timers.delete,
        }
        for name, *arguments in changes:
            acts[name](*arguments)

    def seen(self):
        found = []
        for key in ("ann", "bob"):
            self.at(key)
            found.append(
                (self.value.get(), list(self.list.get()), sorted(self.map.items()), list(self.timers.of_key()))
            )
        return found, self.timers.next_expiry_ms(), [timer.expiry_ms for timer in self.timers.due(10)]


@given(before=CHANGES, committed=st.booleans(), others=CHANGES, failed=CHANGES, after=CHANGES)
@settings(max_examples=150, deadline=None)
def test_an_undone_call_is_as_if_it_had_not_been_made(before, committed, others, failed, after):
    subject, oracle = Subject(HeapBackend(range(4))), Subject(HeapBackend(range(4)))
    for each in (subject, oracle):
        each.change(before)
        each.timers.next_expiry_ms()
        if committed:
            each.backend.commit()
            each.backend.acknowledge()
    subject.at("ann")
    call = subject.backend.begin_call()
    subject.change(failed)
    for each in (subject, oracle):
        each.at("bob")
        each.backend.begin_call()
        each.change(others)
    call.undo()
    assert subject.backend.context.key == ("ann",), "the call's key is current again"
    subject.backend.end_call()
    assert subject.seen() == oracle.seen()
    for each in (subject, oracle):
        each.at("ann")
        each.change(after)
    assert subject.seen() == oracle.seen()
    for each in (subject, oracle):
        each.backend.rollback()
    assert subject.seen() == oracle.seen()


@pytest.mark.parametrize("kind", ["rocksdb", "cached"])
def test_calls_are_undone_on_every_kind_of_backend(kind, tmp_path):
    inner = RocksDbBackend(range(4), tmp_path / "state") if kind == "rocksdb" else HeapBackend(range(4))
    subject = Subject(inner if kind == "rocksdb" else LruStateCache(inner, max_entries=2))
    kept = [("update", 1), ("append", 1), ("append", 2), ("put", 1, 1), ("put", 2, 2), ("set", 7)]
    subject.change(kept)
    seen = subject.seen()
    subject.at("ann")
    call = subject.backend.begin_call()
    subject.change([("clear",), ("append", 3), ("wipe",), ("put", 3, 3), ("unset", 7), ("set", 8)])
    call.undo()
    assert subject.seen() == seen
    changed = {name: (cells.keys, cells.values) for name, cells in subject.backend.commit().changes()}
    assert changed["value"] == ([("ann",)], [(1,)])
    assert changed["list"] == ([("ann",)], [[(1,), (2,)]])
    subject.backend.close()


def test_what_is_changed_outside_of_calls_stays():
    subject = Subject(HeapBackend(range(4)))
    call = subject.backend.begin_call()
    subject.value.update((1,))
    subject.backend.end_call()
    subject.list.append((5,))
    call.undo()
    assert subject.value.get() is None
    assert list(subject.list.get()) == [(5,)]


def test_timers_are_undone_with_the_rest():
    subject = Subject(HeapBackend(range(4)))
    subject.timers.register(5)
    call = subject.backend.begin_call()
    subject.timers.delete(5)
    subject.timers.register(6)
    call.undo()
    assert [(timer.expiry_ms, timer.key) for timer in subject.timers.due(10)] == [(5, ("ann",))]
    assert TIMERS.name in dict(subject.backend.commit().changes())
