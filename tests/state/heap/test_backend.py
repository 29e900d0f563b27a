"""The heap backend against plain dictionaries, one a version, and what it refuses."""

import copy

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.errors import DataError, OptionError
from millpond.state.backend.protocols import Appended
from millpond.state.spi import ABSENT, Cells, HeapBackend, StateDescriptor, StateKind
from tests.state.conformance.kinds import grown
from tests.state.lengths import of_length

GROUPS = range(3, 6)
NUMBER = pa.schema([("number", pa.int64())])
NUMBERS = pa.schema([("numbers", pa.list_(pa.int64()))])
NAME = pa.schema([("name", pa.string())])

VALUES = {
    "count": StateDescriptor("count", StateKind.VALUE, NUMBER),
    "recent": StateDescriptor("recent", StateKind.VALUE, NUMBERS),
}
LISTS = {
    "log": StateDescriptor("log", StateKind.LIST, NUMBER),
    "batches": StateDescriptor("batches", StateKind.LIST, NUMBERS),
}
MAPS = {
    "visits": StateDescriptor("visits", StateKind.MAP, NUMBER, NAME),
    "paths": StateDescriptor("paths", StateKind.MAP, NUMBERS, NAME),
}
NESTED = {"recent", "batches", "paths"}

number = st.one_of(st.none(), st.integers(0, 5))
key_number = st.integers(0, 2)
map_key = st.sampled_from([("a",), ("b",), (None,)])


def _value(data, name):
    return (data.draw(st.lists(number, max_size=2)) if name in NESTED else data.draw(number),)


def _flat(model, name):
    """A model's cells: by key group and key, and for a map state by map key too."""
    if name not in MAPS:
        return dict(model[name])
    return {(*at, entry): value for at, entries in model[name].items() for entry, value in entries.items()}


def _as_cells(cells: Cells):
    """Cells as a dictionary; two cells of the same place would be a mistake of their own."""
    if cells.map_keys is None:
        places = list(zip(cells.key_groups, cells.keys, strict=True))
    else:
        places = list(zip(cells.key_groups, cells.keys, cells.map_keys, strict=True))
    assert len(set(places)) == len(places)
    return dict(zip(places, cells.values, strict=True))


def _copied(value):
    return value if value is ABSENT else copy.deepcopy(value)


