"""What a handle gives out is the caller's own: a change of it is state after an update, and only then."""

from dataclasses import replace

import pytest

from millpond.state.spi import StateKind
from millpond.state.types.serializer import Serializer, msgspec_serializer
from tests.state.conformance.kinds import (
    ANN,
    BOB,
    DICT,
    LIST,
    NESTED_ROW,
    Cell,
    changed,
    everything,
    placed,
    set_current_key,
)

KINDS_UNDER_TEST = [NESTED_ROW, LIST, DICT]


@pytest.fixture
def committed(cell, backend, kind):
    """A committed value of the current key, ann."""
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    snapshot = backend.commit()
    set_current_key(backend, 3, ANN)
    return snapshot


def test_a_change_without_an_update_is_gone_with_the_version(cell, backend, kind, committed):
    kind.grow(cell.get())
    snapshot = backend.commit()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)
    assert changed(snapshot.changes()) == {}
    assert everything(snapshot, "visits") == cell.placed({(3, ANN): kind.make(1)})


def test_a_change_without_an_update_is_gone_with_a_rollback(cell, backend, kind, committed):
    kind.grow(cell.get())
    backend.rollback()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)


def test_a_change_without_an_update_does_not_go_with_the_update_of_another_key(cell, backend, kind, committed):
    kind.grow(cell.get())
    backend.context.key = BOB
    cell.put(kind.make(2))
    snapshot = backend.commit()
    assert changed(snapshot.changes()) == {"visits": cell.placed({(3, BOB): kind.make(2)})}
    backend.undo_commit()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)


def test_a_change_after_the_last_update_may_be_seen_but_does_not_outlive_a_second_version(
    cell, backend, kind, committed
):
    cell.put(kind.make(2))
    backend.commit()
    set_current_key(backend, 3, ANN)
    kind.grow(cell.get())
    backend.commit()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(2)


def test_a_change_does_not_reach_an_earlier_snapshot_even_with_an_update(cell, backend, kind, committed):
    value = cell.get()
    kind.grow(value)
    cell.put(value)
    assert cell.get() == kind.grown(1)
    before = cell.placed({(3, ANN): kind.make(1)})
    assert changed(committed.changes()) == {"visits": before}
    assert everything(committed, "visits") == before
    later = backend.commit()
    after = cell.placed({(3, ANN): kind.grown(1)})
    set_current_key(backend, 3, ANN)
    kind.grow(cell.get())
    assert everything(committed, "visits") == before
    assert changed(later.changes()) == {"visits": after}
    assert everything(later, "visits") == after
    assert cell.placed({(3, ANN): kind.grown(1)}) == everything(later, "visits")


def test_updated_objects_are_not_changed_by_the_gets_of_later_versions(cell, backend, kind, committed):
    for _ in range(3):
        value = cell.get()
        kind.grow(value)
        cell.put(value)
        snapshot = backend.commit()
        expected = everything(snapshot, "visits")
        set_current_key(backend, 3, ANN)
        for _ in range(2):
            kind.grow(cell.get())
        assert everything(snapshot, "visits") == expected
        assert changed(snapshot.changes()) == {"visits": expected}
        backend.rollback()
        set_current_key(backend, 3, ANN)


def test_a_change_that_was_updated_is_undone_by_rollback_and_by_undo(cell, backend, kind, committed):
    value = cell.get()
    kind.grow(value)
    cell.put(value)
    backend.rollback()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)
    value = cell.get()
    kind.grow(value)
    cell.put(value)
    backend.commit()
    backend.undo_commit()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)


def test_live_cells_do_not_show_a_change_that_came_without_an_update_once_the_version_ended(
    cell, backend, kind, committed
):
    kind.grow(cell.get())
    backend.commit()
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1)})


def test_a_second_get_of_one_version_gives_the_same_object(subject, cell, backend, kind, committed):
    if not subject.keeps_what_it_hands_out:
        pytest.skip("values are bytes, or may have been evicted")
    assert cell.get() is cell.get()
    value = cell.get()
    kind.grow(value)
    assert cell.get() == kind.grown(1)


