"""The cells of a state past its handle: for caches and clean-up, which turn to no key."""

import pytest

from millpond.errors import OptionError
from millpond.state.spi import ABSENT, StateKind
from tests.state.conformance.kinds import (
    ANN,
    BOB,
    EVE,
    HOME,
    Cell,
    changed,
    copied,
    everything,
    placed,
    set_current_key,
)


def _cell(shape, key):
    return (key, HOME) if shape is StateKind.MAP else key


def test_a_raw_read_gives_the_present_value_and_leaves_the_current_key(cell, backend, kind, shape):
    for group, key, number in [(3, ANN, 1), (3, BOB, 2), (4, EVE, 3)]:
        set_current_key(backend, group, key)
        cell.put(kind.make(number))
    backend.commit().release()
    raw = backend.raw("visits")
    read = lambda group, key: raw.read(raw.place(group, _cell(shape, key)))  # noqa: E731
    assert read(3, BOB) == cell.holds(kind.make(2)), "no key is current"
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(4))
    assert read(4, EVE) == cell.holds(kind.make(3))
    assert read(4, ("nobody",)) is None
    assert read(3, ANN) == cell.holds(kind.make(4))
    assert (backend.context.key_group, backend.context.key) == (3, ANN)
    cell.clear()
    assert read(3, ANN) is None


def test_cells_that_are_put_are_changes_of_the_open_version(cell, backend, kind, shape):
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    set_current_key(backend, 3, BOB)
    cell.put(kind.make(2))
    backend.commit().release()
    raw = backend.raw("visits")
    places = [raw.place(group, _cell(shape, key)) for group, key in [(3, ANN), (4, EVE), (3, BOB)]]
    assert all(places), "a place is something true"
    for again in (False, True):
        raw.put_all(places, [cell.holds(kind.make(4)), cell.holds(kind.make(3)), None])
        assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(4), (4, EVE): kind.make(3)})
        if not again:
            assert backend.rollback()
            assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1), (3, BOB): kind.make(2)})
    expected = cell.placed({(3, ANN): kind.make(4), (4, EVE): kind.make(3), (3, BOB): 0})
    expected[cell.place(3, BOB)] = ABSENT
    snapshot = backend.commit()
    assert changed(snapshot.changes())["visits"] == expected
    snapshot.release()


def test_all_cells_of_one_key_are_given_and_no_others(cell, backend, kind, shape):
    set_current_key(backend, 3, BOB)
    cell.put(kind.make(9))
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    expected = cell.placed({(3, ANN): kind.make(1)})
    for number in range(3) if shape is StateKind.MAP else ():
        cell.handle.put((f"page {number}", number), kind.make(number))
        expected[3, ANN, (f"page {number}", number)] = kind.make(number)
    raw = backend.raw("visits")
    assert placed(raw.of_key(3, ANN)) == expected
    backend.commit().release()
    assert placed(raw.of_key(3, ANN)) == expected
    set_current_key(backend, 3, ANN)
    cell.clear()
    assert len(raw.of_key(3, ANN)) == 0
    assert len(raw.of_key(4, EVE)) == 0


def test_what_was_looked_at_does_not_change_with_the_cell(cell, backend, kind, shape):
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    raw = backend.raw("visits")
    seen = raw.read(raw.place(3, _cell(shape, ANN)))
    before = copied(seen)
    if shape is StateKind.LIST:
        cell.handle.append(kind.make(2))
    else:
        cell.put(kind.make(2))
    assert seen == before


def test_states_do_not_see_each_others_cells(backend, shape, kind):
    one, other = Cell(backend, shape, kind, "one"), Cell(backend, shape, kind, "other")
    set_current_key(backend, 3, ANN)
    one.put(kind.make(1))
    other.put(kind.make(2))
    for name, number in [("one", 1), ("other", 2)]:
        raw = backend.raw(name)
        assert raw.read(raw.place(3, _cell(shape, ANN))) == one.holds(kind.make(number))


def test_cells_of_a_state_that_nobody_declared_are_refused(backend):
    with pytest.raises(OptionError, match="state 'visits' is not declared"):
        backend.raw("visits")
