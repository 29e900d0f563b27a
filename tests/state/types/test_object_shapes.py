"""The shapes of types, read from the texts that checkpoints keep of them."""

import datetime as dt
import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.types.object_shapes import ANY_DICT, ANY_ITEMS, Entries, Items, Leaf, Record, shape_of
from millpond.state.types.object_types import text_of


class Colour(enum.Enum):
    RED = "r), (x: int"
    BLUE = "b"


class Point(NamedTuple):
    x: int
    y: float


class Named(TypedDict):
    name: str


@dataclass
class User:
    name: Annotated[str, msgspec.Meta(pattern="^[a: (]+$", max_length=9)]
    colour: Colour
    pages: dict[str, dict[int, Point]]
    tags: set[str] | None


class Node(msgspec.Struct):
    value: int
    next: "Node | None" = None


class Card(msgspec.Struct, tag="card", rename={"number": "card-number"}):
    number: str


class Cash(msgspec.Struct, tag="cash"):
    amount: float


class Empty(msgspec.Struct):
    pass


INT, STR, FLOAT = Leaf("int"), Leaf("str"), Leaf("float")
POINT = Record((("x", INT), ("y", FLOAT)))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (int, INT),
        (int | None, INT),
        (int | str, Leaf()),
        (Annotated[int, msgspec.Meta(gt=0, le=9)], INT),
        (dict, Entries(Leaf("any"), Leaf("any"))),
        (dict[str, int], Entries(STR, INT)),
        (dict[str, list[int | None]] | None, Entries(STR, Items(INT))),
        (Annotated[dict[str, int], msgspec.Meta(max_length=3)], Entries(STR, INT)),
        (list[str], Items(STR)),
        (frozenset[int], Items(INT)),
        (tuple[int, ...], Items(INT)),
        (tuple[int, int], Items(INT)),
        (tuple[int, str], ANY_ITEMS),
        (Annotated[list[int], msgspec.Meta(min_length=1)], Items(INT)),
        (Point, POINT),
        (Named, Record((("name", STR),))),
        (
            User,
            Record(
                (
                    ("name", STR),
                    ("colour", Leaf("Colour")),
                    ("pages", Entries(STR, Entries(INT, POINT))),
                    ("tags", Items(STR)),
                )
            ),
        ),
        (Node, Record((("value", INT), ("next", Leaf("Node"))))),
        (Card, Record((("card-number", STR),), tagged=True)),
        (Card | Cash, Record((("card-number", STR), ("amount", FLOAT)), tagged=True, ordered=False)),
        (Card | int, Leaf()),
        (Empty, Record(())),
        (Colour, Leaf("Colour")),
        (Literal["a | b", 1] | None, Leaf()),
        (dt.datetime, Leaf("datetime")),
        (Any, Leaf("any")),
    ],
)
def test_a_text_says_the_shape_of_its_type(kind, shape):
    assert shape_of(text_of(msgspec.inspect.type_info(kind))) == shape


def test_fields_of_one_name_in_several_classes_have_the_shape_they_agree_on():
    text = "A[tag='a'](both: int, own: dict[str, int]) | B[tag='b'](both: str)"
    assert shape_of(text) == Record((("both", Leaf()), ("own", Entries(STR, INT))), tagged=True, ordered=False)


@pytest.mark.parametrize(
    "text", ["", "dict[", "dict[str]", "list[int", "A(x: )", "A(x: int", "Literal['a", "int)", "tuple[]"]
)
def test_a_text_that_is_not_understood_says_nothing(text):
    assert shape_of(text) == Leaf()


@given(st.text("dict[sr,] |()A:='\"\\.Literal ", max_size=30))
def test_no_text_is_an_error(text):
    shape_of(text)


def test_what_values_show_themselves_is_any():
    assert Entries(Leaf(), Leaf()) == ANY_DICT
    assert Items(Leaf()) == ANY_ITEMS
