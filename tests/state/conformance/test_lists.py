"""List states: every method and every edge."""

import pytest

from millpond.errors import DataError, OptionError
from millpond.state.backend.protocols import Appended
from millpond.state.spi import StateKind
from tests.state.conformance.kinds import ANN, BOB, FLAT_ROW, changed, describe, set_current_key


@pytest.fixture
def state(backend, kind):
    state = backend.list_state(describe("log", StateKind.LIST, kind))
    set_current_key(backend, 3, ANN)
    return state


def test_a_key_without_state_has_no_elements(state):
    assert list(state.get()) == []
    assert not state.exists()
    state.clear()
    assert not state.exists()


def test_elements_stay_in_the_order_they_were_added(state, kind, backend):
    state.append(kind.make(1))
    state.extend(kind.make(number) for number in (2, 1))
    state.append(kind.make(0))
    expected = [kind.make(number) for number in (1, 2, 1, 0)]
    assert list(state.get()) == expected
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    state.append(kind.make(5))
    assert list(state.get()) == [*expected, kind.make(5)]
    assert state.exists()


def test_put_replaces_the_whole_list(state, kind):
    state.append(kind.make(1))
    state.put(iter([kind.make(2), kind.make(3)]))
    assert list(state.get()) == [kind.make(2), kind.make(3)]


def test_an_empty_list_that_was_put_exists(state, kind, backend):
    state.append(kind.make(1))
    state.put([])
    assert state.exists()
    assert list(state.get()) == []
    assert list(backend.keys("log")) == [(3, ANN)]
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert state.exists()
    assert list(state.get()) == []
    state.append(kind.make(2))
    assert list(state.get()) == [kind.make(2)]


def test_extending_by_nothing_changes_nothing(state, kind, backend):
    state.extend([])
    assert not state.exists()
    assert changed(backend.commit().changes()) == {}
    set_current_key(backend, 3, ANN)
    state.append(kind.make(1))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    state.extend(iter(()))
    assert list(state.get()) == [kind.make(1)]
    assert not backend.rollback()
    set_current_key(backend, 3, ANN)
    state.clear()
    state.extend([])
    assert not state.exists()
    assert list(backend.keys("log")) == []


def test_extending_by_nothing_needs_a_current_key(state, backend):
    backend.commit().release()
    with pytest.raises(OptionError, match="log"):
        state.extend([])


def test_a_cleared_list_is_gone_and_an_append_begins_a_new_one(state, kind, backend):
    state.extend([kind.make(1), kind.make(2)])
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    state.clear()
    assert not state.exists()
    assert list(state.get()) == []
    state.append(kind.make(3))
    assert state.exists()
    assert list(state.get()) == [kind.make(3)]
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert list(state.get()) == [kind.make(3)]


def test_a_list_is_its_keys_alone(state, kind, backend):
    state.append(kind.make(1))
    backend.context.key = BOB
    assert not state.exists()
    state.append(kind.make(2))
    backend.context.key = ANN
    assert list(state.get()) == [kind.make(1)]


@pytest.mark.parametrize("change", ["append", "extend", "put", "clear"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
def test_an_iterator_shows_the_list_as_it_was(state, kind, backend, change, committed):
    state.extend([kind.make(1), kind.make(2)])
    if committed:
        backend.commit().release()
        set_current_key(backend, 3, ANN)
    elements = state.get()
    changes = {
        "append": lambda: state.append(kind.make(3)),
        "extend": lambda: state.extend([kind.make(3)]),
        "put": lambda: state.put([kind.make(3)]),
        "clear": state.clear,
    }
    changes[change]()
    assert list(elements) == [kind.make(1), kind.make(2)]


def test_an_iterator_of_one_key_is_not_disturbed_by_turning_to_another(state, kind, backend):
    state.extend([kind.make(1), kind.make(2)])
    elements = state.get()
    backend.context.key = BOB
    state.append(kind.make(3))
    set_current_key(backend, 4, ("zoe",))
    assert list(elements) == [kind.make(1), kind.make(2)]


def test_a_list_may_be_put_from_itself(state, kind):
    state.extend([kind.make(1), kind.make(2)])
    state.put(element for element in state.get() if element != kind.make(1))
    assert list(state.get()) == [kind.make(2)]
    state.extend(state.get())
    assert list(state.get()) == [kind.make(2), kind.make(2)]


@pytest.mark.parametrize("existed", [True, False], ids=["over-elements", "over-nothing"])
@pytest.mark.parametrize("change", ["append", "extend", "put"])
def test_a_refused_element_changes_nothing(state, kind, backend, change, existed):
    if existed:
        state.append(kind.make(1))
    changes = {
        "append": lambda: state.append(kind.unfit),
        "extend": lambda: state.extend([kind.make(2), kind.unfit]),
        "put": lambda: state.put([kind.make(2), kind.unfit]),
    }
    with pytest.raises(DataError):
        changes[change]()
    assert list(state.get()) == [kind.make(1)] * existed
    assert state.exists() == existed


def test_extending_by_nothing_adds_no_element(state, kind):
    state.append(kind.make(1))
    state.extend([])
    assert list(state.get()) == [kind.make(1)]


def test_an_iterable_that_fails_changes_nothing(state, kind):
    def failing():
        yield kind.make(2)
        raise LookupError("the source is gone")

    state.append(kind.make(1))
    for change in (state.extend, state.put):
        with pytest.raises(LookupError):
            change(failing())
        assert list(state.get()) == [kind.make(1)]


def test_a_list_given_away_is_not_the_state(backend):
    state = backend.list_state(describe("log", StateKind.LIST, FLAT_ROW))
    set_current_key(backend, 3, ANN)
    given = [(1, "a")]
    state.put(given)
    given.append((2, "b"))
    assert list(state.get()) == [(1, "a")]


def test_the_delta_of_a_list_that_only_grew_has_what_was_added(state, kind, backend):
    """A cache that the list does not leave meanwhile: what it gives to the backend within a version is whole."""
    state.append(kind.make(1))
    backend.commit().release()
    backend.acknowledge()
    set_current_key(backend, 3, ANN)
    state.append(kind.make(2))
    state.extend([kind.make(1)])
    snapshot = backend.commit()
    set_current_key(backend, 3, ANN)
    state.append(kind.make(7))
    [(_, cells)] = snapshot.changes()
    assert [type(value) for value in cells.values] == [Appended]
    assert list(cells.values[0]) == [kind.make(2), kind.make(1)]


@pytest.mark.parametrize("replace", ["put", "clear"])
def test_the_delta_of_a_list_that_was_replaced_has_the_whole_list(state, kind, backend, replace):
    state.extend([kind.make(1), kind.make(2)])
    backend.commit().release()
    backend.acknowledge()
    set_current_key(backend, 3, ANN)
    state.append(kind.make(3))
    if replace == "put":
        state.put([kind.make(1)])
    else:
        state.clear()
    state.append(kind.make(4))
    [(_, cells)] = backend.commit().changes()
    assert [type(value) for value in cells.values] == [list]
    assert cells.values == [[kind.make(1)] * (replace == "put") + [kind.make(4)]]
