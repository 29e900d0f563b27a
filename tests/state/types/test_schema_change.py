"""Changed declarations: what loses nothing is carried over, through real segments; the rest shows both declarations."""

import dataclasses
import decimal

import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.spi import ABSENT, Cells, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.schema_change import migration
from millpond.state.types.serializer import msgspec_serializer, pickle_serializer, user_serializer
from millpond.state.types.ttl import Ttl

KEY = pa.schema([("user", pa.string())])
PAGE = pa.schema([("page", pa.string())])
COUNT = pa.schema([("count", pa.int64())])
KINDS = [StateKind.VALUE, StateKind.LIST, StateKind.MAP]


def rows_of(kind, schema, ttl=None):
    return StateDescriptor("s", kind, schema, PAGE if kind is StateKind.MAP else None, None, ttl)


def objects_of(kind, of, ttl=None):
    serializer = msgspec_serializer(of) if isinstance(of, type) or not hasattr(of, "text") else of
    return StateDescriptor("s", kind, OBJECT_SCHEMA, PAGE if kind is StateKind.MAP else None, serializer, ttl)


def cells_of(kind, values):
    """Each value as the state of one key, which is its place; for a list state, each is a list."""
    count = len(values)
    map_keys = [("/",)] * count if kind is StateKind.MAP else None
    return Cells([0] * count, [(f"k{at}",) for at in range(count)], map_keys, values)


def carried(old, new, values, now_ms=None):
    """What values become: old table, migration, new cells. A list state has them as lists of one, and of all."""
    kind = old.kind
    given = [*([value] for value in values), list(values), []] if kind is StateKind.LIST else list(values)
    table = CellCodec(old, KEY).table(cells_of(kind, [*given, ABSENT]))
    migrate = migration(old, new, now_ms)
    found = CellCodec(new, KEY).cells(table if migrate is None else migrate(table))
    assert found.keys == cells_of(kind, [*given, ABSENT]).keys
    assert found.values.pop() is ABSENT
    if kind is not StateKind.LIST:
        return found.values
    *singles, every, none = found.values
    assert none == []
    assert every == [single for one in singles if one is not ABSENT for single in one]
    return [ABSENT if one is ABSENT else one[0] for one in singles]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("old", "new", "values", "expected"),
    [
        ([("a", pa.int64())], [("a", pa.int64()), ("b", pa.string())], [(1,)], [(1, None)]),
        ([("a", pa.int64()), ("b", pa.string())], [("b", pa.string())], [(1, "x"), (2, None)], [("x",), (None,)]),
        ([("a", pa.int64()), ("b", pa.string())], [("b", pa.string()), ("a", pa.int64())], [(1, "x")], [("x", 1)]),
        ([("a", pa.int32())], [("a", pa.int64())], [(-(1 << 31),), (None,)], [(-(1 << 31),), (None,)]),
        ([("a", pa.float32())], [("a", pa.float64())], [(0.1,)], [(0.10000000149011612,)]),
        ([("a", pa.int32())], [("a", pa.float64())], [((1 << 31) - 1,)], [(2147483647.0,)]),
        (
            [("a", pa.decimal128(4, 2))],
            [("a", pa.decimal128(8, 4))],
            [(decimal.Decimal("12.34"),)],
            [(decimal.Decimal("12.3400"),)],
        ),
        (
            [("a", pa.list_(pa.int32()))],
            [("a", pa.list_(pa.int64()))],
            [([1, None],), (None,)],
            [([1, None],), (None,)],
        ),
        (
            [("a", pa.struct([("x", pa.int32()), ("y", pa.string())]))],
            [("a", pa.struct([("x", pa.int64()), ("y", pa.string())])), ("b", pa.date32())],
            [((1, "y"),), (None,)],
            [((1, "y"), None), (None, None)],
        ),
        (
            [("a", pa.map_(pa.string(), pa.int8()))],
            [("a", pa.map_(pa.string(), pa.int16()))],
            [({"x": 1},)],
            [({"x": 1},)],
        ),
    ],
    ids=str,
)
def test_fields_are_added_dropped_reordered_and_made_wider(kind, old, new, values, expected):
    old, new = rows_of(kind, pa.schema(old)), rows_of(kind, pa.schema(new))
    values = [old.codec("").check(value) for value in values]
    assert carried(old, new, values) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_to_do_where_the_tables_are_the_same(kind):
    assert migration(rows_of(kind, COUNT), rows_of(kind, COUNT)) is None
    assert migration(objects_of(kind, list[int]), objects_of(kind, list[int])) is None
    assert migration(rows_of(kind, COUNT, Ttl(1)), rows_of(kind, COUNT, Ttl(2, "read-and-write"))) is None
    stored = StateDescriptor.decode(objects_of(kind, int).encode())
    assert migration(stored, objects_of(kind, int)) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("schema", "values"), [(COUNT, [(1,), (2,)]), (None, [1, 2])], ids=["rows", "objects"])