class HeapAgainstDictionaries(RuleBasedStateMachine):
    """`live` is the open version, `committed` the last one, `earlier` the one that may still be gone back to.

    `handed` is what was handed out in the open version and changed by its holder: seen again until an update or
    the version's end, and never state. `snapshots` are those not yet released, with what they must show.
    """

    def __init__(self):
        super().__init__()
        self.backend = HeapBackend(GROUPS)
        self.values = {name: self.backend.value_state(descriptor) for name, descriptor in VALUES.items()}
        self.lists = {name: self.backend.list_state(descriptor) for name, descriptor in LISTS.items()}
        self.maps = {name: self.backend.map_state(descriptor) for name, descriptor in MAPS.items()}
        self.live = {name: {} for name in (*VALUES, *LISTS, *MAPS)}
        self.committed = copy.deepcopy(self.live)
        self.earlier = None
        self.touched = set()
        self.handed = {}
        self.snapshots = []
        self.entered = None

    def _at(self, data):
        group = data.draw(st.sampled_from(GROUPS))
        if group != self.entered:
            self.backend.enter(group)
            self.entered = group
        key = (f"{group}-{data.draw(key_number)}",)
        self.backend.context.key = key
        return group, key

    def _touch(self, name, at):
        self.touched.add((name, *at))
        self.handed.pop((name, *at), None)

    def _spoil(self, name, at, found):
        """Change what was handed out, if it can be."""
        if name in NESTED and found is not None:
            found[0].append(98)
            self.handed[name, *at] = copy.deepcopy(found)

    def _seen(self, name, at, value):
        return self.handed.get((name, *at), value)

    @rule(data=st.data(), name=st.sampled_from(list(VALUES)))
    def update_a_value(self, data, name):
        at, value = self._at(data), _value(data, name)
        self.live[name][at] = copy.deepcopy(value)
        self.values[name].update(value)
        self._touch(name, at)
        if name in NESTED:
            value[0].append(99)  # the caller's own list, no longer the state's

    @rule(data=st.data(), name=st.sampled_from(list(VALUES)))
    def read_a_value(self, data, name):
        at = self._at(data)
        found = self.values[name].get()
        assert found == self._seen(name, at, self.live[name].get(at))
        assert self.values[name].exists() == (at in self.live[name])
        self._spoil(name, at, found)

    @rule(data=st.data(), name=st.sampled_from([*VALUES, *LISTS, *MAPS]))
    def clear(self, data, name):
        at = self._at(data)
        (self.values | self.lists | self.maps)[name].clear()
        removed = self.live[name].pop(at, None)
        for entry in removed or {} if name in MAPS else ():
            self._touch(name, (*at, entry))
        self._touch(name, at)

    @rule(data=st.data(), name=st.sampled_from(list(LISTS)), how=st.sampled_from(["append", "extend", "put"]))
    def change_a_list(self, data, name, how):
        at = self._at(data)
        values = [_value(data, name) for _ in range(1 if how == "append" else data.draw(st.integers(1, 3)))]
        old = [] if how == "put" else self.live[name].get(at, [])
        seen = [] if how == "put" else self._seen(name, at, old)
        self.live[name][at] = old + copy.deepcopy(values)
        handle = self.lists[name]
        if how == "append":
            handle.append(values[0])
        elif how == "extend":
            handle.extend(value for value in values)
        else:
            handle.put(values)
            values.append((7,))
        self._touch(name, at)
        if seen != old:
            self.handed[name, *at] = seen + copy.deepcopy(values)
        if name in NESTED:
            values[0][0].append(97)

    @rule(data=st.data(), name=st.sampled_from(list(LISTS)))
    def read_a_list(self, data, name):
        at = self._at(data)
        found = list(self.lists[name].get())
        assert found == self._seen(name, at, self.live[name].get(at, []))
        assert self.lists[name].exists() == (at in self.live[name])
        if found and name in NESTED:
            found[0][0].append(98)
            self.handed[name, *at] = copy.deepcopy(found)

    @rule(data=st.data(), name=st.sampled_from(list(LISTS)))
    def an_iterator_shows_the_list_as_it_was(self, data, name):
        at = self._at(data)
        before, seen = self.live[name].get(at, []), copy.deepcopy(self._seen(name, at, self.live[name].get(at, [])))
        elements, value = self.lists[name].get(), _value(data, name)
        self.lists[name].append(value)
        self.live[name][at] = [*before, value]
        self._touch(name, at)
        if seen != before:
            self.handed[name, *at] = [*seen, value]
        assert list(elements) == seen

    @rule(data=st.data(), name=st.sampled_from(list(MAPS)), entry=map_key)
    def put_an_entry(self, data, name, entry):
        at, value = self._at(data), _value(data, name)
        self.live[name].setdefault(at, {})[entry] = copy.deepcopy(value)
        self.maps[name].put(entry, value)
        self._touch(name, (*at, entry))
        if name in NESTED:
            value[0].append(96)

    @rule(data=st.data(), name=st.sampled_from(list(MAPS)), entry=map_key)
    def remove_an_entry(self, data, name, entry):
        at = self._at(data)
        entries = self.live[name].get(at, {})
        entries.pop(entry, None)
        if not entries:
            self.live[name].pop(at, None)
        self.maps[name].remove(entry)
        self._touch(name, (*at, entry))

    @rule(data=st.data(), name=st.sampled_from(list(MAPS)), entry=map_key)
    def read_a_map(self, data, name, entry):
        at = self._at(data)
        entries, handle = self.live[name].get(at, {}), self.maps[name]
        assert handle.get(entry) == self._seen(name, (*at, entry), entries.get(entry))
        assert handle.contains(entry) == (entry in entries)
        assert handle.exists() == bool(entries)
        found = dict(handle.items())
        assert found == {each: self._seen(name, (*at, each), value) for each, value in entries.items()}
        for each, value in found.items():
            self._spoil(name, (*at, each), value)

    @rule(data=st.data())
    def a_refused_change_changes_nothing(self, data):
        self._at(data)
        with pytest.raises(DataError, match="count"):
            self.values["count"].update(("many",))
        with pytest.raises(DataError, match="log"):
            self.lists["log"].extend([(1,), ("many",)])
        with pytest.raises(DataError, match="visits"):
            self.maps["visits"].put(("a",), ("many",))
        with pytest.raises(DataError, match="visits"):
            self.maps["visits"].put((1,), (1,))

    def _changes(self, snapshot):
        """What a snapshot says has changed, against what did: cells set to what they were may be among them."""
        changes = self._changed(snapshot, self.committed)
        assert all(changes.values())
        for name in self.live:
            before, after = _flat(self.committed, name), _flat(self.live, name)
            cells = changes.get(name, {})
            differing = {at for at in before.keys() | after.keys() if before.get(at, ABSENT) != after.get(at, ABSENT)}
            touched = {tuple(at) for state, *at in self.touched if state == name}
            assert differing <= cells.keys() <= touched
            assert cells == {at: after.get(at, ABSENT) for at in cells}
        return {name: {at: _copied(value) for at, value in cells.items()} for name, cells in changes.items()}

    @staticmethod
    def _changed(snapshot, before):
        return {
            name: {
                at: grown(value, _flat(before, name).get(at, ABSENT)) if type(value) is Appended else value
                for at, value in _as_cells(cells).items()
            }
            for name, cells in snapshot.changes()
        }

    def _begin(self):
        self.touched, self.handed, self.entered = set(), {}, None

    @rule(keep=st.booleans())
    def commit(self, keep):
        snapshot = self.backend.commit()
        changes = self._changes(snapshot)
        if keep and len(self.snapshots) < 3:
            before = copy.deepcopy(self.committed)
            self.snapshots.append((snapshot, copy.deepcopy(self.live), before, changes))
        self.earlier, self.committed = self.committed, copy.deepcopy(self.live)
        self._begin()

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def release(self, data):
        snapshot, *_ = self.snapshots.pop(data.draw(st.integers(0, len(self.snapshots) - 1)))
        snapshot.release()

    @rule()
    def rollback(self):
        assert self.backend.rollback() or self.live == self.committed
        self.live = copy.deepcopy(self.committed)
        self._begin()

    @precondition(lambda self: self.earlier is not None)
    @rule()
    def undo_commit(self):
        self.backend.undo_commit()
        self.committed, self.earlier = self.earlier, None
        self.live = copy.deepcopy(self.committed)
        self._begin()

    @rule()
    def acknowledge(self):
        self.backend.acknowledge()
        self.earlier = None

    @rule(data=st.data(), name=st.sampled_from([*VALUES, *LISTS, *MAPS]), delete=st.booleans())
    def write_a_cell(self, data, name, delete):
        """Whatever the current key is, which stays current."""
        group = data.draw(st.sampled_from(GROUPS))
        key, entry = (f"{group}-{data.draw(key_number)}",), data.draw(map_key)
        value = [_value(data, name)] if name in LISTS else _value(data, name)
        value = ABSENT if delete else value
        self.backend.write(name, Cells([group], [key], [entry] if name in MAPS else None, [_copied(value)]))
        whole = self.live[name].setdefault((group, key), {}) if name in MAPS else self.live[name]
        place = entry if name in MAPS else (group, key)
        whole.pop(place, None)
        if not delete:
            whole[place] = value
        if name in MAPS and not whole:
            del self.live[name][group, key]
        self._touch(name, (group, key, entry) if name in MAPS else (group, key))

    @invariant()
    def every_cell_is_the_models(self):
        for name in self.live:
            whole = _flat(self.live, name)
            for group in GROUPS:
                cells = self.backend.cells(name, group)
                assert len(cells) == len(cells.keys)
                assert _as_cells(cells) == {at: value for at, value in whole.items() if at[0] == group}
            assert sorted(self.backend.keys(name)) == sorted(self.live[name])

    @invariant()
    def every_snapshot_is_as_it_was(self):
        for snapshot, contents, before, changes in self.snapshots:
            assert self._changed(snapshot, before) == changes
            for name in self.live:
                whole = _flat(contents, name)
                for group in GROUPS:
                    found = _as_cells(snapshot.cells(name, group))
                    assert found == {at: value for at, value in whole.items() if at[0] == group}


