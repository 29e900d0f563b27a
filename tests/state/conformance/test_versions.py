"""Versions: what commit, rollback, undo and acknowledge leave behind, in every legal order."""

import pytest

from millpond.state.spi import ABSENT, StateKind
from tests.state.conformance.kinds import (
    ANN,
    BOB,
    CART,
    EVE,
    FLAT_ROW,
    HOME,
    INTEGER,
    Cell,
    changed,
    everything,
    placed,
    set_current_key,
)


@pytest.fixture
def room(cell, backend, kind):
    return Room(cell, backend, kind)


class Room:
    """One state of some users in two key groups, written by numbers."""

    def __init__(self, cell, backend, kind):
        self.cell, self.backend, self.kind = cell, backend, kind

    def put(self, **numbers):
        """Set or, for None, clear the values of users."""
        for user, number in numbers.items():
            self.set_current_key(user)
            if number is None:
                self.cell.clear()
            else:
                self.cell.put(self.kind.make(number))

    def set_current_key(self, user):
        set_current_key(self.backend, *self.at(user))

    @staticmethod
    def at(user):
        return 3 + len(user) % 2, (user,)

    def expected(self, **numbers):
        values = {self.at(user): ABSENT if n is None else self.kind.make(n) for user, n in numbers.items()}
        return self.cell.placed(values)

    def holds(self, **numbers):
        """Whether this, and nothing else, is the state, seen in every way there is."""
        assert everything(self.backend, "visits") == self.expected(**numbers)
        assert sorted(self.backend.keys("visits")) == sorted(map(self.at, numbers))
        for user in ("ann", "bob", "zoey", "nobody"):
            self.set_current_key(user)
            number = numbers.get(user)
            assert self.cell.exists() == (number is not None)
            assert self.cell.get() == (None if number is None else self.kind.make(number))
        return True

    def changes(self, snapshot):
        return changed(snapshot.changes()).get("visits", {})


def test_nothing_changed_is_an_empty_version(room, backend):
    assert not backend.rollback()
    snapshot = backend.commit()
    assert changed(snapshot.changes()) == {}
    assert room.holds()


def test_a_version_changes_what_was_touched_and_holds_all(room, backend):
    room.put(ann=1, bob=2, zoey=3)
    first = backend.commit()
    assert room.changes(first) == room.expected(ann=1, bob=2, zoey=3)
    room.put(ann=4, bob=None)
    second = backend.commit()
    assert room.changes(second) == room.expected(ann=4, bob=None)
    assert everything(second, "visits") == room.expected(ann=4, zoey=3)
    assert room.holds(ann=4, zoey=3)


def test_the_last_of_several_changes_is_the_versions(room, backend):
    room.put(ann=1)
    backend.commit()
    room.put(ann=2, bob=2)
    room.put(ann=None, bob=None)
    room.put(ann=3)
    snapshot = backend.commit()
    changes = room.changes(snapshot)
    assert changes | room.expected(bob=None) == room.expected(ann=3, bob=None)
    assert room.holds(ann=3)


def test_a_cell_changed_before_and_after_many_others_is_one_change(room, backend):
    names = [f"{'user' if number % 2 else 'users'}{number}" for number in range(20)]
    for _ in range(2):
        for round_number in (1, 2):
            room.put(**dict.fromkeys(names, round_number))
        snapshot = backend.commit()
        assert room.changes(snapshot) == room.expected(**dict.fromkeys(names, 2))
        room.put(**dict.fromkeys(names, 3))
        room.put(**dict.fromkeys(names))
        snapshot = backend.commit()
        assert room.changes(snapshot) == room.expected(**dict.fromkeys(names))
        assert everything(backend, "visits") == {}


def test_reading_many_does_not_bring_the_changes_of_an_earlier_version_again(room, backend):
    names = [f"user{number}" for number in range(20)]
    room.put(**dict.fromkeys(names, 1))
    backend.commit()
    for name in names:
        room.set_current_key(name)
        assert room.cell.get() == room.kind.make(1)
        room.set_current_key(f"no{name}")
        assert room.cell.get() is None
    room.put(ann=2)
    snapshot = backend.commit()
    assert room.changes(snapshot) == room.expected(ann=2)
    backend.undo_commit()
    assert everything(backend, "visits") == room.expected(**dict.fromkeys(names, 1))


