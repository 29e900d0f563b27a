"""Row codecs: whatever check lets in comes back equal from Arrow, and what does not fit is refused by name."""

import datetime as dt
import decimal
import math
import struct
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.arrow_values import python_values
from millpond.state.types.rows import RowCodec, grouping_values

NEW_YORK = ZoneInfo("America/New_York")


def _integers(bits):
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _decimals(precision, scale):
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda unscaled: decimal.Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    )


times = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 28))  # noqa: DTZ001 - naive on purpose
plain_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)

ATOMIC = [
    (pa.int8(), _integers(8)),
    (pa.int16(), _integers(16)),
    (pa.int32(), _integers(32)),
    (pa.int64(), _integers(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), plain_text),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", tz="UTC"), times.map(lambda at: at.replace(tzinfo=dt.UTC))),
    (pa.timestamp("us", tz="America/New_York"), times.map(lambda at: at.replace(tzinfo=NEW_YORK))),
    (pa.timestamp("us"), times),
    (pa.duration("us"), st.timedeltas(dt.timedelta(days=-100_000), dt.timedelta(days=100_000))),
    (pa.decimal128(10, 2), _decimals(10, 2)),
    (pa.decimal128(38, 18), _decimals(38, 18)),
]


def _nested(inner):
    """Lists, maps and structs of other types: with values as user code gives them, dicts or tuples for structs."""
    lists = inner.map(lambda of: (pa.list_(of[0]), st.lists(_or_none(of[1]), max_size=3)))
    maps = inner.map(lambda of: (pa.map_(pa.string(), of[0]), st.dictionaries(plain_text, _or_none(of[1]), max_size=3)))
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda fields: (
            pa.struct([(f"f{at}", kind) for at, (kind, _) in enumerate(fields)]),
            st.tuples(*(_or_none(values) for _, values in fields)),
        )
    )
    return st.one_of(lists, maps, structs)


def _or_none(values):
    return st.one_of(st.none(), values)


kinds = st.recursive(st.sampled_from(ATOMIC), _nested, max_leaves=4)


@st.composite
def schema_and_rows(draw):
    fields = draw(st.lists(kinds, min_size=1, max_size=4))
    schema = pa.schema([(f"c{at}", kind) for at, (kind, _) in enumerate(fields)])
    rows = draw(st.lists(st.tuples(*(_or_none(values) for _, values in fields)), min_size=1, max_size=4))
    return schema, rows


def _exact(value):
    """A value such that equality sees NaNs as equal, and tells -0.0 from 0.0, 1 from True and datetime from date."""
    if isinstance(value, float):
        return ("float", "nan") if math.isnan(value) else ("float", struct.pack("<d", value))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [_exact(item) for item in value])
    if isinstance(value, dict):
        return ("dict", [(key, _exact(item)) for key, item in sorted(value.items())])
    if isinstance(value, dt.datetime):
        return ("datetime", value.utcoffset(), value.replace(tzinfo=None), value.fold)
    return (type(value).__name__, value)


def _containers(value):
    """The identities of every list and dict within a value."""
    if isinstance(value, dict):
        return {id(value)}.union(*map(_containers, value.values()))
    if isinstance(value, list | tuple):
        return {id(value) for _ in "x" if isinstance(value, list)}.union(*map(_containers, value))
    return set()


@settings(max_examples=150, deadline=None)
@given(schema_and_rows())
def test_what_check_returns_comes_back_equal_from_arrow(drawn):
    schema, rows = drawn
    codec = RowCodec(schema, "state 's'")
    checked = [codec.check(row) for row in rows]
    restored = list(codec.rows(codec.columns(checked)))
    assert _exact(restored) == _exact(checked)
    assert _exact([codec.check(row) for row in checked]) == _exact(checked), "check accepts what it returned"


@settings(max_examples=150, deadline=None)
@given(schema_and_rows())
def test_bytes_give_back_what_a_segment_would(drawn):
    schema, rows = drawn
    codec = RowCodec(schema, "state 's'")
    checked = [codec.check(row) for row in rows]
    assert _exact([codec.loads(codec.dumps(row)) for row in checked]) == _exact(
        list(codec.rows(codec.columns(checked)))
    )


@settings(max_examples=100, deadline=None)
@given(schema_and_rows())
def test_a_copy_is_equal_and_shares_no_container(drawn):
    schema, rows = drawn
    codec = RowCodec(schema, "state 's'")
    for row in map(codec.check, rows):
        copied = codec.copy(row)
        assert _exact(copied) == _exact(row)
        assert not _containers(copied) & _containers(row)
        assert codec.mutable or copied is row


@settings(max_examples=150, deadline=None)
@given(schema_and_rows())
def test_check_changes_no_value_that_has_the_fields_own_type(drawn):
    schema, rows = drawn
    codec = RowCodec(schema, "state 's'")
    for row in rows:
        for field, given_value, checked in zip(schema, row, codec.check(row), strict=True):
            if pa.types.is_timestamp(field.type) and given_value is not None:
                assert checked == given_value
            elif not pa.types.is_nested(field.type):
                assert _exact(checked) == _exact(given_value)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(ATOMIC))