HeapAgainstDictionaries.TestCase.settings = of_length(examples=40, steps=40)
TestHeapAgainstDictionaries = HeapAgainstDictionaries.TestCase


def _map_state(backend, key_type, value=NUMBER):
    return backend.map_state(StateDescriptor("m", StateKind.MAP, value, pa.schema([("at", key_type)])))


def test_an_entry_put_under_nan_is_found_under_any_nan():
    backend = HeapBackend(range(1))
    entries = _map_state(backend, pa.float64())
    backend.enter(0)
    entries.put((float("nan"),), (1,))
    entries.put((float("inf") - float("inf"),), (2,))
    assert entries.get((float("nan"),)) == (2,)
    assert len(list(entries.items())) == 1


def test_zero_and_minus_zero_are_one_map_key_with_one_spelling():
    backend = HeapBackend(range(1))
    entries = _map_state(backend, pa.float64())
    backend.enter(0)
    entries.put((0.0,), (1,))
    entries.remove((-0.0,))
    entries.put((-0.0,), (2,))
    live = [repr(entry) for entry, _ in entries.items()]
    assert live == [repr(entry) for _, cells in backend.commit().changes() for entry in cells.map_keys]


def test_a_map_key_that_cannot_be_a_key_is_refused_when_declared():
    with pytest.raises(OptionError, match=r"'m'.*'at'"):
        _map_state(HeapBackend(range(1)), pa.list_(pa.int64()))


