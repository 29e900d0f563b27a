"""Wrong uses are refused by name, and change nothing."""

import pytest

from millpond.errors import DataError, OptionError
from millpond.state.spi import StateKind
from tests.state.conformance.kinds import (
    ANN,
    FLAT_ROW,
    HOME,
    INTEGER,
    KINDS,
    LIST,
    Cell,
    declare,
    describe,
    everything,
    set_current_key,
)

KINDS_UNDER_TEST = KINDS

USES = {
    StateKind.VALUE: {
        "get": lambda state, value: state.get(),
        "exists": lambda state, value: state.exists(),
        "update": lambda state, value: state.update(value),
        "clear": lambda state, value: state.clear(),
    },
    StateKind.LIST: {
        "get": lambda state, value: list(state.get()),
        "exists": lambda state, value: state.exists(),
        "put": lambda state, value: state.put([value]),
        "append": lambda state, value: state.append(value),
        "extend": lambda state, value: state.extend([value]),
        "clear": lambda state, value: state.clear(),
    },
    StateKind.MAP: {
        "get": lambda state, value: state.get(HOME),
        "contains": lambda state, value: state.contains(HOME),
        "exists": lambda state, value: state.exists(),
        "put": lambda state, value: state.put(HOME, value),
        "remove": lambda state, value: state.remove(HOME),
        "items": lambda state, value: list(state.items()),
        "clear": lambda state, value: state.clear(),
    },
}


@pytest.mark.parametrize(("shape", "use"), [(shape, use) for shape, uses in USES.items() for use in uses])
def test_a_use_without_a_current_key_is_refused_by_the_states_name(backend, shape, use):
    cell = Cell(backend, shape, INTEGER)

    def refused():
        with pytest.raises(OptionError, match="visits"):
            USES[shape][use](cell.handle, 1)

    refused()
    set_current_key(backend, 3, ANN)
    cell.put(7)
    backend.commit().release()
    refused()
    set_current_key(backend, 3, ANN)
    cell.put(8)
    backend.rollback()
    refused()
    assert everything(backend, "visits") == cell.placed({(3, ANN): 7})
    assert not backend.rollback()


def test_a_state_declared_late_is_of_the_current_key(backend, shape, kind):
    set_current_key(backend, 3, ANN)
    cell = Cell(backend, shape, kind)
    cell.put(kind.make(1))
    assert cell.get() == kind.make(1)


def test_a_value_that_does_not_fit_is_refused_with_state_and_key(backend, shape, kind):
    cell = Cell(backend, shape, kind)
    set_current_key(backend, 3, ANN)
    with pytest.raises(DataError, match="visits") as refused:
        cell.put(kind.unfit)
    assert "ann" in str(refused.value)
    assert not cell.exists()
    cell.put(kind.make(1))
    set_current_key(backend, 4, ("zoe",))
    with pytest.raises(DataError, match="zoe"):
        cell.put(kind.unfit)
    set_current_key(backend, 3, ANN)
    assert cell.get() == kind.make(1)
    assert everything(backend, "visits") == cell.placed({(3, ANN): kind.make(1)})


def test_none_is_no_object(backend, shape):
    cell = Cell(backend, shape, INTEGER)
    set_current_key(backend, 3, ANN)
    with pytest.raises(DataError, match="visits"):
        cell.put(None)
    assert not cell.exists()


def test_the_same_declaration_again_is_the_same_state(backend, shape, kind):
    first, second = Cell(backend, shape, kind), Cell(backend, shape, kind)
    set_current_key(backend, 3, ANN)
    first.put(kind.make(1))
    assert second.get() == kind.make(1)
    second.put(kind.make(2))
    assert first.get() == kind.make(2)
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert Cell(backend, shape, kind).get() == kind.make(2)


def test_another_declaration_of_a_name_is_refused_with_both(backend, shape, kind):
    known = Cell(backend, shape, kind)
    set_current_key(backend, 3, ANN)
    known.put(kind.make(1))
    others = [describe("visits", other, kind) for other in StateKind if other is not shape]
    others.append(describe("visits", shape, LIST if kind is not LIST else INTEGER))
    for other in others:
        with pytest.raises(OptionError, match="visits") as refused:
            declare(backend, other)
        assert known.descriptor.describe() in str(refused.value)
        assert other.describe() in str(refused.value)
    assert known.get() == kind.make(1)


@pytest.mark.parametrize("group", [2, 6, 0, -1, 1 << 15])
def test_a_key_group_of_another_shard_is_refused(backend, group):
    with pytest.raises(OptionError, match=str(group)):
        backend.enter(group)


def test_a_refused_key_group_leaves_the_current_key(backend):
    cell = Cell(backend, StateKind.VALUE, FLAT_ROW)
    set_current_key(backend, 3, ANN)
    cell.put((1, "a"))
    with pytest.raises(OptionError):
        backend.enter(9)
    assert cell.get() == (1, "a")


def test_close_may_be_called_again(backend, kind):
    cell = Cell(backend, StateKind.VALUE, kind)
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    backend.commit()
    backend.close()
    backend.close()


def test_a_snapshot_may_be_released_after_close(backend, kind):
    cell = Cell(backend, StateKind.VALUE, kind)
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    snapshot = backend.commit()
    backend.close()
    snapshot.release()
    snapshot.release()