def test_where_a_ttl_is_added_lives_begin_now_and_where_it_is_removed_the_expired_stay_gone(kind, schema, values):
    plain = objects_of(kind, int) if schema is None else rows_of(kind, schema)
    living = dataclasses.replace(plain, ttl=Ttl(10))
    assert carried(plain, living, values, now_ms=100) == [(value, 100) for value in values]
    lives = [(values[0], 91), (values[1], 90)]
    assert carried(living, plain, lives, now_ms=100) == [values[0], ABSENT]
    assert carried(living, plain, lives, now_ms=99) == values


def test_a_ttl_is_not_added_or_removed_without_the_time():
    plain, living = rows_of(StateKind.VALUE, COUNT), rows_of(StateKind.VALUE, COUNT, Ttl(10))
    for old, new in ((plain, living), (living, plain)):
        with pytest.raises(OptionError, match=r"given no time \(now_ms\)"):
            migration(old, new)


@dataclasses.dataclass
class Before:
    page: str
    count: int


@dataclasses.dataclass
class After:
    page: str
    seconds: float | None = None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("old", "new", "values", "expected"),
    [
        (int, int | str, [1], [1]),
        (int, float, [1, 2], [1.0, 2.0]),
        (list[int], tuple[int, ...], [[1, 2]], [(1, 2)]),
        (Before, After, [Before("/a", 1)], [After("/a")]),
        (int | str, int, [1, 2], [1, 2]),
    ],
    ids=str,
)
def test_a_changed_python_type_is_carried_where_every_value_can_be_read_as_it(kind, old, new, values, expected):
    assert carried(objects_of(kind, old), objects_of(kind, new), values) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("old", "new", "exact", "rounded"),
    [
        (int, float, 2**53, 2**53 + 1),
        (list[int], list[float], [1, 2**60], [1, 2**60 + 1]),
        (set[int], set[float], {1, 2**60, 7}, {1, 2**60 + 1, 7}),
        (dict[str, int], dict[str, float], {"a": 2**54}, {"a": 2**54 + 1}),
        (dict[int, int], dict[float, float], {2**54: 1}, {2**54 + 1: 1}),
    ],
    ids=str,
)
def test_a_whole_number_that_a_float_would_round_is_refused_by_its_key(kind, old, new, exact, rounded):
    assert carried(objects_of(kind, old), objects_of(kind, new), [exact]) == [exact]
    with pytest.raises(OptionError, match=r"value of key \('k1',\) has a whole number that a float would round"):
        carried(objects_of(kind, old), objects_of(kind, new), [exact, rounded])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_value_that_cannot_be_read_as_the_new_type_is_named_with_its_key_and_both_types(kind):
    with pytest.raises(OptionError) as refused:
        carried(objects_of(kind, int | str), objects_of(kind, int), [1, "x", "y"])
    for named in ("(msgspec int | str)", "(msgspec int)", "the value of key ('k1',) cannot be read", "got `str`"):
        assert named in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (rows_of(StateKind.VALUE, COUNT), rows_of(StateKind.LIST, COUNT), "a value state cannot become a list state"),
        (
            rows_of(StateKind.MAP, COUNT),
            StateDescriptor("s", StateKind.MAP, COUNT, COUNT),
            "the type of its map keys differs",
        ),
        (rows_of(StateKind.VALUE, COUNT), objects_of(StateKind.VALUE, int), "cannot become each other"),
        (rows_of(StateKind.VALUE, COUNT), rows_of(StateKind.VALUE, PAGE), "none of its fields is left"),
        *(
            (
                rows_of(StateKind.VALUE, pa.schema([("a", old)])),
                rows_of(StateKind.VALUE, pa.schema([("a", new)])),
                f"field 'a' was {old} and cannot become {new} without loss",
            )
            for old, new in [
                (pa.int64(), pa.int32()),
                (pa.int64(), pa.float64()),
                (pa.int64(), pa.string()),
                (pa.float64(), pa.float32()),
                (pa.decimal128(8, 4), pa.decimal128(8, 2)),
                (pa.decimal128(8, 2), pa.decimal128(8, 4)),
                (pa.date32(), pa.timestamp("us")),
                (pa.list_(pa.int64()), pa.list_(pa.int32())),
                (pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int64(), pa.int64())),
                (pa.struct([("x", pa.int64())]), pa.struct([("y", pa.int64())])),
            ]
        ),
        (
            rows_of(StateKind.VALUE, COUNT),
            rows_of(StateKind.VALUE, COUNT.append(pa.field("b", pa.int64(), nullable=False))),
            "field 'b' was added",
        ),
        (
            objects_of(StateKind.VALUE, int),
            objects_of(StateKind.VALUE, pickle_serializer()),
            "what 'msgspec int' wrote, 'pickle' cannot read",
        ),
        (
            objects_of(StateKind.VALUE, user_serializer("mine", str.encode, bytes.decode)),
            objects_of(StateKind.VALUE, str),
            "what 'mine' wrote, 'msgspec str' cannot read",
        ),
    ],
)
def test_what_loses_something_is_refused_with_both_declarations_and_what_is_allowed(old, new, why):
    with pytest.raises(OptionError) as refused:
        migration(old, new)
    for named in (old.describe(), new.describe(), why, "Allowed are fields that are added, dropped or reordered"):
        assert named in str(refused.value)
