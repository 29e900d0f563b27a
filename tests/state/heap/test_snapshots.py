"""Snapshots of the heap backend: read from other threads while it changes, and what they and copies cost."""

import gc
import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa
import pytest

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.state.backend.protocols import Appended, Snapshot
from millpond.state.heap import backend as heap
from millpond.state.heap import states as heap_states
from millpond.state.heap import tables as heap_tables
from millpond.state.heap import versions as heap_versions
from millpond.state.spi import ABSENT, Cells, HeapBackend, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import pickle_serializer, raw_serializer
from tests.state.conformance.kinds import grown

NUMBER = pa.schema([("number", pa.int64())])
NAME = pa.schema([("name", pa.string())])
COUNT = StateDescriptor("count", StateKind.VALUE, NUMBER)
LOG = StateDescriptor("log", StateKind.LIST, NUMBER)
VISITS = StateDescriptor("visits", StateKind.MAP, NUMBER, NAME)
GROUPS = range(2)


@dataclass
class Basket:
    """A mutable value that counts its deep copies."""

    items: list = field(default_factory=list)
    copies: ClassVar[int] = 0

    def __deepcopy__(self, memo):
        Basket.copies += 1
        return Basket(list(self.items))


COUNTED = replace(pickle_serializer(), copy=deepcopy)
BASKETS = {
    StateKind.VALUE: StateDescriptor("basket", StateKind.VALUE, OBJECT_SCHEMA, serializer=COUNTED),
    StateKind.LIST: StateDescriptor("basket", StateKind.LIST, OBJECT_SCHEMA, serializer=COUNTED),
    StateKind.MAP: StateDescriptor("basket", StateKind.MAP, OBJECT_SCHEMA, NAME, serializer=COUNTED),
}


def set_current_key(backend, key="ann", group=0):
    backend.enter(group)
    backend.context.key = (key,)


def at_ann():
    """A backend that stands at ann, and its value state `count`."""
    backend = HeapBackend(GROUPS)
    count = backend.value_state(COUNT)
    set_current_key(backend)
    return backend, count


def everything(source):
    """Every cell that a backend or a snapshot shows: by state, key group, key and map key."""
    found = {}
    for name in ("count", "log", "visits"):
        for group in GROUPS:
            found |= _places(name, source.cells(name, group))
    return found


def _places(name, cells):
    map_keys = cells.map_keys or [None] * len(cells)
    places = zip(cells.key_groups, cells.keys, map_keys, cells.values, strict=True)
    return {
        (name, group, *key, map_key): list(value) if isinstance(value, list) else value
        for group, key, map_key, value in places
    }


class Writer:
    """Changes a backend at random, and a plain dictionary alike."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.backend = HeapBackend(GROUPS)
        self.count = self.backend.value_state(COUNT)
        self.log = self.backend.list_state(LOG)
        self.visits = self.backend.map_state(VISITS)
        self.live, self.committed, self.earlier = {}, {}, None

    def change(self):
        group, key, page = self.random.choice(GROUPS), f"user {self.random.randrange(12)}", self.random.choice("abc")
        set_current_key(self.backend, key, group)
        number = (self.random.randrange(1000),)
        what = self.random.randrange(7)
        if what == 0:
            self.count.update(number)
            self.live["count", group, key, None] = number
        elif what == 1:
            self.log.append(number)
            self.live["log", group, key, None] = [*self.live.get(("log", group, key, None), []), number]
        elif what in {2, 3}:
            self.visits.put((page,), number)
            self.live["visits", group, key, (page,)] = number
        elif what == 4:
            self.visits.remove((page,))
            self.live.pop(("visits", group, key, (page,)), None)
        else:
            (self.count, self.log, self.visits)[what % 3].clear()
            name = ("count", "log", "visits")[what % 3]
            self.live = {at: value for at, value in self.live.items() if at[:3] != (name, group, key)}

    def change_much(self):
        for _ in range(self.random.randrange(60)):
            self.change()

    def end_version(self):
        """Commit, roll back or take the last commit back; a reading to be checked if it was a commit."""
        end = self.random.randrange(4)
        if end == 0:
            self.backend.rollback()
            self.live = dict(self.committed)
        elif end == 1 and self.earlier is not None:
            self.backend.undo_commit()
            self.live, self.committed, self.earlier = dict(self.earlier), self.earlier, None
        else:
            self.earlier, self.committed = self.committed, dict(self.live)
            return Reading(self.backend.commit(), self.committed, self.earlier)
        return None

    def do_anything(self):
        """Mostly a change; versions end too, but seldom, since a reader has to walk through them all."""
        self.change()
        if self.random.randrange(200) == 0:
            self.end_version()


@dataclass
class Reading:
    """A snapshot, what it must show, and what the version before it held."""

    snapshot: Snapshot
    contents: dict
    before: dict

    def check(self):
        self.check_cells()
        self.check_changes()

    def check_cells(self):
        assert everything(self.snapshot) == self.contents

    def check_changes(self):
        changes = {}
        for name, cells in self.snapshot.changes():
            added = [type(value) is Appended for value in cells.values]
            changes |= {
                at: grown(value, self.before.get(at, ABSENT)) if grew else value
                for (at, value), grew in zip(_places(name, cells).items(), added, strict=True)
            }
        assert changes == {at: self.contents.get(at, ABSENT) for at in changes}
        places = self.before.keys() | self.contents.keys()
        assert changes.keys() >= {at for at in places if self.before.get(at) != self.contents.get(at)}


@contextmanager
def interrupted_at_every_line(modules, act):
    """Runs `act` before each line of these modules, as another thread might that gets its turn there."""
    files = {module.__file__ for module in modules}

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            act()
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(usual)


@pytest.mark.parametrize("seed", range(10))
def test_a_snapshot_is_read_rightly_whatever_is_changed_between_two_steps_of_the_reader(seed):
    writer = Writer(seed)
    for at in range(12):
        writer.change_much()
        reading = writer.end_version()
        if reading is not None:
            with interrupted_at_every_line([heap_tables, heap_versions], writer.do_anything):
                # Not one after the other: what is read first is read with all changes still to come.
                (reading.check_cells, reading.check_changes)[at % 2]()
        assert everything(writer.backend) == writer.live


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_is_read_rightly_between_any_two_steps_of_the_writer(seed):
    writer, readings = Writer(seed), []

    def read():
        for reading in readings[-2:]:
            reading.check()

    for _ in range(6):
        with interrupted_at_every_line([heap, heap_states, heap_tables, heap_versions], read):
            for _ in range(8):
                writer.change()
            reading = writer.end_version()
        if reading is not None:
            readings.append(reading)
    assert readings


@pytest.fixture
def _eager_threads():
    """Threads take turns far more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_eager_threads")
