"""Every backend and wrapper against plain dictionaries, one a version, under random operations.

`live` is the open version, `committed` the last one, and `earlier` the one that may still be gone back
to. Snapshots are kept and read at random later times. What is durable is put together from deltas and
bases as a checkpoint does it; a crash loads it into a new backend, of the same sort or another.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.errors import DataError
from millpond.state.spi import ABSENT, CachedValues, Cells, StateKind
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache
from tests.state.conformance.kinds import (
    CART,
    DICT,
    FLAT_ROW,
    GROUPS,
    HOME,
    INTEGER,
    NESTED_ROW,
    changed,
    copied,
    declare,
    describe,
    everything,
    set_current_key,
    with_ttl,
)
from tests.state.conformance.subjects import IN_MEMORY, SUBJECTS, Subject

KINDS = {
    "count": (StateKind.VALUE, FLAT_ROW),
    "recent": (StateKind.VALUE, NESTED_ROW),
    "total": (StateKind.VALUE, INTEGER),
    "log": (StateKind.LIST, INTEGER),
    "batches": (StateKind.LIST, with_ttl(DICT)),
    "pages": (StateKind.MAP, FLAT_ROW),
    "paths": (StateKind.MAP, DICT),
}
DESCRIPTORS = {name: describe(name, shape, kind) for name, (shape, kind) in KINDS.items()}
OF_SHAPE = {shape: [name for name in KINDS if KINDS[name][0] is shape] for shape in StateKind}
MUTABLE = [name for name in KINDS if KINDS[name][1].grow is not None]

USERS = [(3, ("ann",)), (3, ("bob",)), (3, (None,)), (5, ("zoe",))]
users = st.sampled_from(USERS)
numbers = st.integers(0, 4)
entries = st.sampled_from([HOME, CART])
names = st.sampled_from(list(KINDS))

Place = tuple[Any, ...]
States = dict[str, dict[Place, Any]]


@dataclass
class Kept:
    """A snapshot, and what it must show for ever."""

    snapshot: Any
    state: States
    before: States
    touched: set[tuple[str, Place]]

    def check(self) -> None:
        """All cells; and as changes whatever differs, perhaps what was only touched, each as it was committed."""
        changes = changed(self.snapshot.changes(), self.before)
        assert changes.keys() <= KINDS.keys()
        for name, state in self.state.items():
            assert everything(self.snapshot, name) == state
            before, changes_of_state = self.before[name], changes.get(name, {})
            for place, value in changes_of_state.items():
                assert (name, place) in self.touched
                assert value == state.get(place, ABSENT)
            for place in before.keys() | state.keys():
                if before.get(place, ABSENT) != state.get(place, ABSENT):
                    assert place in changes_of_state


class Versions(RuleBasedStateMachine):
    """One backend and its dictionaries."""

    subject: Subject
    wrap: Callable[[Any, Any], Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=IN_MEMORY)
        self.opened = 0
        self.live: States = {name: {} for name in KINDS}
        self.durable: States = {name: {} for name in KINDS}
        self._open(self.subject)

    def _open(self, subject: Subject) -> None:
        self.opened += 1
        self.backend = subject.open(GROUPS, Path(self.folder.name) / str(self.opened))
        if self.wrap is not None:
            self.backend = CachedValues(self.backend)
        self.states = {name: declare(self.backend, descriptor) for name, descriptor in DESCRIPTORS.items()}
        self.caches = []
        if self.wrap is not None:
            for name in OF_SHAPE[StateKind.VALUE]:
                self.states[name] = type(self).wrap(self.backend, self.states[name])
                self.caches.append(self.states[name])
        self.committed = copy.deepcopy(self.live)
        self.earlier: States | None = None
        self.pending: Kept | None = None
        self.kept: list[Kept] = []
        self._begin_version()

    def _begin_version(self) -> None:
        self.touched: set[tuple[str, Place]] = set()
        # What was handed out and changed without an update: until the version ends it may be seen, or not.
        self.loose: dict[tuple[str, Place], Any] = {}
        self.group: int | None = None

    def _turn_to(self, user: Place) -> None:
        if user[0] != self.group:
            set_current_key(self.backend, *user)
            self.group = user[0]
        self.backend.context.key = user[1]

    def _set(self, name: str, place: Place, value: Any) -> None:
        self.touched.add((name, place))
        self.loose.pop((name, place), None)
        if value is ABSENT:
            self.live[name].pop(place, None)
        else:
            self.live[name][place] = copy.deepcopy(value)

    def _is(self, found: Any, name: str, place: Place, absent: Any = None) -> None:
        expected = self.live[name].get(place, absent)
        assert found in (expected, self.loose.get((name, place), expected))

    def _entries(self, name: str, user: Place) -> list[Place]:
        return [place for place in self.live[name] if place[:2] == user]

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.VALUE]), user=users, number=numbers)
    def update(self, name, user, number):
        self._turn_to(user)
        self.states[name].update(KINDS[name][1].make(number))
        self._set(name, user, KINDS[name][1].make(number))

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.VALUE]), user=users, number=numbers)
    def update_with(self, name, user, number):
        self._turn_to(user)
        kind, seen = KINDS[name][1], []
        given = self.states[name].update_with(lambda value: seen.append(copied(value)) or kind.make(number))
        self._is(seen[0], name, user)
        assert given == kind.make(number)
        self._set(name, user, kind.make(number))

    @rule(user=users, number=numbers)
    def add(self, user, number):
        self._turn_to(user)
        total = self.live["total"].get(user, 0) + number
        assert self.states["total"].add(number) == total
        self._set("total", user, total)

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.VALUE]), user=users)
    def read_a_value(self, name, user):
        self._turn_to(user)
        self._is(self.states[name].get(), name, user)
        assert self.states[name].exists() == (user in self.live[name])

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.LIST]), user=users, some=st.lists(numbers, max_size=3))
    def put_or_extend_a_list(self, name, user, some):
        self._turn_to(user)
        values = [KINDS[name][1].make(number) for number in some]
        if len(some) == 1:
            self.states[name].append(values[0])
        elif len(some) == 2:
            self.states[name].extend(iter(values))
        else:
            self.states[name].put(values)
        old = self.live[name].get(user, []) if len(some) in (1, 2) else []
        loose = self.loose.get((name, user))
        values = [KINDS[name][1].make(number) for number in some]
        self._set(name, user, old + values)
        if loose is not None and len(some) in (1, 2):
            self.loose[name, user] = loose + values

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.LIST]), user=users)
    def read_a_list(self, name, user):
        self._turn_to(user)
        self._is(list(self.states[name].get()), name, user, [])
        assert self.states[name].exists() == (user in self.live[name])

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.MAP]), user=users, entry=entries, number=numbers)
    def put_an_entry(self, name, user, entry, number):
        self._turn_to(user)
        self.states[name].put(entry, KINDS[name][1].make(number))
        self._set(name, (*user, entry), KINDS[name][1].make(number))

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.MAP]), user=users, entry=entries)
    def remove_an_entry(self, name, user, entry):
        self._turn_to(user)
        self.states[name].remove(entry)
        self._set(name, (*user, entry), ABSENT)

    @rule(name=st.sampled_from(OF_SHAPE[StateKind.MAP]), user=users, entry=entries)
    def read_a_map(self, name, user, entry):
        self._turn_to(user)
        state, places = self.states[name], self._entries(name, user)
        self._is(state.get(entry), name, (*user, entry))
        assert state.contains(entry) == ((*user, entry) in places)
        assert state.exists() == bool(places)
        items = list(state.items())
        assert sorted(map(repr, (map_key for map_key, _ in items))) == sorted(repr(place[2]) for place in places)
        for map_key, value in items:
            self._is(value, name, (*user, map_key))

    @rule(name=names, user=users)
    def clear(self, name, user):
        self._turn_to(user)
        self.states[name].clear()
        for place in self._entries(name, user) or [user]:
            self._set(name, place, ABSENT)
        # Also what was removed earlier in the version, or never was there, may be named as deleted.
        self.touched |= {(name, (*user, HOME)), (name, (*user, CART))}

    @rule(name=names, numbers_of=st.dictionaries(users, st.none() | numbers, min_size=2), entry=entries)
    def change_several_keys(self, name, numbers_of, entry):
        """At one go, or versions would end before small caches overflow."""
        for user, number in numbers_of.items():
            if number is None:
                self.clear(name, user)
            elif KINDS[name][0] is StateKind.VALUE:
                self.update(name, user, number)
            elif KINDS[name][0] is StateKind.LIST:
                self.put_or_extend_a_list(name, user, [number] * (1 + number % 3))
            else:
                self.put_an_entry(name, user, entry, number)

    @rule(name=names)
    def read_every_key(self, name):
        for user in USERS:
            if KINDS[name][0] is StateKind.VALUE:
                self.read_a_value(name, user)
            elif KINDS[name][0] is StateKind.LIST:
                self.read_a_list(name, user)
            else:
                self.read_a_map(name, user, HOME)

    @rule(name=st.sampled_from(MUTABLE), user=users, entry=entries, updated=st.booleans())
    def change_what_was_handed_out(self, name, user, entry, updated):
        shape, kind = KINDS[name]
        place = (*user, entry) if shape is StateKind.MAP else user
        if not self.live[name].get(place) or (not updated and (name, place) in self.touched):
            return
        self._turn_to(user)
        state = self.states[name]
        if shape is StateKind.VALUE:
            value = state.get()
        elif shape is StateKind.MAP:
            value = state.get(entry)
        else:
            value = list(state.get())
        self._is(value, name, place)
        kind.grow(value[0] if shape is StateKind.LIST else value)
        if not updated:
            self.loose[name, place] = copy.deepcopy(value)
            return
        grown = copy.deepcopy(value)
        if shape is StateKind.VALUE:
            state.update(value)
        elif shape is StateKind.MAP:
            state.put(entry, value)
        else:
            state.put(value)
        self._set(name, place, grown)

    @rule(user=users)
    def a_refused_change_changes_nothing(self, user):
        self._turn_to(user)
        for name, change in (("count", "update"), ("log", "append"), ("batches", "append")):
            with pytest.raises(DataError, match=name):
                getattr(self.states[name], change)(KINDS[name][1].unfit)
        with pytest.raises(DataError, match="pages"):
            self.states["pages"].put(HOME, FLAT_ROW.unfit)

    @rule(name=names, cells=st.dictionaries(users, st.none() | numbers, max_size=3), entry=entries)
    def write(self, name, cells, entry):
        shape, kind = KINDS[name]
        if self.caches and shape is StateKind.VALUE:
            return  # the state belongs to the cache in front of it
        written = Cells(map_keys=[] if shape is StateKind.MAP else None)
        for user, number in cells.items():
            value = ABSENT if number is None else kind.make(number)
            value = [value] * (number % 3) if shape is StateKind.LIST and number is not None else value
            written.key_groups.append(user[0])
            written.keys.append(user[1])
            written.values.append(value)
            if written.map_keys is not None:
                written.map_keys.append(entry)
            self._set(name, (*user, entry) if shape is StateKind.MAP else user, value)
        self.backend.write(name, written)

    @rule(name=names)
    def look_at_all(self, name):
        for cache in self.caches:
            if self.group is None:
                return
            cache.update_all_states()
        found = everything(self.backend, name)
        assert found.keys() == self.live[name].keys()
        for place, value in found.items():
            self._is(value, name, place)
        listed = list(self.backend.keys(name))
        assert len(listed) == len(set(listed))
        assert set(listed) == {place[:2] for place in self.live[name]}

    @rule(name=names)
    def clear_every_key_listed(self, name):
        if self.caches and self.group is None:
            return
        for cache in self.caches:
            cache.update_all_states()
        for group, key in self.backend.keys(name):
            self._turn_to((group, key))
            self.clear(name, (group, key))
        assert self.live[name] == {}

    @rule()
    def commit(self):
        snapshot = self.backend.commit()
        kept = Kept(snapshot, copy.deepcopy(self.live), self.committed, self.touched)
        self._make_durable()
        self.pending = kept
        self.kept.append(kept)
        self.earlier, self.committed = self.committed, copy.deepcopy(self.live)
        self._begin_version()

    @rule(how=st.sampled_from(["roll back", "roll back", "undo", "crash"]), into=st.sampled_from(SUBJECTS))
    def go_back(self, how, into):
        """One rule for all, or most versions would end before anything happened in them."""
        if how == "undo" and self.earlier is not None:
            self.undo_commit()
        elif how == "crash" and self.earlier is None:
            self.crash_and_restore(into)
        else:
            self.rollback()
        for name in KINDS:
            self.read_every_key(name)

    def rollback(self):
        changed_any = self.live != self.committed
        said = self.backend.rollback()
        if changed_any and self.wrap is None:
            assert said
        assert not (said and not self.touched)
        self.live = copy.deepcopy(self.committed)
        self._begin_version()

    def undo_commit(self):
        self.backend.undo_commit()
        self.live, self.committed = copy.deepcopy(self.earlier), self.earlier
        self.earlier = self.pending = None
        self._begin_version()

    @rule()
    def acknowledge(self):
        self.backend.acknowledge()
        self._make_durable()
        self.earlier = None

    def _make_durable(self) -> None:
        """Write the last commit, as a delta and the base of one key group."""
        if self.pending is None:
            return
        snapshot, self.pending = self.pending.snapshot, None
        for name, cells in changed(snapshot.changes(), self.durable).items():
            for place, value in cells.items():
                if value is ABSENT:
                    self.durable[name].pop(place, None)
                else:
                    self.durable[name][place] = value
        for name, state in self.durable.items():
            base = {place: value for place, value in everything(snapshot, name).items() if place[0] == 3}
            self.durable[name] = {place: value for place, value in state.items() if place[0] != 3} | base

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def look_at_a_snapshot(self, data):
        data.draw(st.sampled_from(self.kept)).check()

    @precondition(lambda self: len(self.kept) > 1)
    @rule(data=st.data())
    def release_a_snapshot(self, data):
        kept = data.draw(st.sampled_from(self.kept))
        if kept is not self.pending:
            kept.check()
            kept.snapshot.release()
            self.kept.remove(kept)

    def crash_and_restore(self, into):
        """What was acknowledged comes back, whatever was open: from bases first, then from a delta that deletes."""
        assert self.durable == self.committed
        self.backend.close()
        self.live = copy.deepcopy(self.durable)
        self._open(into)
        for name, state in self.durable.items():
            descriptor, is_map = DESCRIPTORS[name], KINDS[name][0] is StateKind.MAP
            places = list(state)
            stale = [(*user, HOME) if is_map else user for user in USERS]
            for at in (stale, [place for place in stale if place not in state], places):
                values = [state.get(place, ABSENT) for place in at]
                if at is stale:
                    values = [state.get(place, self._stale(name)) for place in at]
                self.backend.load(
                    descriptor,
                    Cells(
                        [place[0] for place in at],
                        [place[1] for place in at],
                        [place[2] for place in at] if is_map else None,
                        list(map(copied, values)),
                    ),
                )
        assert not self.backend.rollback()

    @staticmethod
    def _stale(name: str) -> Any:
        """What an older base holds where a later delta deletes."""
        shape, kind = KINDS[name]
        return [kind.make(1)] if shape is StateKind.LIST else kind.make(1)

    @invariant()
    def states_without_changes_are_the_committed_ones(self):
        if not self.touched:
            assert self.live == self.committed

    def teardown(self) -> None:
        for kept in self.kept:
            kept.check()
        for kept in self.kept:
            kept.snapshot.release()
        self.backend.close()
        self.folder.cleanup()


def _machine(subject: Subject, name: str, wrap: Callable[[Any, Any], Any] | None = None) -> Any:
    # Opening a database takes about as long as a run over dictionaries.
    share = 0.06 if "rocksdb" in subject.name else 0.2
    machine = type(f"Versions {name}", (Versions,), {"subject": subject, "wrap": staticmethod(wrap) if wrap else None})
    case = machine.TestCase
    case.settings = settings(
        max_examples=max(1, int(settings.default.max_examples * share)),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return case


def _write_back(backend: Any, state: Any) -> WriteBackCache:
    return WriteBackCache(backend, state, max_size=2)


def _two_layer(backend: Any, state: Any) -> TwoLayerCache:
    return TwoLayerCache(backend, state, max_size=1, max_size_l2=2)


for _subject in SUBJECTS:
    globals()[f"Test_{_subject.name}"] = _machine(_subject, _subject.name)
for _subject in SUBJECTS[:3]:
    for _wrap in (_write_back, _two_layer):
        _name = f"{_wrap.__name__.strip('_')}-{_subject.name}"
        globals()[f"Test_{_name}"] = _machine(_subject, _name, _wrap)
