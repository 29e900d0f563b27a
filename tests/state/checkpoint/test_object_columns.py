"""Python objects as columns: which types they have, and that nothing in them is lost."""

import datetime as dt
import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.checkpoint.format.object_columns import decoded
from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class User:
    name: str
    pages: dict[str, Point]
    about: Any = None


class Card(msgspec.Struct, tag="card"):
    number: str


class Cash(msgspec.Struct, tag="cash", array_like=False):
    amount: float


class Row(msgspec.Struct, tag=1, array_like=True):
    a: int
    b: str


class Sparse(msgspec.Struct, omit_defaults=True):
    a: int = 0
    b: dict[str, int] = {}


class Node(msgspec.Struct):
    value: int
    next: "Node | None" = None


class Empty(msgspec.Struct):
    pass


def column(kind, values):
    """The values of a state of this type, as they are read."""
    serializer = msgspec_serializer(kind)
    state = StateDescriptor("state", StateKind.VALUE, OBJECT_SCHEMA, serializer=serializer)
    stored = pa.array([serializer.dumps(serializer.check(value)) for value in values], pa.binary())
    read = decoded(
        pa.table({"key_group": [0] * len(values), "value.value": stored}), StateDescriptor.decode(state.encode())
    )
    return read["value.value"].combine_chunks()


def check(kind, values, wanted, plain=None):
    found = column(kind, values)
    found.validate(full=True)
    assert found.type == wanted
    assert found.to_pylist(maps_as_pydicts="strict") == (values if plain is None else plain)


TEXT, INT, FLOAT = pa.string(), pa.int64(), pa.float64()
POINT = pa.struct([("x", INT), ("y", FLOAT)])


def test_a_dict_is_a_map_however_many_keys_there_are():
    values = [{f"page {10 * row + at}": at for at in range(10)} for row in range(1000)]
    check(dict[str, int], values, pa.map_(TEXT, INT))
    check(dict, values, pa.map_(TEXT, INT))


def test_dicts_are_maps_within_lists_dicts_and_classes():
    check(list[dict[str, float]], [[{"a": 1.5}, {}], []], pa.list_(pa.map_(TEXT, FLOAT)))
    check(dict[int, dict[str, bool]], [{1: {"a": True}, 2: {}}], pa.map_(INT, pa.map_(TEXT, pa.bool_())))
    check(
        User,
        [User("ann", {"/": Point(1, 2.0)}), User("bob", {})],
        pa.struct([("name", TEXT), ("pages", pa.map_(TEXT, POINT)), ("about", pa.null())]),
        [
            {"name": "ann", "pages": {"/": {"x": 1, "y": 2.0}}, "about": None},
            {"name": "bob", "pages": {}, "about": None},
        ],
    )


def test_what_a_dict_holds_beyond_its_declared_type_is_seen():
    check(dict, [{"a": {"b": [1]}}, {"c": {}}], pa.map_(TEXT, pa.map_(TEXT, pa.list_(INT))))
    check(dict, [{"a": None}, {"b": 1}], pa.map_(TEXT, INT))


def test_a_dict_whose_values_have_several_types_is_json():
    check(dict, [{"name": "ann", "age": 3}, {}], TEXT, ['{"name":"ann","age":3}', "{}"])
    check(dict[str, int | str], [{"a": 1, "b": "x"}], TEXT, ['{"a":1,"b":"x"}'])
    check(list[int | str], [[1, "x"]], TEXT, ['[1,"x"]'])
    check(int | str, [1, "x"], TEXT, ["1", '"x"'])


def test_only_what_has_several_types_is_json():
    check(dict[str, dict], [{"a": {"x": 1, "y": "z"}}], pa.map_(TEXT, TEXT), [{"a": '{"x":1,"y":"z"}'}])
    check(
        User,
        [User("ann", {}, 1), User("bob", {}, "x"), User("eve", {})],
        pa.struct([("name", TEXT), ("pages", pa.map_(TEXT, POINT)), ("about", TEXT)]),
        [
            {"name": "ann", "pages": {}, "about": "1"},
            {"name": "bob", "pages": {}, "about": '"x"'},
            {"name": "eve", "pages": {}, "about": None},
        ],
    )


def test_what_json_has_no_words_for_is_message_pack():
    found = column(dict[int | None, int], [{None: 1, 2: 3}])
    assert found.type == pa.binary()
    assert [msgspec.msgpack.decode(data.as_py()) for data in found] == [{None: 1, 2: 3}]


def test_keys_may_be_numbers_and_tuples():
    check(dict[int, str], [{1: "a"}], pa.map_(INT, TEXT))
    found = column(dict[tuple[int, int], int], [{(1, 2): 3}])
    assert found.type == pa.map_(pa.list_(INT), INT)
    assert found.to_pylist() == [[([1, 2], 3)]]
    check(dict[tuple[int, str], int], [{(1, "a"): 1}], pa.map_(TEXT, INT), [{'[1,"a"]': 1}])
    check(dict[int | str, int], [{1: 1, "a": 2}], TEXT, ['{"1":1,"a":2}'])


def test_a_column_without_a_value_has_its_declared_type():
    check(dict[str, int], [{}], pa.map_(TEXT, INT))
    check(list[bytes], [[]], pa.list_(pa.binary()))
    assert column(dict[str, float], []).type == pa.map_(TEXT, FLOAT)
    assert column(Point, []).type == POINT


