"""Snapshots: read whenever, from any thread, they show their version."""

import threading

import pytest

from millpond.state.spi import ABSENT, StateKind
from tests.state.conformance.kinds import ANN, GROUPS, INTEGER, Cell, changed, everything, set_current_key

USERS = [(3 + number % 3, (f"user{number}",)) for number in range(9)]


def write(cell, version):
    """Version 0 puts all users; each later one puts a third anew, clears another and adds one."""
    values = {}
    for number, (group, key) in enumerate(USERS):
        if version == 0 or number % 3 == version % 3:
            values[group, key] = version * 10 + number
        elif number % 3 == (version + 1) % 3:
            values[group, key] = ABSENT
    values[5, (f"new{version}",)] = version
    for (group, key), number in values.items():
        set_current_key(cell.backend, group, key)
        if number is ABSENT:
            cell.clear()
        else:
            cell.put(number)
    return values


@pytest.fixture
def versions(backend, shape):
    return Versions(Cell(backend, shape, INTEGER))


class Versions:
    """Snapshots of one state, and the state and changes each must show, by dictionaries."""

    def __init__(self, cell):
        self.cell, self.live, self.kept = cell, {}, []

    def commit(self):
        before, values = dict(self.live), write(self.cell, len(self.kept))
        self.live.update(values)
        self.live = {at: number for at, number in self.live.items() if number is not ABSENT}
        differing = {at for at in before.keys() | self.live.keys() if before.get(at) != self.live.get(at)}
        snapshot = self.cell.backend.commit()
        self.kept.append((snapshot, dict(self.live), values, differing))
        return snapshot

    def check(self, version):
        """What differs must be there; what is there must have been touched, and be as it was."""
        snapshot, state, touched, differing = self.kept[version]
        assert everything(snapshot, "visits") == self.cell.placed(state)
        changes = changed(snapshot.changes()).get("visits", {})
        wholly = self.cell.placed({at: state.get(at, ABSENT) for at in touched})
        assert changes.items() <= wholly.items()
        assert {self.cell.place(*at) for at in differing} <= changes.keys()
        assert snapshot.changed_cells() in (None, {"visits": len(changes)})


def test_a_snapshot_names_every_state_that_was_declared_by_then(backend):
    Cell(backend, StateKind.VALUE, INTEGER)
    Cell(backend, StateKind.MAP, INTEGER, "empty")
    snapshot = backend.commit()
    Cell(backend, StateKind.LIST, INTEGER, "later")
    assert set(snapshot.states()) == {"visits", "empty"}
    assert set(backend.commit().states()) == {"visits", "empty", "later"}


def test_a_snapshot_read_at_once_shows_its_version(versions):
    for version in range(4):
        versions.commit()
        versions.check(version)


def test_snapshots_read_late_and_in_any_order_show_their_versions(versions):
    for _ in range(5):
        versions.commit()
    write(versions.cell, 5)
    for version in (4, 0, 3, 1, 2, 0):
        versions.check(version)


def test_a_snapshot_may_be_read_in_the_middle_of_a_version(versions):
    versions.commit()
    pieces = versions.kept[0][0].changes()
    next(pieces)
    write(versions.cell, 1)
    assert sum(len(cells) for _, cells in pieces) >= 0
    versions.check(0)


def test_cells_already_read_are_not_changed_by_later_writes(versions):
    snapshot = versions.commit()
    cells = [snapshot.cells("visits", group) for group in GROUPS]
    expected = everything(snapshot, "visits")
    write(versions.cell, 1)
    versions.cell.backend.commit()
    found = {}
    for piece in cells:
        places = zip(
            piece.key_groups, piece.keys, *([piece.map_keys] if piece.map_keys is not None else []), strict=True
        )
        found |= dict(zip(places, piece.values, strict=True))
    assert found == expected


def test_a_released_snapshot_does_not_disturb_the_others(versions):
    for _ in range(5):
        versions.commit()
    for version in (2, 0, 4):
        versions.kept[version][0].release()
        versions.kept[version][0].release()
    for version in (1, 3):
        versions.check(version)
    versions.commit()
    versions.check(5)
    versions.check(1)


def test_a_snapshot_outlives_the_rollback_of_the_next_version(versions):
    backend = versions.cell.backend
    versions.commit()
    versions.commit()
    write(versions.cell, 2)
    backend.rollback()
    for version in (0, 1):
        versions.check(version)
    write(versions.cell, 3)
    for version in (0, 1):
        versions.check(version)


@pytest.mark.parametrize("later", [False, True], ids=["at-once", "after-more-versions"])
def test_a_snapshot_outlives_the_undoing_of_its_own_commit_and_of_the_next(versions, later):
    backend = versions.cell.backend
    versions.commit()
    before = dict(versions.live)
    versions.commit()
    backend.undo_commit()
    versions.live = before
    if later:
        versions.commit()
        versions.commit()
        backend.acknowledge()
    for version in range(len(versions.kept)):
        versions.check(version)


def test_a_snapshot_outlives_settling(versions):
    for _ in range(3):
        versions.commit()
        versions.cell.backend.acknowledge()
    for version in range(3):
        versions.check(version)


def test_a_snapshot_is_not_changed_by_a_load(backend, shape):
    cell = Cell(backend, shape, INTEGER)
    set_current_key(backend, 3, ANN)
    cell.put(1)
    snapshot = backend.commit()
    backend.load(cell.descriptor, cell.cells({(3, ANN): 2, (4, ("zoe",)): 3}))
    assert everything(snapshot, "visits") == cell.placed({(3, ANN): 1})


def test_reading_a_snapshot_does_not_touch_the_current_key_or_the_open_version(versions):
    backend = versions.cell.backend
    versions.commit()
    set_current_key(backend, 3, USERS[0][1])
    versions.check(0)
    assert (backend.context.key_group, backend.context.key) == (3, USERS[0][1])
    assert versions.cell.get() == 0
    versions.cell.put(5)
    versions.check(0)
    assert versions.cell.get() == 5


def test_a_state_without_cells_in_a_key_group_gives_none(backend, shape):
    cell = Cell(backend, shape, INTEGER)
    set_current_key(backend, 3, ANN)
    cell.put(1)
    snapshot = backend.commit()
    cells = snapshot.cells("visits", 4)
    assert len(cells) == 0
    assert (cells.map_keys is not None) == (shape is StateKind.MAP)


def test_snapshots_are_read_by_a_thread_while_records_go_on(versions):
    """The reader must see each version as it was committed, the writer everything that it wrote."""
    backend = versions.cell.backend
    ready, failures = threading.Semaphore(0), []

    def read(number_of_versions):
        for version in range(number_of_versions):
            ready.acquire()
            try:
                for _ in range(10):
                    versions.check(version)
                versions.kept[version][0].release()
            except BaseException as failure:  # noqa: BLE001 - whatever it is, the test's own thread reports it
                failures.append(failure)
                return

    reader = threading.Thread(target=read, args=(12,))
    reader.start()
    for version in range(12):
        versions.commit()
        ready.release()
        write(versions.cell, version + 1)
        if version % 4 == 3:
            backend.rollback()
            write(versions.cell, version + 2)
        backend.rollback()
    reader.join()
    assert failures == []
    assert everything(backend, "visits") == versions.cell.placed(versions.live)
