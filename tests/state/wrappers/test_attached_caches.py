"""Caches that a user put in front of a state: flushed by every commit, emptied when the state goes back.

`CachedValues` carries them, over any backend: here one that keeps objects, one that keeps bytes, one that keeps
both, and one that spills.
"""

import pytest

from millpond.state.spi import CachedValues, StateKind
from tests.state.conformance.kinds import ANN, BOB, GROUPS, INTEGER, Cell, changed, everything, set_current_key
from tests.state.conformance.subjects import SUBJECTS


class Shelf:
    """The least cache: what is put on it reaches the state with the next flush."""

    def __init__(self, cell):
        self.cell, self.dirty, self.forgotten, self.fails = cell, {}, 0, False

    def flush(self):
        self.update_all_states()
        self.cell.backend.context.key_group = -1

    def update_all_states(self):
        if self.fails and self.dirty:
            raise OSError("the shelf is stuck")
        context = self.cell.backend.context
        key_group, key = context.key_group, context.key
        for (group, key), value in self.dirty.items():
            set_current_key(self.cell.backend, group, key)
            self.cell.put(value)
        self.dirty.clear()
        if key_group >= 0:
            set_current_key(self.cell.backend, key_group, key)

    def forget(self):
        self.dirty.clear()
        self.forgotten += 1


@pytest.fixture(params=["heap", "rocksdb", "lru2-heap", "spilled"])
def backend(request, tmp_path):
    (subject,) = [subject for subject in SUBJECTS if subject.name == request.param]
    backend = CachedValues(subject.open(GROUPS, tmp_path / "state"))
    yield backend
    backend.close()


@pytest.fixture
def shelf(backend):
    shelf = Shelf(Cell(backend, StateKind.VALUE, INTEGER))
    backend.attach(shelf)
    return shelf


def test_what_a_flush_writes_is_in_the_version_that_is_committed(shelf, backend):
    shelf.dirty[3, ANN] = 1
    snapshot = backend.commit()
    assert changed(snapshot.changes()) == {"visits": {(3, ANN): 1}}
    assert everything(snapshot, "visits") == {(3, ANN): 1}
    with pytest.raises(Exception, match="visits"):
        shelf.cell.get()
    assert not backend.rollback()


def test_looking_at_all_keys_sees_what_is_dirty_and_leaves_the_current_key(shelf, backend):
    set_current_key(backend, 3, BOB)
    shelf.dirty[3, ANN] = 1
    assert list(backend.keys("visits")) == [(3, ANN)]
    shelf.dirty[3, BOB] = 2
    assert everything(backend, "visits") == {(3, ANN): 1, (3, BOB): 2}
    assert (backend.context.key_group, backend.context.key) == (3, BOB)
    assert everything(backend.commit(), "visits") == {(3, ANN): 1, (3, BOB): 2}


def test_what_only_the_cache_has_cannot_be_looked_at_when_it_cannot_be_written(shelf, backend):
    shelf.dirty[3, ANN] = 1
    shelf.fails = True
    with pytest.raises(OSError, match="stuck"):
        list(backend.keys("visits"))
    with pytest.raises(OSError, match="stuck"):
        backend.cells("visits", 3)


def test_a_commit_flushes_and_does_not_forget(shelf, backend):
    backend.commit()
    backend.acknowledge()
    assert shelf.forgotten == 0


def test_a_rollback_forgets(shelf, backend):
    shelf.dirty[3, ANN] = 1
    backend.rollback()
    assert shelf.forgotten
    assert changed(backend.commit().changes()) == {}


def test_a_rollback_forgets_when_only_the_cache_was_changed_and_when_the_state_was(shelf, backend):
    set_current_key(backend, 3, BOB)
    shelf.cell.put(2)
    backend.rollback()
    assert shelf.forgotten
    before = shelf.forgotten
    shelf.dirty[3, ANN] = 1
    backend.rollback()
    assert shelf.forgotten > before


def test_a_rollback_tells_of_changes_of_the_state_and_not_of_what_only_a_cache_had(shelf, backend):
    shelf.dirty[3, ANN] = 1
    assert not backend.rollback()
    assert shelf.dirty == {}
    shelf.dirty[3, ANN] = 1
    set_current_key(backend, 3, BOB)
    shelf.cell.put(2)
    assert backend.rollback()
    assert shelf.dirty == {}


def test_undoing_a_commit_forgets(shelf, backend):
    shelf.dirty[3, ANN] = 1
    backend.commit()
    shelf.dirty[3, BOB] = 2
    backend.undo_commit()
    assert shelf.forgotten
    assert changed(backend.commit().changes()) == {}
    assert everything(backend, "visits") == {}


def test_a_load_forgets(shelf, backend):
    backend.load(shelf.cell.descriptor, shelf.cell.cells({(3, ANN): 1}))
    assert shelf.forgotten


def test_a_flush_that_fails_fails_the_commit_which_may_be_tried_again(shelf, backend):
    set_current_key(backend, 3, BOB)
    shelf.cell.put(2)
    shelf.dirty[3, ANN] = 1
    shelf.fails = True
    with pytest.raises(OSError, match="stuck"):
        backend.commit()
    shelf.fails = False
    snapshot = backend.commit()
    assert changed(snapshot.changes()) == {"visits": {(3, ANN): 1, (3, BOB): 2}}


def test_a_flush_that_fails_leaves_a_version_that_can_be_rolled_back(shelf, backend):
    set_current_key(backend, 3, BOB)
    shelf.cell.put(2)
    shelf.dirty[3, ANN] = 1
    shelf.fails = True
    with pytest.raises(OSError, match="stuck"):
        backend.commit()
    assert backend.rollback()
    assert everything(backend, "visits") == {}


def test_every_attached_cache_is_flushed(shelf, backend):
    other = Shelf(Cell(backend, StateKind.VALUE, INTEGER, "other"))
    backend.attach(other)
    shelf.dirty[3, ANN] = 1
    other.dirty[4, BOB] = 2
    assert changed(backend.commit().changes()) == {"visits": {(3, ANN): 1}, "other": {(4, BOB): 2}}