@pytest.mark.parametrize("seed", range(3))
def test_snapshots_are_read_rightly_from_other_threads_while_versions_come_and_go(seed):
    writer, readings = Writer(seed), []

    def read(reading):
        for _ in range(3):
            reading.check()
        reading.snapshot.release()

    with ThreadPoolExecutor(3) as threads:
        for _ in range(60):
            writer.change_much()
            reading = writer.end_version()
            if reading is not None:
                readings.append(threads.submit(read, reading))
            assert everything(writer.backend) == writer.live
        for reading in readings:
            reading.result()
    assert len(readings) > 10


def _footprint_of_a_commit(changed):
    """What a commit after that many changes calls, and how many bytes it allocates."""
    backend = HeapBackend(GROUPS)
    count, log, visits = backend.value_state(COUNT), backend.list_state(LOG), backend.map_state(VISITS)
    for number in range(changed):
        set_current_key(backend, f"user {number}", number % len(GROUPS))
        count.update((number,))
        log.append((number,))
        visits.put(("a",), (number,))
    calls = []
    gc.collect()
    gc.disable()  # what a collection in between would finalise calls something too
    tracemalloc.start()
    sys.setprofile(lambda _, event, what: calls.append(event))
    try:
        snapshot = backend.commit()
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.enable()
    assert sum(len(cells) for _, cells in snapshot.changes()) == 3 * changed
    return len(calls), peak


def test_a_commit_costs_the_same_for_ten_changed_cells_and_for_ten_thousand():
    (few_calls, few_bytes), (many_calls, many_bytes) = _footprint_of_a_commit(10), _footprint_of_a_commit(10_000)
    assert many_calls == few_calls
    assert many_bytes < few_bytes + 2_000, "not even one byte a changed cell"


USES = {
    StateKind.VALUE: ("value_state", lambda state: state.get(), lambda state, basket: state.update(basket)),
    StateKind.LIST: ("list_state", lambda state: next(state.get()), lambda state, basket: state.put([basket])),
    StateKind.MAP: ("map_state", lambda state: state.get(("a",)), lambda state, basket: state.put(("a",), basket)),
}


@pytest.mark.parametrize("kind", StateKind)
def test_an_object_is_copied_at_most_once_a_version_however_often_it_is_used(kind):
    declare, read, write = USES[kind]
    backend = HeapBackend(GROUPS)
    state = getattr(backend, declare)(BASKETS[kind])
    set_current_key(backend)
    write(state, Basket())
    snapshots = []
    for version in range(3):
        Basket.copies = 0
        set_current_key(backend)
        for number in range(10):
            basket = read(state)
            basket.items.append((version, number))
            write(state, basket)
        snapshots.append(backend.commit())
        assert Basket.copies == (0 if version == 0 else 1)
    kept = [snapshot.cells("basket", 0).values[0] for snapshot in snapshots]
    baskets = [basket[0] if kind is StateKind.LIST else basket for basket in kept]
    assert [len(basket.items) for basket in baskets] == [10, 20, 30]


def test_elements_of_a_list_are_copied_once_a_version_and_appended_ones_never():
    backend = HeapBackend(GROUPS)
    log = backend.list_state(BASKETS[StateKind.LIST])
    set_current_key(backend)
    log.put([Basket([1]), Basket([2])])
    first = backend.commit()
    set_current_key(backend)
    Basket.copies = 0
    for number in range(5):
        for basket in log.get():
            basket.items.append("mine")
        log.append(Basket([number]))
    assert len(list(log.get())) == 7
    assert Basket.copies == 2
    assert first.cells("basket", 0).values == [[Basket([1]), Basket([2])]]