def test_appending_does_not_make_a_changed_element_state(backend, kind):
    log = Cell(backend, StateKind.LIST, kind).handle
    set_current_key(backend, 3, ANN)
    log.extend([kind.make(1), kind.make(2)])
    first = backend.commit()
    set_current_key(backend, 3, ANN)
    kind.grow(next(iter(log.get())))
    log.append(kind.make(4))
    second = backend.commit()
    set_current_key(backend, 3, ANN)
    whole = [kind.make(1), kind.make(2), kind.make(4)]
    assert list(log.get()) == whole
    assert placed(first.cells("visits", 3)) == {(3, ANN): whole[:2]}
    assert placed(second.cells("visits", 3)) == {(3, ANN): whole}
    before = {"visits": {(3, ANN): whole[:2]}}
    assert changed(second.changes(), before) == {"visits": {(3, ANN): whole}}


def test_what_was_handed_out_does_not_come_back_after_a_clear(cell, backend, kind, committed):
    kind.grow(cell.get())
    cell.clear()
    assert cell.get() is None
    assert not cell.exists()
    cell.put(kind.make(2))
    assert cell.get() == kind.make(2)
    cell.clear()
    if cell.shape is StateKind.LIST:
        cell.handle.append(kind.make(4))
        assert list(cell.handle.get()) == [kind.make(4)]
    snapshot = backend.commit()
    assert kind.make(1) not in everything(snapshot, "visits").values()
    backend.undo_commit()
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1)})


def test_elements_appended_in_a_version_are_the_states_own_in_the_next(backend, kind):
    log = Cell(backend, StateKind.LIST, kind).handle
    set_current_key(backend, 3, ANN)
    log.append(kind.make(1))
    first = backend.commit()
    set_current_key(backend, 3, ANN)
    log.append(kind.make(2))
    for element in log.get():
        kind.grow(element)
    assert placed(first.cells("visits", 3)) == {(3, ANN): [kind.make(1)]}
    log.append(kind.make(4))
    assert changed(first.changes()) == {"visits": {(3, ANN): [kind.make(1)]}}


def test_the_values_of_items_are_the_callers_own(backend, kind):
    pages = Cell(backend, StateKind.MAP, kind).handle
    set_current_key(backend, 3, ANN)
    pages.put(("a", 1), kind.make(1))
    pages.put(("b", 1), kind.make(2))
    snapshot = backend.commit()
    set_current_key(backend, 3, ANN)
    for map_key, value in pages.items():
        kind.grow(value)
        if map_key == ("a", 1):
            pages.put(map_key, value)
    assert placed(snapshot.cells("visits", 3)) == {(3, ANN, ("a", 1)): kind.make(1), (3, ANN, ("b", 1)): kind.make(2)}
    later = backend.commit()
    set_current_key(backend, 3, ANN)
    assert dict(pages.items()) == {("a", 1): kind.grown(1), ("b", 1): kind.make(2)}
    assert changed(later.changes()) == {"visits": {(3, ANN, ("a", 1)): kind.grown(1)}}


def counting(serializer: Serializer, copies: list) -> Serializer:
    """The serializer, noting what it copies."""

    def copied(value):
        copies.append(value)
        return serializer.copy(value)

    return replace(serializer, copy=copied)


@pytest.mark.parametrize("updates", [True, False], ids=["updated", "read"])
def test_an_entry_is_copied_at_most_once_a_version(backend, shape, updates):
    copies: list[object] = []
    kind = replace(DICT, serializer=counting(msgspec_serializer(dict[str, list[int]]), copies))
    cell = Cell(backend, shape, kind)
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    for _ in range(3):
        snapshot = backend.commit()
        copies.clear()
        set_current_key(backend, 3, ANN)
        for _ in range(5):
            value = cell.get()
            kind.grow(value)
            if updates:
                cell.put(value)
        assert len(copies) <= 1
        changed(snapshot.changes())
        everything(snapshot, "visits")
        assert len(copies) <= 1
        backend.acknowledge()


def test_values_that_cannot_change_are_never_copied(backend, shape):
    copies: list[object] = []
    serializer = counting(msgspec_serializer(int), copies)
    cell = Cell(backend, shape, replace(DICT, serializer=serializer))
    for number in range(3):
        set_current_key(backend, 3, ANN)
        cell.put(number)
        snapshot = backend.commit()
        set_current_key(backend, 3, ANN)
        assert cell.get() == number
        everything(snapshot, "visits")
    assert copies == []
