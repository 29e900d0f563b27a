"""Every backend and wrapper has the whole interface, and hands out and takes in bytes that any other one reads."""

import pytest

from millpond.errors import OptionError
from millpond.state import StateOptions
from millpond.state.backend.check import missing_members
from millpond.state.options import registry
from millpond.state.spi import ForwardingBackend, HeapBackend, PlainBackend, open_backend, register_backend
from millpond.state.testing.harness import Harness
from tests.state.conformance.kinds import ANN, BOB, GROUPS, copied, everything, set_current_key
from tests.state.conformance.subjects import spilled


def test_it_has_every_member(backend):
    assert missing_members(backend) == []


def test_bytes_that_a_backend_hands_out_are_its_cells(cell, backend, kind):
    for key, number in [(ANN, 1), (BOB, 2)]:
        set_current_key(backend, 3, key)
        cell.put(kind.make(number))
    snapshot = backend.commit()
    expected = everything(backend, "visits")
    for source in (backend, snapshot):
        pairs = source.raw_cells("visits", 3)
        if pairs is not None:
            heap = HeapBackend(GROUPS)
            heap.load_raw(cell.descriptor, 3, pairs)
            assert everything(heap, "visits") == expected
    snapshot.release()


def test_bytes_of_another_backend_are_taken_in(cell, backend, kind, shape, folder):
    other = spilled(GROUPS, folder / "other")
    theirs = type(cell)(other, shape, kind)
    set_current_key(other, 3, ANN)
    theirs.put(kind.make(1))
    other.commit().release()
    expected = copied(everything(other, "visits"))
    backend.load_raw(cell.descriptor, 3, other.raw_cells("visits", 3))
    assert everything(backend, "visits") == expected
    assert not backend.rollback(), "a restore is no change of the open version"
    other.close()


class Forgetful:
    """A wrapper whose author wrote each member by hand, and not those of raw copies."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        if name in ("raw_cells", "load_raw"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.fixture
def forgetful(monkeypatch):
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    register_backend("forgetful", lambda _, key_groups, folder: Forgetful(HeapBackend(key_groups)))


@pytest.mark.usefixtures("forgetful")
def test_a_wrapper_that_forgets_raw_copies_is_refused_when_it_is_opened(tmp_path):
    options = StateOptions.parse({"state.backend.type": "forgetful"})
    with pytest.raises(OptionError, match=r"has no raw_cells \(raw copies\), load_raw \(raw copies\)"):
        open_backend(options, GROUPS, tmp_path)


def test_a_harness_refuses_it_too():
    class Nothing:
        def open(self, states):
            pass

    with pytest.raises(OptionError, match=r"Inherit from millpond\.state\.PlainBackend"):
        Harness(Nothing, key=lambda record: record, key_type=str, backend=lambda groups: Forgetful(HeapBackend(groups)))


def test_a_plain_backend_copies_no_bytes_and_reports_nothing():
    assert PlainBackend().raw_cells("visits", 3) is None
    assert PlainBackend().temperatures() is None
    assert ForwardingBackend(HeapBackend(GROUPS)).temperatures() is None