def test_reading_is_no_change(room, backend):
    room.put(ann=1)
    backend.commit()
    assert room.holds(ann=1)
    assert not backend.rollback()
    assert room.holds(ann=1)
    assert room.changes(backend.commit()) == {}


def test_rollback_drops_the_open_version_only(room, backend):
    room.put(ann=1, bob=2)
    assert backend.rollback()
    assert room.holds()
    room.put(ann=1, bob=2)
    backend.commit()
    room.put(ann=3, bob=None, zoey=4)
    assert backend.rollback()
    assert room.holds(ann=1, bob=2)
    assert not backend.rollback()
    room.put(bob=5)
    snapshot = backend.commit()
    assert room.changes(snapshot) == room.expected(bob=5)
    assert room.holds(ann=1, bob=5)


@pytest.mark.parametrize("how", ["put", "clear"])
def test_one_change_is_enough_for_a_rollback_to_say_so(room, backend, how):
    room.put(ann=1)
    backend.commit()
    room.put(ann=2 if how == "put" else None)
    assert backend.rollback()
    assert not backend.rollback()


def test_undo_takes_the_last_commit_back(room, backend):
    room.put(ann=1, bob=2)
    backend.commit()
    backend.acknowledge()
    room.put(ann=3, bob=None, zoey=4)
    backend.commit()
    backend.undo_commit()
    assert room.holds(ann=1, bob=2)
    assert not backend.rollback()
    room.put(zoey=6)
    snapshot = backend.commit()
    assert room.changes(snapshot) == room.expected(zoey=6)
    assert room.holds(ann=1, bob=2, zoey=6)


def test_a_rollback_after_an_undo_goes_back_to_the_commit_before(room, backend):
    room.put(ann=1, bob=2)
    backend.commit()
    room.put(ann=3, bob=None, zoey=4)
    backend.commit()
    backend.undo_commit()
    room.put(ann=5, zoey=6)
    assert backend.rollback()
    assert room.holds(ann=1, bob=2)


def test_undo_takes_the_first_commit_back(room, backend):
    room.put(ann=1)
    backend.commit()
    backend.undo_commit()
    assert room.holds()
    room.put(bob=1)
    assert room.changes(backend.commit()) == room.expected(bob=1)


def test_undo_takes_the_open_version_with_it(room, backend):
    room.put(ann=1, bob=2)
    backend.commit()
    room.put(ann=3, bob=None)
    backend.commit()
    room.put(ann=5, bob=6, zoey=7)
    assert room.holds(ann=5, bob=6, zoey=7)
    backend.undo_commit()
    assert room.holds(ann=1, bob=2)
    assert not backend.rollback()


def test_undo_after_a_rollback(room, backend):
    room.put(ann=1)
    backend.commit()
    room.put(ann=2, bob=2)
    backend.commit()
    room.put(ann=3, bob=None)
    backend.rollback()
    assert room.holds(ann=2, bob=2)
    backend.undo_commit()
    assert room.holds(ann=1)


def test_undo_of_an_empty_commit_leaves_the_one_before(room, backend):
    room.put(ann=1)
    backend.commit()
    backend.commit()
    backend.undo_commit()
    assert room.holds(ann=1)


def test_every_second_commit_may_be_taken_back(room, backend):
    room.put(ann=0)
    for number in range(1, 5):
        room.put(bob=number)
        backend.commit()
        room.put(ann=number, zoey=number)
        backend.commit()
        backend.undo_commit()
        room.put(ann=number + 10)
        snapshot = backend.commit()
        assert room.changes(snapshot) == room.expected(ann=number + 10)
        backend.acknowledge()
        assert room.holds(ann=number + 10, bob=number)


def test_a_settled_version_is_what_a_rollback_goes_back_to(room, backend):
    room.put(ann=1)
    backend.commit()
    backend.acknowledge()
    backend.acknowledge()
    room.put(ann=2)
    backend.rollback()
    assert room.holds(ann=1)


def test_settling_while_a_version_is_open_does_not_touch_it(room, backend):
    room.put(ann=1)
    backend.commit()
    room.put(ann=2, bob=2)
    backend.acknowledge()
    assert room.holds(ann=2, bob=2)
    assert backend.rollback()
    assert room.holds(ann=1)