def test_a_taken_back_version_is_still_what_its_snapshot_shows():
    backend, count = at_ann()
    count.update((1,))
    first = backend.commit()
    set_current_key(backend)
    count.update((2,))
    second = backend.commit()
    set_current_key(backend)
    count.update((3,))
    backend.undo_commit()
    set_current_key(backend)
    assert count.get() == (1,)
    count.update((4,))
    third = backend.commit()
    assert [everything(snapshot)["count", 0, "ann", None] for snapshot in (first, second, third)] == [(1,), (2,), (4,)]
    assert [cells.values for _, cells in third.changes()] == [[(4,)]]


def test_a_commit_is_taken_back_only_once_and_not_after_it_is_settled():
    backend, count = at_ann()
    for number in range(3):
        count.update((number,))
        backend.commit()
        set_current_key(backend)
    backend.undo_commit()
    backend.undo_commit()
    set_current_key(backend)
    assert count.get() == (1,)
    count.update((5,))
    backend.commit()
    backend.acknowledge()
    backend.undo_commit()
    set_current_key(backend)
    assert count.get() == (5,)


def test_loading_does_not_reach_an_earlier_snapshot_and_waits_for_the_end_of_a_version():
    backend, count = at_ann()
    count.update((1,))
    with pytest.raises(OptionError, match="'count' cannot be loaded while a version is open"):
        backend.load(COUNT, Cells([0], [("ann",)], None, [(2,)]))
    snapshot = backend.commit()
    backend.load(COUNT, Cells([0, 1], [("ann",), ("bob",)], None, [(2,), (3,)]))
    assert everything(snapshot) == {("count", 0, "ann", None): (1,)}
    assert not backend.rollback()
    assert everything(backend) == {("count", 0, "ann", None): (2,), ("count", 1, "bob", None): (3,)}


def test_a_released_snapshot_cannot_be_read():
    backend, count = at_ann()
    count.update((1,))
    snapshot = backend.commit()
    snapshot.release()
    snapshot.release()
    with pytest.raises(UnavailableError, match="released"):
        snapshot.cells("count", 0)
    with pytest.raises(UnavailableError, match="released"):
        list(snapshot.changes())


def test_a_snapshot_knows_no_state_that_was_declared_after_it():
    backend, count = at_ann()
    count.update((1,))
    snapshot = backend.commit()
    log = backend.list_state(LOG)
    set_current_key(backend)
    log.append((1,))
    assert len(snapshot.cells("log", 0)) == 0


def test_live_cells_stay_as_they_were_read_while_a_list_grows():
    backend = HeapBackend(GROUPS)
    log = backend.list_state(LOG)
    set_current_key(backend)
    log.append((1,))
    cells = backend.cells("log", 0)
    log.append((2,))
    assert cells.values == [[(1,)]]


def test_keys_are_given_once_each_while_those_given_are_cleared():
    backend = HeapBackend(GROUPS)
    visits = backend.map_state(VISITS)
    users = [(group, (f"user {group} {number}",)) for group in GROUPS for number in range(5)]
    for group, key in users:
        set_current_key(backend, *key, group)
        visits.put(("a",), (1,))
        visits.put(("b",), (1,))
    found = []
    for group, key in backend.keys("visits"):
        found.append((group, key))
        set_current_key(backend, *key, group)
        visits.clear()
    assert found == users
    assert list(backend.keys("visits")) == list(backend.keys("unheard of")) == []


def test_a_value_that_does_not_fit_is_refused_with_state_and_key():
    backend = HeapBackend(GROUPS)
    count, visits = backend.value_state(COUNT), backend.map_state(VISITS)
    set_current_key(backend)
    with pytest.raises(DataError, match=r"state 'count' of key \('ann',\).*'many'"):
        count.update(("many",))
    with pytest.raises(DataError, match=r"map key of state 'visits' of key \('ann',\)"):
        visits.get((1,))


def test_a_state_restored_before_it_was_declared_is_not_declared_afterwards():
    backend = HeapBackend(GROUPS)
    raw = StateDescriptor("basket", StateKind.VALUE, OBJECT_SCHEMA, serializer=raw_serializer("pickle"))
    backend.load(raw, Cells([0], [("ann",)], None, [b"bytes"]))
    with pytest.raises(OptionError, match="declare it before the restore"):
        backend.value_state(BASKETS[StateKind.VALUE])


def test_writing_to_a_state_that_nobody_declared_is_refused_by_name():
    with pytest.raises(OptionError, match=r"'cuont'.*\['count'\]"):
        at_ann()[0].write("cuont", Cells())


def test_a_state_declared_while_a_key_is_current_is_used_at_once():
    backend, _ = at_ann()
    log = backend.list_state(LOG)
    log.append((1,))
    assert backend.cells("log", 0).keys == [("ann",)]
