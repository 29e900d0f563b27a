"""Map states: every method and every edge."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from millpond.errors import DataError
from millpond.state.spi import StateDescriptor, StateKind
from tests.state.conformance.kinds import ANN, BOB, CART, FLAT_ROW, HOME, describe, everything, exact, set_current_key


@pytest.fixture
def state(backend, kind):
    state = backend.map_state(describe("pages", StateKind.MAP, kind))
    set_current_key(backend, 3, ANN)
    return state


def test_a_key_without_state_has_no_entries(state):
    assert state.get(HOME) is None
    assert not state.contains(HOME)
    assert not state.exists()
    assert list(state.items()) == []
    state.remove(HOME)
    state.clear()
    assert not state.exists()


def test_entries_are_put_and_read_each_for_itself(state, kind, backend):
    state.put(HOME, kind.make(1))
    state.put(CART, kind.make(2))
    state.put(HOME, kind.make(3))
    for _ in range(2):
        assert state.get(HOME) == kind.make(3)
        assert state.get(CART) == kind.make(2)
        assert state.contains(CART)
        assert not state.contains(("cart", 1))
        assert state.get(("cart", 1)) is None
        assert state.exists()
        assert dict(state.items()) == {HOME: kind.make(3), CART: kind.make(2)}
        assert len(list(state.items())) == 2
        backend.commit().release()
        set_current_key(backend, 3, ANN)


def test_a_removed_entry_is_gone_alone(state, kind, backend):
    state.put(HOME, kind.make(1))
    state.put(CART, kind.make(2))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    state.remove(HOME)
    assert state.get(HOME) is None
    assert not state.contains(HOME)
    assert state.exists()
    assert dict(state.items()) == {CART: kind.make(2)}


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
def test_a_key_has_no_state_after_its_last_entry_was_removed(state, kind, backend, committed):
    state.put(HOME, kind.make(1))
    if committed:
        backend.commit().release()
        set_current_key(backend, 3, ANN)
    state.remove(HOME)
    assert not state.exists()
    assert list(state.items()) == []
    assert list(backend.keys("pages")) == []
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert not state.exists()
    assert everything(backend, "pages") == {}
    state.put(CART, kind.make(2))
    assert state.exists()
    assert dict(state.items()) == {CART: kind.make(2)}


def test_clear_removes_old_and_new_entries_and_put_begins_anew(state, kind, backend):
    state.put(HOME, kind.make(1))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    state.put(CART, kind.make(2))
    state.clear()
    assert not state.exists()
    assert list(state.items()) == []
    assert state.get(HOME) is None
    assert not state.contains(CART)
    state.put(HOME, kind.make(3))
    assert dict(state.items()) == {HOME: kind.make(3)}
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    assert dict(state.items()) == {HOME: kind.make(3)}


def test_a_map_is_its_keys_alone(state, kind, backend):
    state.put(HOME, kind.make(1))
    backend.context.key = BOB
    assert not state.exists()
    assert not state.contains(HOME)
    state.put(HOME, kind.make(2))
    state.put(CART, kind.make(3))
    backend.context.key = ANN
    assert dict(state.items()) == {HOME: kind.make(1)}
    state.clear()
    backend.context.key = BOB
    assert dict(state.items()) == {HOME: kind.make(2), CART: kind.make(3)}


def test_keys_that_begin_alike_do_not_mix_their_entries(backend, state, kind):
    keys = [("a",), ("ab",), ("a\x00",), ("",), ("a\x00b",), ("\xff",)]
    for number, key in enumerate(keys):
        backend.context.key = key
        state.put(HOME, kind.make(number))
    backend.context.key = ("a",)
    state.clear()
    for number, key in enumerate(keys[1:], 1):
        backend.context.key = key
        assert dict(state.items()) == {HOME: kind.make(number)}


@pytest.mark.parametrize("change", ["put", "replace", "remove", "clear"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
def test_items_shows_the_entries_as_they_were(state, kind, backend, change, committed):
    state.put(HOME, kind.make(1))
    state.put(CART, kind.make(2))
    if committed:
        backend.commit().release()
        set_current_key(backend, 3, ANN)
    items = state.items()
    changes = {
        "put": lambda: state.put(("new", 1), kind.make(3)),
        "replace": lambda: state.put(CART, kind.make(3)),
        "remove": lambda: state.remove(CART),
        "clear": state.clear,
    }
    changes[change]()
    assert dict(items) == {HOME: kind.make(1), CART: kind.make(2)}


def test_entries_may_be_changed_while_they_are_gone_through(state, kind):
    for step in range(6):
        state.put(("page", step), kind.make(step))
    for map_key, _ in state.items():  # noqa: PERF102 - a map state has no keys()
        if map_key[1] % 2:
            state.remove(map_key)
        else:
            state.put(map_key, kind.make(9))
    assert dict(state.items()) == {("page", step): kind.make(9) for step in (0, 2, 4)}


def test_a_refused_entry_changes_nothing(state, kind):
    with pytest.raises(DataError, match="pages"):
        state.put(HOME, kind.unfit)
    with pytest.raises(DataError, match="pages"):
        state.put(("home", "first"), kind.make(1))
    with pytest.raises(DataError, match="pages"):
        state.put("home", kind.make(1))
    assert not state.exists()
    state.put(HOME, kind.make(1))
    with pytest.raises(DataError, match="pages"):
        state.put(HOME, kind.unfit)
    assert dict(state.items()) == {HOME: kind.make(1)}


def test_map_keys_are_checked_when_reading_too(state):
    for read in (state.get, state.contains, state.remove):
        with pytest.raises(DataError, match="pages"):
            read(("home", "first"))


NAN = float("nan")
MAP_KEYS = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, -1, 0, 127, None]),
    "int64": (pa.int64(), [-(1 << 63), -1, 0, 1, (1 << 63) - 1]),
    "string": (pa.string(), ["", "a", "a\x00", "ä", "\U0001f600", None]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\x00", b"a\xff", None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 1, 1, 1, 1, tzinfo=dt.UTC), None],
    ),
    "local-timestamp": (pa.timestamp("us"), [dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("-1.50"), decimal.Decimal("0.00"), decimal.Decimal("12345.67")]),
    "double": (pa.float64(), [0.0, -1.5, float("inf"), float("-inf"), 1e-300, None]),
    "duration": (pa.duration("us"), [dt.timedelta(microseconds=-1), dt.timedelta(0), dt.timedelta(days=400)]),
}


@pytest.mark.parametrize("name", MAP_KEYS)
def test_map_keys_of_every_atomic_type_come_back_as_they_were(backend, name):
    kind, keys = MAP_KEYS[name]
    state = backend.map_state(StateDescriptor("m", StateKind.MAP, FLAT_ROW.schema, pa.schema([("k", kind)])))
    set_current_key(backend, 4, ANN)
    for number, key in enumerate(keys):
        state.put((key,), (number, None))
    for _ in range(2):
        assert exact(key for key, _ in state.items()) == exact((key,) for key in keys)
        assert [state.get((key,)) for key in keys] == [(number, None) for number in range(len(keys))]
        backend.commit().release()
        set_current_key(backend, 4, ANN)


def test_every_nan_is_one_map_key_and_so_are_both_zeros(backend):
    state = backend.map_state(StateDescriptor("m", StateKind.MAP, FLAT_ROW.schema, pa.schema([("k", pa.float64())])))
    set_current_key(backend, 4, ANN)
    state.put((float("nan"),), (1, None))
    state.put((-NAN,), (2, None))
    state.put((0.0,), (3, None))
    state.put((-0.0,), (4, None))
    for _ in range(2):
        assert [value for _, value in sorted(state.items(), key=repr)] == [(4, None), (2, None)]
        assert state.get((NAN,)) == (2, None)
        assert state.get((0.0,)) == (4, None)
        assert state.contains((-0.0,))
        backend.commit().release()
        set_current_key(backend, 4, ANN)
    state.remove((float("nan"),))
    state.remove((0.0,))
    assert not state.exists()
