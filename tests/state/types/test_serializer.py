"""Serializers: what a check lets in comes back equal, and the rest is refused there, by type and value."""

import dataclasses
import datetime as dt
import decimal
import enum
import math
import pickle
import typing
import uuid
from collections import OrderedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.state.types.object_codec import ObjectCodec
from millpond.state.types.serializer import msgspec_serializer, pickle_serializer, user_serializer


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Visit:
    page: str
    seconds: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int


class Tree(msgspec.Struct):
    value: int
    children: list["Tree"] = []


class Rounded(msgspec.Struct):
    """Its making changes what it was given."""

    at: float

    def __post_init__(self):
        self.at = round(self.at)


class Named(typing.NamedTuple):
    name: str
    count: int


class Typed(typing.TypedDict):
    name: str


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
integers = st.integers(-(1 << 63), (1 << 64) - 1)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.builds(Tree, integers), lambda inner: st.builds(Tree, integers, st.lists(inner, max_size=3)), max_leaves=5
)

KINDS = [
    (int, integers),
    (float, st.floats()),
    (str, texts),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=5)),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    (dt.datetime, st.datetimes()),
    (dt.timedelta, st.timedeltas()),
    (decimal.Decimal, decimals),
    (uuid.UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (list[int], st.lists(integers, max_size=4)),
    (list[float | None], st.lists(st.none() | st.floats(), max_size=4)),
    (set[str], st.sets(texts, max_size=4)),
    (frozenset[int], st.frozensets(integers, max_size=4)),
    (tuple[int, ...], st.lists(integers, max_size=4).map(tuple)),
    (tuple[int, str, list[bool]], st.tuples(integers, texts, st.lists(st.booleans(), max_size=2))),
    (dict[str, int], st.dictionaries(texts, integers, max_size=4)),
    (dict[int, list[str]], st.dictionaries(integers, st.lists(texts, max_size=2), max_size=3)),
    (dict[tuple[int, str], bytes], st.dictionaries(st.tuples(integers, texts), st.binary(max_size=3), max_size=3)),
    (int | str | None, integers | texts),
    (Visit, st.builds(Visit, texts, st.floats(), st.lists(texts, max_size=3))),
    (Point, st.builds(Point, integers, integers)),
    (list[Point], st.lists(st.builds(Point, integers, integers), max_size=3)),
    (Tree, trees),
    (Named, st.builds(Named, texts, integers)),
    (Typed, st.fixed_dictionaries({"name": texts})),
    (typing.Literal["a", 1], st.sampled_from(["a", 1])),
    (typing.Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 9)),
]


def _exact(value):
    """A value's types and bits, at every depth."""
    if isinstance(value, dt.datetime):
        return ("datetime", value.replace(tzinfo=None), value.tzinfo)
    if isinstance(value, set | frozenset):
        return (type(value), sorted(map(repr, value)))
    if isinstance(value, dict):
        return (type(value), [(_exact(key), _exact(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), [_exact(item) for item in value])
    if isinstance(value, msgspec.Struct):
        return (type(value), [_exact(getattr(value, name)) for name in value.__struct_fields__])
    if dataclasses.is_dataclass(value):
        return (type(value), [_exact(getattr(value, field.name)) for field in dataclasses.fields(value)])
    return (type(value), repr(value))


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda part: str(part)[:40])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_check_lets_in_comes_back_as_it_was_and_so_does_its_copy(kind, values, data):
    serializer, value = msgspec_serializer(kind), data.draw(values)
    checked = serializer.check(value)
    assert _exact(checked) == _exact(value)
    assert _exact(serializer.loads(serializer.dumps(checked))) == _exact(value)
    assert _exact(serializer.copy(checked)) == _exact(value)
    assert serializer.mutable or serializer.copy(checked) is checked


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(KINDS).flatmap(lambda of: of[1])
    | st.lists(st.integers() | st.floats() | st.text(max_size=2) | st.booleans() | st.none(), max_size=3),
)
def test_whatever_check_lets_in_of_any_type_comes_back_equal(kind_and_values, value):
    """Values of one type offered to another: refused, or kept as something equal that comes back exactly."""
    serializer = msgspec_serializer(kind_and_values[0])
    try:
        checked = serializer.check(value)
    except (TypeError, ValueError):
        return
    assert _exact(serializer.loads(serializer.dumps(checked))) == _exact(checked)
    assert checked == value or _exact(checked) == _exact(value)


NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (float, 2, 2.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (int, Level.LOW, 1),
        (dict[str, int], OrderedDict(a=1), {"a": 1}),
        (tuple[str, int], Named("a", 1), ("a", 1)),
        (dt.datetime, dt.datetime(2024, 7, 1, 8, tzinfo=NEW_YORK), dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)),
        # The hour that comes twice: which of the two it is must survive.
        (
            dt.datetime,
            dt.datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=NEW_YORK),
            dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC),
        ),
    ],
    ids=str,
)
def test_what_comes_back_equal_but_of_other_types_is_kept_as_that(kind, value, kept):
    assert _exact(msgspec_serializer(kind).check(value)) == _exact(kept)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1.5),
        (int, 1 << 64),
        (int, -(1 << 63) - 1),
        (float, (1 << 53) + 1),
        (float, "1.0"),
        (str, b"a"),
        (str, "\ud800"),
        (list[str], ["fine", "\ud800"]),
        (bool, 1),
        (bytes, "a"),
        (list[int], (1, 2)),
        (list[int], [1, "2"]),
        (list[int], [1, True]),
        (list[int], [1 << 64]),
        (list[int], [3.0]),
        (tuple[int, int], (1, 2, 3)),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"a": None}),
        (set[int], [1]),
        (Point, (1, 2)),
        (Point, Point("1", 2)),
        (Tree, Tree(1, [Tree("2")])),
        (Colour, "r"),
        (Colour, Level.LOW),
        (Rounded, type("Sub", (Rounded,), {})(1.0)),
        (typing.Annotated[int, msgspec.Meta(ge=0)], -1),
        (int, object),
        (list, [(1, 2)]),
        (dt.date, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ],
    ids=str,
)
def test_what_would_not_come_back_is_refused_with_state_key_type_and_value(kind, value):
    codec = ObjectCodec(msgspec_serializer(kind), "state 'visits' of key ('ann',)")
    with pytest.raises(DataError) as refused:
        codec.check(value)
    message = str(refused.value)
    for named in ("state 'visits' of key ('ann',): expected ", f"got {type(value).__name__}"):
        assert named in message


def test_a_class_whose_making_changes_its_fields_is_kept_as_it_will_come_back():
    serializer = msgspec_serializer(Rounded)
    made = Rounded(1.4)
    made.at = 1.4
    with pytest.raises(ValueError, match=r"would come back as Rounded\(at=1\)"):
        serializer.check(made)


@pytest.mark.parametrize("serializer", [msgspec_serializer(int | None), pickle_serializer()], ids=lambda it: it.text)
def test_none_is_no_value(serializer):
    with pytest.raises(TypeError, match=r"got None: a state without a value is absent. Use clear\(\)"):
        serializer.check(None)


@pytest.mark.parametrize(
    ("kind", "mutable"),
    [
        (int, False),
        (str | None, False),
        (dt.datetime, False),
        (Colour, False),
        (Point, False),
        (Named, False),
        (tuple[int, str], False),
        (frozenset[int], False),
        (tuple[list[int], int], True),
        (list[int], True),
        (dict[str, int], True),
        (Visit, True),
        (Tree, True),
        (typing.Any, True),
    ],
    ids=str,
)
def test_mutable_is_what_can_be_changed_in_place(kind, mutable):
    assert msgspec_serializer(kind).mutable is mutable


def test_the_text_tells_types_apart_and_shows_the_fields_of_classes():
    assert msgspec_serializer(dict[str, list[int]]).text == "msgspec dict[str, list[int]]"
    assert msgspec_serializer(str | int | None).text == msgspec_serializer(int | None | str).text
    assert msgspec_serializer(Visit).text == "msgspec Visit(page: str, seconds: float, tags: list[str])"
    assert msgspec_serializer(Tree).text == "msgspec Tree(value: int, children: list[Tree])"
    assert msgspec_serializer(Colour).text == "msgspec Colour(RED='r', BLUE='b')"
    assert msgspec_serializer(list[Point]) == msgspec_serializer(list[Point])
    assert len({msgspec_serializer(kind).text for kind, _ in KINDS}) == len({str(kind) for kind, _ in KINDS})


@pytest.mark.parametrize(
    "kind", [complex, list[object], ZoneInfo, dict[str, complex], msgspec.Raw, "NoSuchType"], ids=str
)
def test_a_type_that_msgspec_cannot_write_is_refused_with_the_other_ways(kind):
    with pytest.raises(OptionError, match=r"no type that msgspec can write.*serializer='pickle'.*user_serializer"):
        msgspec_serializer(kind)


def test_pickle_keeps_what_pickles_and_refuses_the_rest():
    serializer = pickle_serializer()
    value = {"zone": NEW_YORK, "at": [1j]}
    assert serializer.loads(serializer.dumps(serializer.check(value))) == value
    copied = serializer.copy(value)
    copied["at"].append(2)
    assert value["at"] == [1j]
    with pytest.raises(TypeError, match=r"serializer 'pickle' can write, got function .*lambda"):
        serializer.check(lambda: None)


def test_a_users_own_pair_is_asked_at_the_check():
    serializer = user_serializer("ascii", lambda text: text.encode("ascii"), lambda data: data.decode("ascii"))
    assert serializer.text == "ascii"
    assert serializer.loads(serializer.dumps(serializer.check("abc"))) == "abc"
    with pytest.raises(TypeError, match="serializer 'ascii' can write, got str 'é': UnicodeEncodeError"):
        serializer.check("é")
    with pytest.raises(TypeError, match="'text' must give bytes, and gave str"):
        user_serializer("text", str, str).check("abc")


@pytest.mark.parametrize("name", ["", "pickle", "msgspec int"])
def test_a_users_own_pair_cannot_take_millponds_names(name):
    with pytest.raises(OptionError, match="a name that is not Millpond's own"):
        user_serializer(name, pickle.dumps, pickle.loads)


def test_large_values_are_shown_in_part():
    with pytest.raises(TypeError) as refused:
        msgspec_serializer(int).check("x" * 10_000)
    assert len(str(refused.value)) < 500


def test_every_nan_passes():
    assert math.isnan(msgspec_serializer(float).check(float("nan")))
    assert math.isnan(msgspec_serializer(tuple[int, float]).check((Level.LOW, float("nan")))[1])
