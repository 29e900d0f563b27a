"""Value states: every method and every edge, for every kind of values."""

import pytest

from millpond.state.spi import StateKind
from tests.state.conformance.kinds import ANN, BOB, FLAT_ROW, KINDS, describe, turn_to

KINDS_UNDER_TEST = KINDS


@pytest.fixture
def state(backend, kind):
    state = backend.value_state(describe("visits", StateKind.VALUE, kind))
    turn_to(backend, 3, ANN)
    return state


def test_a_key_without_state_has_no_value(state):
    assert state.get() is None
    assert not state.exists()
    state.clear()
    assert state.get() is None
    assert not state.exists()


def test_the_last_update_is_the_value(state, kind):
    for number in (1, 2, 0):
        state.update(kind.make(number))
        assert state.exists()
        assert state.get() == kind.make(number)


def test_a_value_comes_back_with_the_types_it_had(state, kind, backend):
    state.update(kind.make(2))
    backend.commit().release()
    turn_to(backend, 3, ANN)
    assert repr(state.get()) == repr(kind.make(2))


def test_a_cleared_value_is_gone_until_the_next_update(state, kind):
    state.update(kind.make(1))
    state.clear()
    assert state.get() is None
    assert not state.exists()
    state.update(kind.make(2))
    assert state.exists()
    assert state.get() == kind.make(2)


def test_a_value_committed_and_cleared_is_gone_after_the_next_commit_too(state, kind, backend):
    state.update(kind.make(1))
    backend.commit().release()
    turn_to(backend, 3, ANN)
    state.clear()
    assert state.get() is None
    assert not state.exists()
    backend.commit().release()
    turn_to(backend, 3, ANN)
    assert state.get() is None
    assert not state.exists()


def test_reading_does_not_make_state(state, backend):
    state.get()
    state.exists()
    state.clear()
    assert list(backend.keys("visits")) == []


def test_a_value_is_its_keys_alone(state, kind, backend):
    state.update(kind.make(1))
    backend.context.key = BOB
    assert state.get() is None
    assert not state.exists()
    state.update(kind.make(2))
    backend.context.key = ANN
    assert state.get() == kind.make(1)
    state.clear()
    backend.context.key = BOB
    assert state.get() == kind.make(2)


def test_two_states_of_one_key_do_not_touch_each_other(state, kind, backend):
    other = backend.value_state(describe("visit", StateKind.VALUE, FLAT_ROW))
    turn_to(backend, 3, ANN)
    state.update(kind.make(1))
    assert not other.exists()
    other.update((7, None))
    state.clear()
    assert other.get() == (7, None)
    assert state.get() is None


def test_a_value_can_be_read_changed_and_updated_again_and_again(state, kind, backend):
    if kind.grow is None:
        pytest.skip("values of this kind cannot be changed in place")
    state.update(kind.make(2))
    expected = kind.make(2)
    for _ in range(3):
        for _ in range(2):
            value = state.get()
            kind.grow(value)
            kind.grow(expected)
            state.update(value)
            assert state.get() == expected
        backend.commit().release()
        turn_to(backend, 3, ANN)
        assert state.get() == expected
