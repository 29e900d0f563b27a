"""The cache against plain dictionaries: one for the live state, and one for every snapshot that is still alive."""

import copy

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.state.backend.protocols import Appended
from millpond.state.spi import ABSENT, Cells, HeapBackend, StateDescriptor, StateKind
from millpond.state.wrappers.lru.backend import LruStateCache
from tests.state.conformance.kinds import grown
from tests.state.lengths import of_length

GROUPS = range(3, 5)
NUMBER = pa.schema([("number", pa.int64())])
NUMBERS = pa.schema([("numbers", pa.list_(pa.int64()))])
NAME = pa.schema([("name", pa.string())])

STATES = {
    descriptor.name: descriptor
    for descriptor in (
        StateDescriptor("count", StateKind.VALUE, NUMBER),
        StateDescriptor("recent", StateKind.VALUE, NUMBERS),
        StateDescriptor("log", StateKind.LIST, NUMBER),
        StateDescriptor("batches", StateKind.LIST, NUMBERS),
        StateDescriptor("visits", StateKind.MAP, NUMBER, NAME),
        StateDescriptor("paths", StateKind.MAP, NUMBERS, NAME),
    )
}
NESTED = ("recent", "batches", "paths")

values = st.sampled_from(["count", "recent"])
lists = st.sampled_from(["log", "batches"])
maps = st.sampled_from(["visits", "paths"])
places = st.tuples(st.sampled_from(GROUPS), st.integers(0, 2))
map_keys = st.sampled_from([("a",), ("b",)])


def _as_cells(cells: Cells) -> dict:
    columns = (
        (cells.key_groups, cells.keys) if cells.map_keys is None else (cells.key_groups, cells.keys, cells.map_keys)
    )
    found = list(zip(*columns, strict=True))
    assert len(set(found)) == len(found) == len(cells.values)
    return dict(zip(found, (v if v is ABSENT else copy.deepcopy(v) for v in cells.values), strict=True))