def test_versions_need_nobody_to_read_or_release_their_snapshots(room, backend):
    for number in range(5):
        room.put(ann=number, bob=None if number % 2 else number)
        backend.commit()
    backend.undo_commit()
    assert room.holds(ann=3)


def test_the_clear_of_a_map_is_taken_back_entry_by_entry(backend, kind):
    cell = Cell(backend, StateKind.MAP, kind)
    set_current_key(backend, 3, ANN)
    cell.handle.put(HOME, kind.make(1))
    cell.handle.put(CART, kind.make(2))
    whole = {(3, ANN, HOME): kind.make(1), (3, ANN, CART): kind.make(2)}
    backend.commit()
    set_current_key(backend, 3, ANN)
    cell.handle.clear()
    cell.handle.put(HOME, kind.make(3))
    backend.rollback()
    assert everything(backend, "visits") == whole
    set_current_key(backend, 3, ANN)
    cell.handle.put(("new", 1), kind.make(4))
    cell.handle.clear()
    snapshot = backend.commit()
    changes = changed(snapshot.changes())["visits"]
    assert set(changes.values()) == {ABSENT}
    assert whole.keys() <= changes.keys() <= whole.keys() | {(3, ANN, ("new", 1))}
    backend.undo_commit()
    assert everything(backend, "visits") == whole
    set_current_key(backend, 3, ANN)
    assert dict(cell.handle.items()) == {HOME: kind.make(1), CART: kind.make(2)}


def test_entries_are_changed_each_for_itself(backend, kind):
    cell = Cell(backend, StateKind.MAP, kind)
    set_current_key(backend, 3, ANN)
    for step in range(4):
        cell.handle.put(("page", step), kind.make(step))
    backend.commit()
    set_current_key(backend, 3, ANN)
    cell.handle.put(("page", 1), kind.make(9))
    cell.handle.remove(("page", 2))
    snapshot = backend.commit()
    expected = {(3, ANN, ("page", 1)): kind.make(9), (3, ANN, ("page", 2)): ABSENT}
    assert changed(snapshot.changes()) == {"visits": expected}


def test_an_append_is_a_change_and_is_taken_back(backend, kind):
    log = Cell(backend, StateKind.LIST, kind).handle
    set_current_key(backend, 3, ANN)
    log.extend([kind.make(1), kind.make(2)])
    backend.commit()
    for goes_back in (backend.rollback, lambda: (backend.commit(), backend.undo_commit())):
        set_current_key(backend, 3, ANN)
        log.append(kind.make(3))
        log.extend([kind.make(4)])
        goes_back()
        set_current_key(backend, 3, ANN)
        assert list(log.get()) == [kind.make(1), kind.make(2)]
    log.append(kind.make(3))
    snapshot = backend.commit()
    before = {"visits": {(3, ANN): [kind.make(1), kind.make(2)]}}
    assert changed(snapshot.changes(), before) == {"visits": {(3, ANN): [kind.make(number) for number in (1, 2, 3)]}}


def test_states_of_every_shape_go_through_versions_together(backend):
    cells = [Cell(backend, shape, INTEGER, f"s-{shape}") for shape in StateKind]
    rows = Cell(backend, StateKind.VALUE, FLAT_ROW, "rows")
    for number in (1, 2):
        for group, key in [(3, ANN), (3, BOB), (5, EVE)]:
            set_current_key(backend, group, key)
            for cell in cells:
                cell.put(number)
            if number == 1:
                rows.put((7, None))
        snapshot = backend.commit()
        if number == 1:
            backend.acknowledge()
    assert "rows" not in changed(snapshot.changes())
    for number, go_back in ((2, backend.rollback), (1, backend.undo_commit)):
        for group, key in [(3, ANN), (4, BOB), (5, EVE)]:
            set_current_key(backend, group, key)
            for cell in cells:
                cell.put(3)
            rows.clear()
        go_back()
        for cell in cells:
            assert everything(backend, cell.name) == cell.placed({(3, ANN): number, (3, BOB): number, (5, EVE): number})
        assert placed(backend.cells("rows", 5)) == {(5, EVE): (7, None)}
