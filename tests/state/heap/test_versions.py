"""Versions of the heap: an undo log says the same as undo maps do, however and whenever it is read."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.heap import versions as heap_versions
from millpond.state.heap.versions import EntryVersion, LoggedVersion, Version, keep_entry, kept_entries, undo_after
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

CHANGES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcde"), st.booleans()), max_size=60)
"""Key group and key of changes, and whether somebody reads the undo maps after them."""


def changed(version, changes):
    """Tables that were changed so, under a version that kept the old values."""
    live = {}
    for number, (key_group, name, reads) in enumerate(changes):
        table = live.setdefault(key_group, {})
        version.keep(key_group, (name,), table)
        table[name,] = number
        if reads:
            version.undo  # noqa: B018 - reading is what it does
    return live


@given(CHANGES)
def test_a_log_says_the_same_as_maps(changes):
    maps, log = Version(), LoggedVersion()
    changed(maps, changes)
    changed(log, changes)
    assert log.undo == maps.undo
    assert log.changed() == maps.changed() == bool(changes)


@given(CHANGES, st.integers(1, 20))
def test_a_log_may_be_read_some_changes_at_a_time(changes, most):
    whole, parts = LoggedVersion(), LoggedVersion()
    changed(whole, [(key_group, name, False) for key_group, name, _ in changes])
    changed(parts, changes)
    calls = 1
    while parts.read_some(most):
        calls += 1
    assert calls <= 1 + len(changes) // most
    assert parts.maps == whole.undo


@given(CHANGES)
def test_keys_are_in_the_order_in_which_they_were_first_changed(changes):
    log = LoggedVersion()
    changed(log, [(key_group, name, False) for key_group, name, _ in changes])
    for key_group, undo in log.undo.items():
        assert list(undo) == list(dict.fromkeys((name,) for group, name, _ in changes if group == key_group))


def test_of_very_many_changes_some_are_counted_for_all(monkeypatch):
    monkeypatch.setattr(heap_versions, "_COUNTED", 10)
    log = LoggedVersion()
    changed(log, [(number % 2, str(number), False) for number in range(301)])
    counted = log.changes()
    assert counted.keys() == {0, 1}
    assert abs(counted[0] - 150) < 31
    assert abs(counted[1] - 150) < 31


@given(CHANGES)
def test_of_what_was_not_there_it_is_said_that_it_was_not(changes):
    log = LoggedVersion()
    live = changed(log, changes)
    for key_group, undo in log.undo.items():
        assert live[key_group].keys() == undo.keys()
        assert set(undo.values()) <= {ABSENT}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.sampled_from("abcde"), min_size=1, max_size=4), st.booleans()))
)
def test_many_keys_are_kept_as_one_after_the_other(turns):
    """Many at once, between single ones."""
    one, some = LoggedVersion(), LoggedVersion()
    live = {}
    for number, (key_group, names, at_once) in enumerate(turns):
        table, keys = live.setdefault(key_group, {}), [(name,) for name in names]
        for key in keys:
            one.keep(key_group, key, table)
        if at_once:
            some.keep_all(key_group, keys, [table.get(key, ABSENT) for key in keys])
        else:
            for key in keys:
                some.keep(key_group, key, table)
        table.update(dict.fromkeys(keys, number))
    assert dict(some.changes()) == dict(one.changes())
    assert some.undo == one.undo
    assert set(some.sampled(1)) == set(one.sampled(1))


@given(CHANGES, st.integers(1, 5))
def test_changes_are_counted_and_sampled_whether_they_were_read_or_not(changes, every):
    log = LoggedVersion()
    changed(log, changes)
    groups = [key_group for key_group, _, _ in changes]
    assert dict(log.changes()) == {group: groups.count(group) for group in set(groups)}
    assert list(log.sampled(every)) == [(key_group, (name,)) for key_group, name, _ in changes[::every]]


def test_maps_are_counted_and_sampled_too():
    maps = Version()
    changed(maps, [(3, "a", False), (3, "b", False), (3, "a", False), (5, "c", False)])
    assert maps.changes() == {3: 2, 5: 1}
    assert list(maps.sampled(2)) == [(3, ("a",)), (5, ("c",))]


def test_a_key_that_is_changed_again_and_again_is_kept_once():
    backend = HeapBackend(range(8))
    count = backend.value_state(StateDescriptor("count", StateKind.VALUE, pa.schema([("number", pa.int64())])))
    backend.enter(3)
    backend.context.key = ("ann",)
    for number in range(1_000):
        count.update((number,))
    (kept,) = backend.states["count"].tables.open.undo.values()
    assert kept == {"ann": ABSENT}
    assert backend.states["count"].tables.open.changes() == {3: 1}


def test_no_keys_change_nothing():
    log = LoggedVersion()
    log.keep_all(3, [], [])
    assert not log.changed()
    assert log.undo == {}


def test_the_same_key_is_kept_in_each_of_its_key_groups():
    backend = HeapBackend(range(8))
    count = backend.value_state(StateDescriptor("count", StateKind.VALUE, pa.schema([("number", pa.int64())])))
    ann = ("ann",)
    for key_group, before in ((3, 1), (5, 2)):
        backend.write("count", Cells([key_group], [ann], None, [(before,)]))
    backend.commit()
    backend.enter(3)
    backend.context.key = ann
    count.update((7,))
    backend.write("count", Cells([5], [("bob",)], None, [(0,)]))
    backend.enter(5)
    backend.context.key = ann
    count.update((8,))
    backend.rollback()
    assert [backend.cells("count", group).values for group in (3, 5)] == [[(1,)], [(2,)]]


@pytest.mark.parametrize("kind", [Version, LoggedVersion])
def test_what_is_read_of_an_open_version_has_no_part_of_the_one_after_it(kind):
    """The version closes, and the next one changes the same cell, right after its undo maps were read."""
    held, open_version, after = Version(), None, kind()

    class ClosesWhenRead(kind):
        @property
        def undo(self):
            found = {group: undo.copy() for group, undo in super().undo.items()}
            self.keep(0, ("ann",), {("ann",): "committed"})
            self.next = after
            after.keep(0, ("ann",), {("ann",): "of the version that closed"})
            return found

    held.next = open_version = ClosesWhenRead()
    open_version.keep(0, ("bob",), {})
    assert undo_after(held, 0) == [{("bob",): ABSENT}]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()), max_size=20))
def test_entries_keep_the_value_that_they_had_before_their_first_change(changes):
    version, live = EntryVersion(), {("a",): {("x",): -1, ("y",): -2}}
    expected = {}
    for number, (key, map_key, removes) in enumerate(changes):
        entries = live.setdefault((key,), {})
        keep_entry(version.maps.setdefault(3, {}), (key,), (map_key,), entries)
        expected.setdefault((key,), {}).setdefault((map_key,), entries.get((map_key,), ABSENT))
        if removes:
            entries.pop((map_key,), None)
        else:
            entries[map_key,] = number
    assert version.old_values(3) == expected
    kept = {key: list(kept_entries(old)) for key, old in version.maps.get(3, {}).items()}
    assert kept == {key: list(entries) for key, entries in expected.items()}


def test_the_only_changed_entry_of_a_key_takes_no_dictionary():
    undo = {}
    keep_entry(undo, ("a",), (1,), {(1,): "old"})
    keep_entry(undo, ("a",), (1,), {(1,): "newer"})
    assert undo == {("a",): ((1,), "old")}


def test_the_changed_keys_of_a_closed_version_are_found_once(monkeypatch):
    log, read = LoggedVersion(), []
    changed(log, [(number % 3, name, False) for number, name in enumerate("abcabca")])
    found = heap_versions._of_single
    monkeypatch.setattr(heap_versions, "_of_single", lambda *entries: read.append(entries) or found(*entries))
    keys = {key_group: sorted(of_group) for key_group, of_group in log.changed_keys().items()}
    assert keys == {0: [("a",)], 1: [("b",)], 2: [("c",)]}
    assert log.changed_keys() is log.changed_keys()
    assert len(read) == 1