class CacheAgainstDictionaries(RuleBasedStateMachine):
    """A model is a dictionary per state, from the place of a cell to its value."""

    @initialize(limit=st.sampled_from([{"max_entries": size} for size in (1, 2, 8, 16)] + [{"max_bytes": 1_500}]))
    def begin(self, limit):
        self.limit = limit
        self.cache = LruStateCache(HeapBackend(GROUPS), **limit)
        self.handles = {
            name: getattr(self.cache, f"{descriptor.kind}_state")(descriptor) for name, descriptor in STATES.items()
        }
        self.live = {name: {} for name in STATES}
        self.committed = copy.deepcopy(self.live)
        self.earlier = None
        self.touched = {name: set() for name in STATES}
        self.snapshots = []
        self.counter = 0

    def _at(self, place):
        group, number = place
        key = (f"{group}-{number}",)
        self.cache.enter(group)
        self.cache.context.key = key
        return group, key

    def _new(self, name):
        self.counter += 1
        return ([self.counter],) if name in NESTED else (self.counter,)

    @rule(name=values, place=places)
    def update_a_value(self, name, place):
        at, value = self._at(place), self._new(name)
        self.live[name][at] = copy.deepcopy(value)
        self.handles[name].update(value)
        self.touched[name].add(at)

    @rule(name=values, place=places, update=st.booleans())
    def read_a_value_and_change_it(self, name, place, update):
        at = self._at(place)
        found = self.handles[name].get()
        # What was changed without an update may be seen again until the version ends; the first number tells.
        assert (None if found is None else _first(found)) == _first(self.live[name].get(at))
        assert self.handles[name].exists() == (at in self.live[name])
        if found is None:
            return
        if name in NESTED and not update:
            if at not in self.touched[name]:
                found[0].append(98)
        elif update:
            new = ([_first(found), 7],) if name in NESTED else (_first(found) + 1,)
            self.live[name][at] = copy.deepcopy(new)
            self.handles[name].update(new)
            self.touched[name].add(at)

    @rule(name=st.sampled_from(list(STATES)), place=places)
    def clear(self, name, place):
        at = self._at(place)
        self.handles[name].clear()
        gone = [cell for cell in self.live[name] if cell[:2] == at]
        self.touched[name] |= {at, *gone}
        for cell in gone:
            del self.live[name][cell]

    @rule(name=lists, place=places, how=st.sampled_from(["append", "extend", "put"]))
    def change_a_list(self, name, place, how):
        at, new = self._at(place), [self._new(name)]
        before = [] if how == "put" else self.live[name].get(at, [])
        self.live[name][at] = before + copy.deepcopy(new)
        if how == "append":
            self.handles[name].append(new[0])
        else:
            getattr(self.handles[name], how)(new)
        self.touched[name].add(at)

    @rule(name=lists, place=places)
    def read_a_list(self, name, place):
        at = self._at(place)
        found = list(self.handles[name].get())
        assert list(map(_first, found)) == list(map(_first, self.live[name].get(at, [])))
        assert self.handles[name].exists() == (at in self.live[name])
        if name in NESTED and at not in self.touched[name]:
            for element in found:
                element[0].append(97)

    @rule(name=maps, place=places, map_key=map_keys)
    def put_an_entry(self, name, place, map_key):
        at, value = self._at(place), self._new(name)
        self.live[name][*at, map_key] = copy.deepcopy(value)
        self.handles[name].put(map_key, value)
        self.touched[name].add((*at, map_key))

    @rule(name=maps, place=places, map_key=map_keys)
    def remove_an_entry(self, name, place, map_key):
        cell = (*self._at(place), map_key)
        self.live[name].pop(cell, None)
        self.handles[name].remove(map_key)
        self.touched[name].add(cell)

    @rule(name=maps, place=places, map_key=map_keys)
    def read_a_map(self, name, place, map_key):
        at, handle = self._at(place), self.handles[name]
        entries = {cell[2]: _first(value) for cell, value in self.live[name].items() if cell[:2] == at}
        found = handle.get(map_key)
        assert (None if found is None else _first(found)) == entries.get(map_key)
        assert handle.contains(map_key) == (map_key in entries)
        assert handle.exists() == bool(entries)
        items = list(handle.items())
        assert len(items) == len(entries)
        assert {key: _first(value) for key, value in items} == entries
        if name in NESTED:
            for key, value in items:
                if (*at, key) not in self.touched[name]:
                    value[0].append(96)

    @rule(name=st.sampled_from(list(STATES)), place=places, map_key=map_keys, delete=st.booleans())
    def write_a_cell(self, name, place, map_key, delete):
        group, key = place[0], (f"{place[0]}-{place[1]}",)
        is_map = STATES[name].kind is StateKind.MAP
        cell = (group, key, map_key) if is_map else (group, key)
        value = self._new(name)
        value = ABSENT if delete else [value] if STATES[name].kind is StateKind.LIST else value
        self.cache.write(name, Cells([group], [key], [map_key] if is_map else None, [value]))
        self.live[name].pop(cell, None)
        if not delete:
            self.live[name][cell] = copy.deepcopy(value)
        self.touched[name].add(cell)

    @rule()
    def commit(self):
        snapshot = self.cache.commit()
        self.snapshots.append((snapshot, self.committed, copy.deepcopy(self.live), self.touched))
        self.earlier, self.committed = self.committed, copy.deepcopy(self.live)
        self.touched = {name: set() for name in STATES}

    @rule()
    def roll_back(self):
        if self.committed != self.live:
            assert self.cache.rollback()
        else:
            self.cache.rollback()
        self._went_back()

    @precondition(lambda self: self.earlier is not None)
    @rule()
    def undo_commit(self):
        self.cache.undo_commit()
        self.committed, self.earlier = self.earlier, None
        self._went_back()

    def _went_back(self):
        self.live = copy.deepcopy(self.committed)
        self.touched = {name: set() for name in STATES}

    @rule()
    def acknowledge(self):
        self.cache.acknowledge()
        self.earlier = None

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data(), release=st.booleans())
    def read_a_snapshot(self, data, release):
        index = data.draw(st.integers(0, len(self.snapshots) - 1))
        snapshot, before, after, touched = self.snapshots[index]
        for name in STATES:
            for group in GROUPS:
                assert _as_cells(snapshot.cells(name, group)) == {
                    cell: value for cell, value in after[name].items() if cell[0] == group
                }
        delta = {name: {} for name in STATES}
        for name, cells in snapshot.changes():
            added = [type(value) is Appended for value in cells.values]
            piece = {
                cell: grown(value, before[name].get(cell, ABSENT)) if grew else value
                for (cell, value), grew in zip(_as_cells(cells).items(), added, strict=True)
            }
            assert not piece.keys() & delta[name].keys()
            delta[name] |= piece
        for name in STATES:
            differing = {
                cell
                for cell in before[name].keys() | after[name].keys()
                if before[name].get(cell, ABSENT) != after[name].get(cell, ABSENT)
            }
            assert differing <= delta[name].keys() <= touched[name]
            assert delta[name] == {cell: after[name].get(cell, ABSENT) for cell in delta[name]}
        if release:
            del self.snapshots[index]
            snapshot.release()

    @invariant()
    def every_cell_and_key_is_the_models(self):
        for name in STATES:
            for group in GROUPS:
                live = {cell: value for cell, value in self.live[name].items() if cell[0] == group}
                assert _as_cells(self.cache.cells(name, group)) == live
            found = list(self.cache.keys(name))
            assert len(found) == len(set(found))
            assert set(found) == {cell[:2] for cell in self.live[name]}

    @invariant()
    def the_limit_holds(self):
        stats = self.cache.stats()
        assert stats.entries <= self.limit.get("max_entries", stats.entries)
        assert stats.bytes <= self.limit.get("max_bytes", 0)


def _first(value):
    """What tells a value apart from all others, whatever was added to it."""
    if value is None:
        return None
    return value[0][0] if isinstance(value[0], list) else value[0]


CacheAgainstDictionaries.TestCase.settings = of_length(examples=40, steps=40)
TestCacheAgainstDictionaries = CacheAgainstDictionaries.TestCase