def test_nulls_stay_nulls_at_every_depth():
    check(list[int | None], [[1, None], [None]], pa.list_(INT))
    check(list[dict[str, int] | None], [[None, {"a": 1}, None], []], pa.list_(pa.map_(TEXT, INT)))
    check(list[list[int] | None], [[None, [1], None, [2, 3]]], pa.list_(pa.list_(INT)))
    check(list[Point | None], [[None, Point(1, 2.0)]], pa.list_(POINT), [[None, {"x": 1, "y": 2.0}]])
    check(list[dict | None], [[None, {"a": 1, "b": "x"}]], pa.list_(TEXT), [[None, '{"a":1,"b":"x"}']])


def test_classes_are_structs_however_they_are_written():
    check(Point, [Point(1, 2.0)], POINT, [{"x": 1, "y": 2.0}])
    check(Row, [Row(1, "x")], pa.struct([("type", INT), ("a", INT), ("b", TEXT)]), [{"type": 1, "a": 1, "b": "x"}])
    check(
        Sparse,
        [Sparse(), Sparse(1, {"x": 1})],
        pa.struct([("a", INT), ("b", pa.map_(TEXT, INT))]),
        [{"a": None, "b": None}, {"a": 1, "b": {"x": 1}}],
    )
    check(Empty, [Empty()], pa.struct([]), [{}])


def test_one_of_several_classes_is_a_struct_of_the_fields_of_all():
    check(
        Card | Cash,
        [Card("1"), Cash(2.5)],
        pa.struct([("type", TEXT), ("number", TEXT), ("amount", FLOAT)]),
        [{"type": "card", "number": "1", "amount": None}, {"type": "cash", "number": None, "amount": 2.5}],
    )
    check(Point | Empty, [Point(1, 2.0), Empty()], TEXT, ["[1,2.0]", "{}"])


def test_a_class_within_itself_is_json():
    check(
        Node,
        [Node(1, Node(2))],
        pa.struct([("value", INT), ("next", TEXT)]),
        [{"value": 1, "next": '{"value":2,"next":null}'}],
    )


def test_dates_numbers_and_enumerations_are_as_msgspec_writes_them():
    now = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    check(dict[str, dt.datetime], [{"a": now}], pa.map_(TEXT, pa.timestamp("us", "UTC")))
    check(dict[str, dt.date], [{"a": now.date()}], pa.map_(TEXT, TEXT), [{"a": "2013-01-01"}])
    check(list[Colour], [[Colour.RED]], pa.list_(TEXT), [["red"]])
    check(int, [1 << 63, 1], TEXT, [str(1 << 63), "1"])


@pytest.mark.parametrize("kind", [dict[str, list[int]], User, Card | Cash, list[Node], int])
def test_a_list_state_has_lists_of_the_same(kind):
    values = {
        dict[str, list[int]]: [{"a": [1]}, {}],
        User: [User("ann", {"/": Point(1, 2.0)})],
        Card | Cash: [Card("1"), Cash(2.5)],
        list[Node]: [[Node(1)], []],
        int: [1, 2],
    }[kind]
    serializer = msgspec_serializer(kind)
    state = StateDescriptor("state", StateKind.LIST, OBJECT_SCHEMA, serializer=serializer)
    elements = [{"value": serializer.dumps(value)} for value in values]
    stored = pa.array([elements, [], elements[:1]], pa.list_(pa.struct([("value", pa.binary())])))
    lists = decoded(pa.table({"value": stored}), StateDescriptor.decode(state.encode()))["value"].combine_chunks()
    assert lists.type == pa.list_(column(kind, values).type)
    single = column(kind, values).to_pylist()
    assert lists.to_pylist() == [single, [], single[:1]]


def test_keys_that_json_would_not_tell_apart_are_messagepack():
    found = column(dict, [{"": {"3": None, 3: []}}]).to_pylist(maps_as_pydicts="strict")
    assert msgspec.msgpack.decode(found[0][""]) == {"3": None, 3: []}


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 40), 1 << 40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)
TREES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


def told(found, value):
    """Whether a column's value tells this one: itself, or as a text that holds it."""
    if isinstance(found, str) and not isinstance(value, str):
        return told(msgspec.json.decode(found), value)
    if isinstance(found, bytes):
        return msgspec.msgpack.decode(found) == value
    if isinstance(value, dict) and isinstance(found, dict):
        # JSON has no other keys than texts.
        return {str(key): item for key, item in found.items()}.keys() == {str(key) for key in value} and all(
            told(item, next(value[own] for own in value if str(own) == str(key))) for key, item in found.items()
        )
    if isinstance(value, list) and isinstance(found, list):
        return len(found) == len(value) and all(map(told, found, value))
    return found == value or (isinstance(found, str) and msgspec.json.decode(found) == value)


@given(st.lists(st.dictionaries(st.text(max_size=3), TREES, max_size=3), max_size=5))
def test_any_dict_can_be_told_from_its_column(values):
    found = column(dict, values)
    found.validate(full=True)
    for told_value, value in zip(found.to_pylist(maps_as_pydicts="strict"), values, strict=True):
        assert told(told_value, value)