def test_a_state_used_without_a_key_says_so_by_name():
    backend = HeapBackend(range(2))
    count = backend.value_state(VALUES["count"])
    log = backend.list_state(LISTS["log"])
    visits = backend.map_state(MAPS["visits"])
    uses = [
        count.get,
        count.exists,
        count.clear,
        lambda: count.update((1,)),
        log.get,
        log.exists,
        log.clear,
        lambda: log.put([(1,)]),
        lambda: log.append((1,)),
        visits.exists,
        visits.clear,
        visits.items,
        lambda: visits.get(("a",)),
        lambda: visits.contains(("a",)),
        lambda: visits.put(("a",), (1,)),
        lambda: visits.remove(("a",)),
    ]
    for use in uses:
        with pytest.raises(OptionError, match="without a current key"):
            use()
    backend.enter(0)
    backend.context.key = ("ann",)
    count.update((1,))
    backend.commit()
    with pytest.raises(OptionError, match="'count' was used without a current key"):
        count.update((2,))
    backend.enter(0)
    backend.rollback()
    with pytest.raises(OptionError, match="'count' was used without a current key"):
        count.get()


def test_a_key_group_of_another_shard_is_refused():
    with pytest.raises(OptionError, match=r"key group 7.*range\(0, 2\)"):
        HeapBackend(range(2)).enter(7)


def test_a_state_declared_again_otherwise_is_refused_with_both_schemas():
    backend = HeapBackend(range(2))
    backend.value_state(VALUES["count"])
    assert backend.value_state(VALUES["count"]) is backend.value_state(VALUES["count"])
    with pytest.raises(OptionError, match=r"value count \(number: int64\).*list count \(number: int64\)"):
        backend.list_state(StateDescriptor("count", StateKind.LIST, NUMBER))
    with pytest.raises(OptionError, match=r"name: string"):
        backend.value_state(StateDescriptor("count", StateKind.VALUE, NAME))


def test_loading_puts_and_deletes_outside_any_version():
    backend = HeapBackend(range(2))
    backend.load(VALUES["count"], Cells([0, 1, 0], [("ann",), ("bob",), ("cy",)], None, [(1,), (2,), (3,)]))
    backend.load(VALUES["count"], Cells([0], [("ann",)], None, [ABSENT]))
    backend.load(MAPS["visits"], Cells([0, 0], [("ann",)] * 2, [("a",), ("b",)], [(1,), (2,)]))
    backend.load(MAPS["visits"], Cells([0], [("ann",)], [("a",)], [ABSENT]))
    assert not backend.rollback()
    assert list(backend.commit().changes()) == []
    assert _as_cells(backend.cells("count", 0)) == {(0, ("cy",)): (3,)}
    assert _as_cells(backend.cells("visits", 0)) == {(0, ("ann",), ("b",)): (2,)}
    assert len(backend.cells("unheard of", 0)) == 0


def test_closing_twice_is_closing_once():
    backend = HeapBackend(range(2))
    backend.load(VALUES["count"], Cells([0], [("ann",)], None, [(1,)]))
    count = backend.value_state(VALUES["count"])
    backend.enter(0)
    backend.close()
    backend.close()
    assert len(backend.cells("count", 0)) == 0
    with pytest.raises(OptionError, match="'count' was used without a current key"):
        count.get()
