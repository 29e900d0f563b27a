"""Keys: of every type, in several key groups, and listed each once."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from millpond.state.spi import StateKind
from millpond.state.types.arrow_values import NAN
from millpond.state.types.key_groups import key_group_of
from millpond.state.types.rows import RowCodec
from tests.state.conformance.kinds import (
    ANN,
    BOB,
    EVE,
    GROUPS,
    INTEGER,
    Cell,
    describe,
    everything,
    exact,
    set_current_key,
)

AT = [(3, ANN), (3, BOB), (4, EVE), (5, ("zoe",))]

KEYS = {
    "string": ([pa.string()], [("",), ("a",), ("a\x00",), ("ä",), (None,), ("ab",), ("\U0001f600",)]),
    "int64": ([pa.int64()], [(-(1 << 63),), (-1,), (0,), (1,), (255,), (256,), ((1 << 63) - 1,), (None,)]),
    "bool": ([pa.bool_()], [(True,), (False,), (None,)]),
    "binary": ([pa.binary()], [(b"",), (b"\x00",), (b"\x00\x00",), (b"a\xff",)]),
    "double": ([pa.float64()], [(0.0,), (float("nan"),), (-1.5,), (float("inf"),), (float("-inf"),), (None,)]),
    "date": ([pa.date32()], [(dt.date(1, 1, 1),), (dt.date(1969, 12, 31),), (dt.date(2024, 2, 29),), (None,)]),
    "timestamp": (
        [pa.timestamp("us", tz="UTC")],
        [(dt.datetime(1969, 12, 31, tzinfo=dt.UTC),), (dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),), (None,)],
    ),
    "local-timestamp": ([pa.timestamp("us")], [(dt.datetime(1969, 1, 1),), (dt.datetime(2024, 1, 1, 0, 0, 0, 1),)]),  # noqa: DTZ001
    "decimal": (
        [pa.decimal128(38, 2)],
        [(decimal.Decimal("-1.50"),), (decimal.Decimal("0.00"),), (decimal.Decimal("9" * 36 + ".99"),), (None,)],
    ),
    "columns": (
        [pa.string(), pa.int64()],
        [("a", 1), ("a", None), (None, 1), (None, None), ("a1", 1), ("", 11), ("1", 1)],
    ),
    "alike-columns": ([pa.string(), pa.string()], [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("ab", None)]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_every_type_find_their_state_and_come_back_as_they_were(backend, name):
    types, keys = KEYS[name]
    schema = pa.schema([(f"k{position}", kind) for position, kind in enumerate(types)])
    keys = list(map(RowCodec(schema, "key").check_key(), keys))
    groups = [GROUPS[key_group_of(key, types, len(GROUPS))] for key in keys]
    states = [backend.value_state(describe("v", StateKind.VALUE, INTEGER))]
    states.append(backend.map_state(describe("m", StateKind.MAP, INTEGER)))
    for number, (group, key) in enumerate(zip(groups, keys, strict=True)):
        set_current_key(backend, group, key)
        states[0].update(number)
        states[1].put(("page", 1), number)
    for _ in range(2):
        for number, (group, key) in enumerate(zip(groups, keys, strict=True)):
            set_current_key(backend, group, key)
            assert states[0].get() == number
            assert dict(states[1].items()) == {("page", 1): number}
        for state in ("v", "m"):
            assert exact(backend.keys(state)) == exact(zip(groups, keys, strict=True))
        backend.commit().release()


def test_listed_keys_can_be_turned_to(backend):
    """Of a NaN too, which is equal to no other NaN."""
    state = backend.value_state(describe("v", StateKind.VALUE, INTEGER))
    check = RowCodec(pa.schema([("k", pa.float64())]), "key").check_key()
    for number, key in enumerate([(float("nan"),), (-0.0,), (2.5,)]):
        set_current_key(backend, 3, check(key))
        state.update(number)
    for _ in range(2):
        found = []
        for group, key in list(backend.keys("v")):
            set_current_key(backend, group, key)
            found.append(state.get())
        assert sorted(found) == [0, 1, 2]
        # Whoever loads these cells into dictionaries finds a NaN only by the one object that all share.
        assert sum(key[0] is NAN for _, key in backend.keys("v")) == 1
        assert sum(key[0] is NAN for key in backend.cells("v", 3).keys) == 1
        set_current_key(backend, 3, check((float("nan"),)))
        assert state.get() == 0
        backend.commit().release()


def test_every_key_is_listed_once_whether_committed_open_or_both(cell, backend, kind):
    for group, key in AT[:3]:
        set_current_key(backend, group, key)
        cell.put(kind.make(1))
    backend.commit().release()
    for group, key in AT[1:]:
        set_current_key(backend, group, key)
        cell.put(kind.make(2))
    assert sorted(backend.keys("visits")) == AT
    for group, key in AT:
        set_current_key(backend, group, key)
        cell.get()
        cell.exists()
    assert sorted(backend.keys("visits")) == AT


def test_a_key_with_several_entries_is_listed_once(backend, kind):
    cell = Cell(backend, StateKind.MAP, kind)
    set_current_key(backend, 3, ANN)
    for step in range(3):
        cell.handle.put(("page", step), kind.make(step))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    for step in range(2, 5):
        cell.handle.put(("page", step), kind.make(step))
    assert list(backend.keys("visits")) == [(3, ANN)]


def test_cleared_and_merely_read_keys_are_not_listed(cell, backend, kind):
    for group, key in AT:
        set_current_key(backend, group, key)
        cell.put(kind.make(1))
    backend.commit().release()
    set_current_key(backend, 3, ANN)
    cell.clear()
    set_current_key(backend, 4, EVE)
    cell.clear()
    set_current_key(backend, 4, ("nobody",))
    cell.get()
    cell.exists()
    cell.clear()
    assert sorted(backend.keys("visits")) == [(3, BOB), (5, ("zoe",))]
    backend.commit().release()
    assert sorted(backend.keys("visits")) == [(3, BOB), (5, ("zoe",))]


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
def test_the_key_last_listed_may_be_changed(cell, backend, kind, committed):
    for group, key in AT:
        set_current_key(backend, group, key)
        cell.put(kind.make(1))
    if committed:
        backend.commit().release()
    listed = []
    for group, key in backend.keys("visits"):
        listed.append((group, key))
        set_current_key(backend, group, key)
        assert cell.get() == kind.make(1)
        if key in (ANN, EVE):
            cell.clear()
        else:
            cell.put(kind.make(2))
    assert sorted(listed) == AT
    assert everything(backend, "visits") == cell.placed({(3, BOB): kind.make(2), (5, ("zoe",)): kind.make(2)})


def test_state_of_listed_keys_may_be_cleared_before_they_come(cell, backend, kind):
    for number in range(40):
        set_current_key(backend, 3 + number % 3, (f"user{number}",))
        cell.put(kind.make(1))
    listed = []
    for group, key in backend.keys("visits"):
        listed.append((group, key))
        for number in range(40):
            set_current_key(backend, 3 + number % 3, (f"user{number}",))
            if backend.context.key != key and number % 2:
                cell.clear()
    assert len(set(listed)) == len(listed)
    assert {(3 + number % 3, (f"user{number}",)) for number in range(0, 40, 2)} <= set(listed)


def test_the_current_group_changes_with_enter_and_the_key_with_its_assignment(cell, backend, kind):
    set_current_key(backend, 3, ANN)
    cell.put(kind.make(1))
    backend.context.key = BOB
    cell.put(kind.make(2))
    set_current_key(backend, 4, EVE)
    assert backend.context.key_group == 4
    assert cell.get() is None
    cell.put(kind.make(3))
    set_current_key(backend, 3, BOB)
    assert cell.get() == kind.make(2)
    backend.context.key = ANN
    assert cell.get() == kind.make(1)
    expected = {(3, ANN): kind.make(1), (3, BOB): kind.make(2), (4, EVE): kind.make(3)}
    assert everything(backend, "visits") == cell.placed(expected)


def test_listing_keys_leaves_the_current_key_alone(cell, backend, kind):
    for group, key in AT:
        set_current_key(backend, group, key)
        cell.put(kind.make(1))
    backend.commit().release()
    set_current_key(backend, 4, EVE)
    list(backend.keys("visits"))
    everything(backend, "visits")
    assert (backend.context.key_group, backend.context.key) == (4, EVE)
    cell.clear()
    assert sorted(backend.keys("visits")) == [at for at in AT if at != (4, EVE)]
