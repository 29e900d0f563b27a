"""Value states: every method and every edge, for every kind of values."""

import pytest

from millpond.errors import DataError, OptionError
from millpond.state.spi import StateKind
from tests.state.conformance.kinds import ANN, BOB, EVE, FLAT_ROW, FLOAT, INTEGER, KINDS, describe, set_current_key

KINDS_UNDER_TEST = KINDS


@pytest.fixture
def state(backend, kind):
    state = backend.value_state(describe("visits", StateKind.VALUE, kind))
    set_current_key(backend, 3, ANN)
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
    set_current_key(backend, 3, ANN)
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
    set_current_key(backend, 3, ANN)
    state.clear()
    assert state.get() is None
    assert not state.exists()
    backend.commit().release()
    set_current_key(backend, 3, ANN)
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
    set_current_key(backend, 3, ANN)
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
        set_current_key(backend, 3, ANN)
        assert state.get() == expected


def test_a_value_is_changed_in_one_call(state, kind, backend):
    assert state.update_with(lambda value: kind.make(1) if value is None else kind.make(7)) == kind.make(1)
    assert state.get() == kind.make(1)
    assert state.update_with(lambda value: kind.make(2) if value == kind.make(1) else kind.make(7)) == kind.make(2)
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert state.update_with(lambda value: kind.make(0) if value == kind.make(2) else kind.make(7)) == kind.make(0)
    assert state.get() == kind.make(0)
    assert backend.rollback()
    set_current_key(backend, 3, ANN)
    assert state.get() == kind.make(2)


def test_what_a_change_gave_and_then_changed_in_place_is_no_state(state, kind, backend):
    if kind.grow is None:
        pytest.skip("values of this kind cannot be changed in place")
    given = kind.make(1)
    state.update_with(lambda _: given)
    kind.grow(given)
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert state.get() == kind.make(1)
    read = []
    state.update_with(lambda value: read.append(value) or kind.make(2))
    kind.grow(read[0])
    assert state.get() == kind.make(2)


def test_a_change_that_fails_or_does_not_fit_changes_nothing(state, kind, backend):
    state.update(kind.make(1))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    with pytest.raises(ZeroDivisionError):
        state.update_with(lambda _: 1 // 0)
    for unfit in (kind.unfit,) if kind.ttl else (kind.unfit, None):
        with pytest.raises(DataError, match="'visits' of key"):
            state.update_with(lambda _, unfit=unfit: unfit)
    assert state.get() == kind.make(1)
    assert not list(backend.commit().changes())


def test_a_change_may_use_other_states_of_the_key(state, kind, backend):
    others = [backend.value_state(describe(name, StateKind.VALUE, FLAT_ROW)) for name in ("one", "two")]

    def change(_):
        for number, other in enumerate(others):
            other.update((number, None))
        return kind.make(len([other for other in others if other.exists()]))

    assert state.update_with(change) == kind.make(2)
    assert state.get() == kind.make(2)
    assert [other.get() for other in others] == [(0, None), (1, None)]


@pytest.mark.parametrize("number", [INTEGER, FLOAT], ids=repr)
def test_numbers_are_added_up(backend, number):
    state = backend.value_state(describe("sum", StateKind.VALUE, number))
    for turn in range(3):
        for key in (ANN, BOB, EVE):
            set_current_key(backend, 3, key)
            state.add(number.make(2))
            assert state.add(number.make(1)) == number.make(3 * turn + 3)
            assert state.get() == number.make(3 * turn + 3)
            assert type(state.get()) is type(number.make(3))
        if turn != 1:
            backend.commit().release()
    set_current_key(backend, 3, ANN)
    state.clear()
    assert state.add(number.make(5)) == number.make(5)
    backend.rollback()
    set_current_key(backend, 3, ANN)
    assert state.get() == number.make(9)


def test_what_does_not_fit_is_not_added(backend):
    state = backend.value_state(describe("sum", StateKind.VALUE, INTEGER))
    set_current_key(backend, 3, ANN)
    for before in (None, (1 << 64) - 1):
        if before is not None:
            state.update(before)
        for unfit in ("1", True, 1.5, None, 1 << 64, *([1] if before else [])):
            with pytest.raises(DataError, match="'sum' of key"):
                state.add(unfit)
        assert state.get() == before
    assert state.add(-(1 << 63)) == (1 << 63) - 1


def test_only_numbers_are_added_up(state, kind):
    if kind is INTEGER:
        pytest.skip("they are numbers")
    with pytest.raises(OptionError, match=r"add\(\) adds to numbers, and state 'visits' is .*int or float"):
        state.add(1)
    assert not state.exists()