def test_rows_come_back_from_chunks_and_slices_too(data, atomic):
    kind, values = atomic
    codec = RowCodec(pa.schema([("at", kind)]), "state 's'")
    rows = [codec.check((value,)) for value in data.draw(st.lists(_or_none(values), min_size=2, max_size=6))]
    (column,) = codec.columns(rows)
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    assert _exact(list(codec.rows([chunks]))) == _exact(rows)
    assert _exact(list(codec.rows([column.slice(1)]))) == _exact(rows[1:])


REFUSED = [
    (pa.int8(), 128),
    (pa.int8(), -129),
    (pa.int16(), 1 << 15),
    (pa.int32(), 1 << 31),
    (pa.int64(), 1 << 63),
    (pa.int64(), -(1 << 63) - 1),
    (pa.int64(), 1.5),
    (pa.int64(), "1"),
    (pa.int64(), math.nan),
    (pa.float64(), "1.0"),
    (pa.float64(), (1 << 53) + 1),
    (pa.bool_(), 1),
    (pa.bool_(), "true"),
    (pa.string(), 1),
    (pa.string(), b"\xff"),
    (pa.string(), "\ud800"),
    (pa.binary(), 1),
    (pa.date32(), "2020-01-01"),
    (pa.date32(), dt.datetime(2020, 1, 1, 12, 30, tzinfo=dt.UTC)),
    (pa.timestamp("us", tz="UTC"), "2020-01-01"),
    (pa.timestamp("us", tz="UTC"), dt.date(2020, 1, 1)),
    (pa.decimal128(4, 2), decimal.Decimal("1.234")),
    (pa.decimal128(4, 2), decimal.Decimal(100)),
    (pa.decimal128(4, 2), 1.5),
    (pa.list_(pa.int64()), ["1"]),
    (pa.list_(pa.int64()), 1),
    (pa.list_(pa.string()), ["\ud800"]),
    (pa.map_(pa.string(), pa.int64()), {"a": "b"}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)]),
    (pa.struct([("a", pa.int64())]), {"a": "b"}),
    (pa.struct([("a", pa.int64()), ("b", pa.int64())]), (1,)),
    (pa.int64(), object),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=lambda part: repr(part)[:40])
def test_what_does_not_fit_is_refused_with_state_field_and_value(kind, value):
    codec = RowCodec(pa.schema([("fine", pa.int64()), ("amount", kind)]), "state 'orders'")
    with pytest.raises(DataError) as refused:
        codec.check((1, value))
    message = str(refused.value)
    for named in ("state 'orders'", "'amount'", str(kind), type(value).__name__, repr(value)):
        assert named in message


@pytest.mark.parametrize(
    "value",
    ["ann", b"ann", 1, None, (), (1,), (1, 2, 3), [1], iter((1, 2)), {"user": 1, "amount": 2}, {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_tuple_of_all_fields_is_refused_with_their_names(value):
    codec = RowCodec(pa.schema([("user", pa.int64()), ("amount", pa.int64())]), "state 'orders'")
    with pytest.raises(DataError, match=r"state 'orders': expected .*2 fields \('user', 'amount'\)"):
        codec.check(value)


@pytest.mark.parametrize("zone", [dt.UTC, NEW_YORK, dt.timezone(dt.timedelta(hours=5))], ids=str)
@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(
    "at",
    [dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 11, 3, 1, 30), dt.datetime(2024, 7, 1)],  # noqa: DTZ001 - a zone is put on
    ids=str,
)
@pytest.mark.parametrize("name", ["UTC", "America/New_York"])
def test_a_moment_of_any_zone_is_kept_even_in_hours_that_are_missing_or_come_twice(zone, fold, at, name):
    codec = RowCodec(pa.schema([("at", pa.timestamp("us", tz=name))]), "state 's'")
    given_at = at.replace(tzinfo=zone, fold=fold)
    (kept,) = codec.check((given_at,))
    assert kept.astimezone(dt.UTC) == given_at.astimezone(dt.UTC)
    assert _exact(next(codec.rows(codec.columns([(kept,)])))) == _exact((kept,))
    assert _exact(codec.check((kept,))) == _exact((kept,))


def test_what_loses_nothing_is_converted():
    schema = pa.schema([("i", pa.int32()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.binary())])
    checked = RowCodec(schema, "state 's'").check([np.int64(3), 2, np.str_("x"), bytearray(b"y")])
    assert _exact(checked) == _exact((3, 2.0, "x", b"y"))


def test_structs_are_tuples_at_every_depth():
    kind = pa.list_(
        pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.bool_())])))]))
    )
    codec = RowCodec(pa.schema([("deep", kind)]), "state 's'")
    expected = ([{"k": (1, [(True,), None])}, None],)
    assert codec.check(([{"k": {"a": 1, "b": [{"c": True}, None]}}, None],)) == expected
    assert codec.check(expected) == expected
    assert list(codec.rows(codec.columns([expected]))) == [expected]


