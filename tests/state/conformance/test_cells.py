"""Many cells at once: read for bases, written by wrappers, loaded by a restore."""

import pytest

from millpond.errors import OptionError
from millpond.state.backend.protocols import Cells
from millpond.state.spi import ABSENT, StateDescriptor, StateKind
from millpond.state.types.serializer import raw_serializer
from tests.state.conformance.kinds import (
    ANN,
    BOB,
    CART,
    EVE,
    GROUPS,
    HOME,
    INTEGER,
    Cell,
    changed,
    declare,
    describe,
    everything,
    placed,
    set_current_key,
)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
def test_cells_are_those_of_one_key_group(cell, backend, kind, committed):
    for group, key in [(3, ANN), (3, BOB), (4, EVE)]:
        set_current_key(backend, group, key)
        cell.put(kind.make(1))
    if committed:
        backend.commit().release()
    assert placed(backend.cells("visits", 3)) == cell.placed({(3, ANN): kind.make(1), (3, BOB): kind.make(1)})
    assert placed(backend.cells("visits", 4)) == cell.placed({(4, EVE): kind.make(1)})
    for group in GROUPS:
        cells = backend.cells("visits", group)
        assert (cells.map_keys is not None) == (cell.shape is StateKind.MAP)
        assert ABSENT not in cells.values
    assert len(backend.cells("visits", 5)) == 0


def test_written_cells_are_state_of_the_open_version(cell, backend, kind):
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    set_current_key(backend, 3, BOB)
    cell.put(kind.make(1))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)
    backend.write("visits", cell.cells({(3, ANN): kind.make(2), (3, BOB): ABSENT, (4, EVE): kind.make(3)}))
    assert (backend.context.key_group, backend.context.key) == (3, ANN)
    assert cell.get() == kind.make(2)
    expected = {(3, ANN): kind.make(2), (4, EVE): kind.make(3)}
    assert sorted(backend.keys("visits")) == sorted(expected)
    assert everything(backend, "visits") == cell.placed(expected)
    set_current_key(backend, 3, BOB)
    assert not cell.exists()
    snapshot = backend.commit()
    absent = dict(zip(cell.placed({(3, BOB): 0}), [ABSENT], strict=True))
    assert changed(snapshot.changes()) == {"visits": cell.placed(expected) | absent}
    assert everything(snapshot, "visits") == cell.placed(expected)


def test_written_cells_need_no_current_key_and_can_be_rolled_back(cell, backend, kind):
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    backend.commit().release()
    backend.write("visits", cell.cells({(3, ANN): ABSENT, (5, EVE): kind.make(3)}))
    assert everything(backend, "visits") == cell.placed({(5, EVE): kind.make(3)})
    assert backend.rollback()
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1)})
    backend.write("visits", cell.cells({(3, ANN): ABSENT, (5, EVE): kind.make(3)}))
    backend.commit().release()
    backend.undo_commit()
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1)})


def test_writing_absent_where_nothing_is_changes_no_state(cell, backend, kind):
    backend.write("visits", cell.cells({(3, ANN): ABSENT}))
    assert list(backend.keys("visits")) == []
    set_current_key(backend, 3, ANN)
    assert not cell.exists()
    snapshot = backend.commit()
    assert everything(snapshot, "visits") == {}


def test_writing_no_cells_is_no_change(cell, backend):
    backend.write("visits", cell.cells({}))
    assert not backend.rollback()


def test_loaded_cells_are_state_but_no_change(cell, backend, kind):
    set_current_key(backend, 3, ANN)
    assert cell.get() is None
    loaded = {(3, ANN): kind.make(1), (3, BOB): kind.make(2), (5, EVE): kind.make(3)}
    backend.load(cell.descriptor, cell.cells(loaded))
    backend.load(cell.descriptor, cell.cells({(3, BOB): ABSENT, (5, EVE): kind.make(4), (4, ("nobody",)): ABSENT}))
    loaded = {(3, ANN): kind.make(1), (5, EVE): kind.make(4)}
    assert everything(backend, "visits") == cell.placed(loaded)
    assert not backend.rollback()
    assert sorted(backend.keys("visits")) == sorted(loaded)
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)
    set_current_key(backend, 3, BOB)
    assert not cell.exists()
    snapshot = backend.commit()
    assert changed(snapshot.changes()) == {}
    assert everything(snapshot, "visits") == cell.placed(loaded)


def test_what_changes_after_a_load_is_a_change_against_it(cell, backend, kind):
    backend.load(cell.descriptor, cell.cells({(3, ANN): kind.make(1), (3, BOB): kind.make(2)}))
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(5))
    backend.context.key = BOB
    cell.clear()
    assert list(backend.keys("visits")) == [(3, ANN)]
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(5)})
    snapshot = backend.commit()
    absent = dict(zip(cell.placed({(3, BOB): 0}), [ABSENT], strict=True))
    assert changed(snapshot.changes()) == {"visits": cell.placed({(3, ANN): kind.make(5)}) | absent}
    backend.undo_commit()
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1), (3, BOB): kind.make(2)})
    set_current_key(backend, 3, BOB)
    assert cell.get() == kind.make(2)