@pytest.mark.parametrize(
    ("kind", "value", "change"),
    [
        (pa.list_(pa.int64()), [1], lambda value: value.append(2)),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, lambda value: value.update(b=2)),
        (pa.struct([("l", pa.list_(pa.int64()))]), ([1],), lambda value: value[0].append(2)),
        (pa.list_(pa.list_(pa.int64())), [[1]], lambda value: value[0].append(2)),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_changing_a_nested_value_after_it_went_in_or_came_out_leaves_the_state_alone(kind, value, change):
    schema = pa.schema([("nested", kind)])
    key = pa.schema([("at", pa.int64())])
    backend = HeapBackend(range(1))
    single = backend.value_state(StateDescriptor("v", StateKind.VALUE, schema))
    several = backend.list_state(StateDescriptor("l", StateKind.LIST, schema))
    entries = backend.map_state(StateDescriptor("m", StateKind.MAP, schema, key))

    def reads():
        backend.enter(0)
        return [single.get(), *several.get(), entries.get((0,)), *(found for _, found in entries.items())]

    backend.enter(0)
    single.update((value,))
    several.append((value,))
    entries.put((0,), (value,))
    before = repr(reads())
    change(value)
    assert repr(reads()) == before
    backend.commit()
    for (found,) in reads():
        change(found)
    backend.commit()
    assert repr(reads()) == before


@given(st.lists(_or_none(st.floats()), max_size=6))
@example([math.nan, -0.0, 0.0, None])
@settings(max_examples=50, deadline=None)
def test_grouping_values_make_one_key_of_every_nan_and_of_both_zeros(values):
    grouped = grouping_values(pa.array(values, type=pa.float64()))
    assert len({(value,) for value in grouped}) == len({"nan" if value != value else value for value in values})  # noqa: PLR0124
    assert all(value is None or math.copysign(1, value) == 1 for value in grouped if value == 0)


def test_every_nan_is_the_same_object():
    first, second = python_values(pa.array([math.nan, float("inf") - float("inf")]))
    assert first is second


RARE = [
    (pa.time64("us"), dt.time(1, 2, 3, 4)),
    (pa.large_string(), "é"),
    (pa.binary(3), b"abc"),
    (pa.uint64(), (1 << 64) - 1),
    (pa.timestamp("ms", tz="+02:00"), dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
    (pa.timestamp("s"), dt.datetime(2020, 1, 1)),  # noqa: DTZ001 - naive on purpose
    (pa.large_list(pa.int64()), [1, None]),
    (pa.map_(pa.date32(), pa.float64()), {dt.date(2020, 1, 1): 0.5}),
    (pa.map_(pa.binary(), pa.list_(pa.int64())), {b"\xff": [1]}),
    (pa.map_(pa.float64(), pa.string()), {-0.0: "x"}),
    (pa.list_(pa.struct([])), [(), None]),
]


@pytest.mark.parametrize(("kind", "value"), RARE, ids=lambda part: str(part)[:40])
def test_rare_types_become_bytes_and_copies_too(kind, value):
    codec = RowCodec(pa.schema([("at", kind), ("beside", pa.int64())]), "state 's'")
    row = codec.check((value, 1))
    assert row == (value, 1)
    assert _exact(codec.loads(codec.dumps(row))) == _exact(next(codec.rows(codec.columns([row]))))
    assert _exact(codec.copy(row)) == _exact(row)


def test_every_nan_read_from_bytes_is_the_same_object():
    codec = RowCodec(pa.schema([("at", pa.float64())]), "state 's'")
    (first,), (second,) = (codec.loads(codec.dumps((made,))) for made in (math.nan, float("inf") - float("inf")))
    assert first is second


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.int64(), 3, 3),
        (pa.int64(), np.int64(3), 3),
        (pa.string(), "ab", "ab"),
        (pa.string(), "", ""),
        (pa.binary(), b"ab", b"ab"),
        (pa.float64(), 1.5, 1.5),
        (pa.bool_(), True, True),
        (pa.date32(), dt.date(2024, 1, 1), dt.date(2024, 1, 1)),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 1}),
    ],
)
def test_a_bare_value_of_the_right_type_is_a_row_of_one_field(kind, value, kept):
    codec = RowCodec(pa.schema([("only", kind)]), "state 's'")
    assert codec.check(value) == (kept,)
    assert type(codec.check(value)[0]) is type(kept)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "3"),
        (pa.int64(), True),
        (pa.int64(), 3.0),
        (pa.int64(), None),
        (pa.int8(), 300),
        (pa.string(), b"ab"),
        (pa.string(), 3),
        (pa.float64(), 1),
        (pa.string(), {"only": "a"}),
        (pa.map_(pa.string(), pa.int64()), {"a": "b"}),
    ],
)
def test_a_bare_value_of_another_type_is_refused_by_name(kind, value):
    codec = RowCodec(pa.schema([("only", kind)]), "state 's'")
    with pytest.raises(DataError, match=r"state 's': expected a tuple of (one|1) field.*'only'"):
        codec.check(value)


def test_a_bare_value_is_no_row_of_two_fields():
    codec = RowCodec(pa.schema([("a", pa.string()), ("b", pa.string())]), "state 's'")
    with pytest.raises(DataError, match="expected a tuple of 2 fields"):
        codec.check("ab")