def test_a_load_replaces_what_was_read_before_it(cell, backend, kind):
    backend.load(cell.descriptor, cell.cells({(3, ANN): kind.make(1)}))
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)
    backend.context.key = BOB
    assert cell.get() is None
    backend.load(cell.descriptor, cell.cells({(3, ANN): ABSENT, (3, BOB): kind.make(2)}))
    set_current_key(backend, 3, ANN)
    assert cell.get() is None
    assert not cell.exists()
    backend.context.key = BOB
    assert cell.get() == kind.make(2)


def test_a_load_that_removes_the_last_entry_leaves_no_state(backend, kind):
    cell = Cell(backend, StateKind.MAP, kind)
    backend.load(cell.descriptor, Cells([3, 3], [ANN, ANN], [HOME, CART], [kind.make(1), kind.make(2)]))
    backend.load(cell.descriptor, Cells([3, 3], [ANN, ANN], [HOME, CART], [ABSENT, ABSENT]))
    assert list(backend.keys("visits")) == []
    set_current_key(backend, 3, ANN)
    assert not cell.exists()


def test_a_state_may_be_restored_before_anybody_declares_it(backend, shape, kind):
    descriptor = describe("visits", shape, kind)
    raw = descriptor.serializer is not None
    if raw:
        pytest.skip("objects that nobody declared are bytes")
    loader = Cell(backend, shape, kind, "elsewhere")
    backend.load(descriptor, loader.cells({(3, ANN): kind.make(1)}))
    state = Cell(backend, shape, kind)
    set_current_key(backend, 3, ANN)
    assert state.get() == kind.make(1)


def test_a_restored_state_that_nobody_declared_is_bytes_and_travels_on(backend, shape):
    typed = describe("visits", shape, INTEGER)
    raw = StateDescriptor("visits", shape, typed.value_schema, typed.map_key_schema, raw_serializer("msgspec int"))
    maker = Cell(backend, shape, INTEGER, "other")
    backend.load(raw, maker.cells({(3, ANN): b"\x01", (4, EVE): b"\x02"}))
    assert everything(backend, "visits") == maker.placed({(3, ANN): b"\x01", (4, EVE): b"\x02"})
    snapshot = backend.commit()
    assert everything(snapshot, "visits") == maker.placed({(3, ANN): b"\x01", (4, EVE): b"\x02"})
    assert changed(snapshot.changes()) == {}
    backend.load(raw, maker.cells({(3, ANN): ABSENT}))
    assert sorted(backend.keys("visits")) == [(4, EVE)]


def test_declaring_a_state_that_is_held_as_bytes_is_refused(backend, shape):
    typed = describe("visits", shape, INTEGER)
    raw = StateDescriptor("visits", shape, typed.value_schema, typed.map_key_schema, raw_serializer("msgspec int"))
    backend.load(raw, Cell(backend, shape, INTEGER, "other").cells({(3, ANN): b"\x01"}))
    with pytest.raises(OptionError, match="visits") as refused:
        declare(backend, typed)
    assert "restore" in str(refused.value)


def test_a_declared_state_takes_what_a_restore_loads_under_its_declaration(backend, shape, kind):
    cell = Cell(backend, shape, kind)
    backend.load(describe("visits", shape, kind), cell.cells({(3, ANN): kind.make(1)}))
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)


def test_all_cells_of_a_backend_loaded_into_another_are_the_same_state(subject, cell, backend, kind, folder):
    for number in range(12):
        set_current_key(backend, 3 + number % 3, (f"user{number}",))
        cell.put(kind.make(number))
    snapshot = backend.commit()
    for number in range(0, 12, 5):
        set_current_key(backend, 3 + number % 3, (f"user{number}",))
        cell.clear()
    for source in (snapshot, backend):
        other = subject.open(GROUPS, folder / type(source).__name__)
        for group in GROUPS:
            other.load(cell.descriptor, source.cells("visits", group))
        copied = Cell(other, cell.shape, kind)
        assert everything(other, "visits") == everything(source, "visits") != {}
        set_current_key(other, 4, ("user1",))
        assert copied.get() == kind.make(1)
        other.close()


def test_cells_cannot_be_loaded_while_a_version_is_open(cell, backend, kind):
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    with pytest.raises(OptionError, match="'visits' cannot be loaded while a version is open"):
        backend.load(cell.descriptor, cell.cells({(3, BOB): kind.make(2)}))
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1)})
    backend.rollback()
    backend.load(cell.descriptor, cell.cells({(3, BOB): kind.make(2)}))
    assert everything(backend, "visits") == cell.placed({(3, BOB): kind.make(2)})
