"""Time to live: declared durations, codecs that carry it, and what is left of cells when it is over."""

import datetime as dt

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.state.backend.expiry import alive
from millpond.state.spi import ABSENT, Cells, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.types.ttl import LIFE_FIELD, Ttl

NUMBER = pa.schema([("count", pa.int64())])
NUMBERS = pa.schema([("all", pa.list_(pa.int64()))])


def test_a_duration_is_a_ttl_a_timedelta_or_a_number_of_ms():
    assert Ttl.of(dt.timedelta(seconds=2)) == Ttl.of(2_000) == Ttl(2_000)
    chosen = Ttl(1, refresh="read-and-write")
    assert Ttl.of(chosen) is chosen


@pytest.mark.parametrize("duration", [0, -1, dt.timedelta(0), dt.timedelta(microseconds=1500), 1.5, True, "1h", None])
def test_a_duration_that_is_no_whole_ms_of_1_or_more_is_refused(duration):
    with pytest.raises(OptionError, match="ttl"):
        Ttl.of(duration)


@pytest.mark.parametrize("duration_ms", [1 << 63, 1 << 64, 10**30])
def test_a_duration_that_no_manifest_can_hold_is_refused(duration_ms):
    with pytest.raises(OptionError, match=rf"ttl.duration_ms is {duration_ms}; expected {(1 << 63) - 1} at most"):
        Ttl.of(duration_ms)


@pytest.mark.parametrize(
    ("option", "value"),
    [("refresh", "read"), ("visibility", "always"), ("clean_up", ("daily",)), ("clean_up", ["snapshot"])],
)
def test_an_unknown_option_is_refused_with_those_there_are(option, value):
    with pytest.raises(OptionError, match=rf"ttl\.{option} is .*expected of \('"):
        Ttl(1, **{option: value})


def test_a_life_is_over_when_the_duration_has_passed_and_not_before_it_began():
    ttl = Ttl(10)
    assert [ttl.expired(100, now_ms) for now_ms in (0, 100, 109, 110, 1_000)] == [False, False, False, True, True]


def _codec(schema=NUMBER, serializer=None):
    return StateDescriptor("v", StateKind.VALUE, schema, None, serializer, Ttl(10)).codec("state 'v'")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(-5, 5), max_size=3), st.integers(-(1 << 63), (1 << 63) - 1))))
def test_stamped_values_come_back_from_columns_and_from_bytes(drawn):
    for codec, stamped in [
        (_codec(NUMBERS), [((numbers,), at) for numbers, at in drawn]),
        (_codec(OBJECT_SCHEMA, msgspec_serializer(list[int])), drawn),
    ]:
        checked = [codec.check(value) for value in stamped]
        assert checked == stamped
        assert codec.mutable
        assert codec.schema.field(codec.schema.names[-1]) == LIFE_FIELD
        assert list(codec.rows(codec.columns(checked))) == stamped
        assert [codec.loads(codec.dumps(value)) for value in checked] == stamped
        copied = [codec.copy(value) for value in checked]
        assert copied == stamped
        assert all(one[0] is not other[0] for one, other in zip(copied, checked, strict=True))


def test_a_stamped_value_that_does_not_fit_is_refused_and_an_immutable_one_is_not_copied():
    codec = _codec()
    with pytest.raises(DataError, match="state 'v'"):
        codec.check((("x",), 1))
    stamped = codec.check(((1,), 1))
    assert codec.copy(stamped) is stamped


def test_a_descriptor_shows_its_ttl_and_serializer_and_keeps_them_on_its_way_through_a_manifest():
    ttl = Ttl(60_000, "read-and-write", "until-cleaned", ("incremental",))
    descriptor = StateDescriptor("v", StateKind.VALUE, OBJECT_SCHEMA, None, msgspec_serializer(list[int]), ttl)
    assert descriptor.describe() == (
        "value v (msgspec list[int]) ttl 60000 ms, refresh='read-and-write', visibility='until-cleaned', "
        "clean_up=('incremental',)"
    )
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(descriptor.encode()))
    decoded = StateDescriptor.decode(plain)
    assert decoded.ttl == ttl
    assert decoded.describe() == descriptor.describe()
    assert decoded.serializer.raw


def test_alive_leaves_out_expired_cells_and_elements_and_keeps_deleted_ones():
    values = Cells([0, 0, 1], [("a",), ("b",), ("c",)], None, [(1, 90), (2, 91), ABSENT])
    assert alive(values, Ttl(10), 100) == Cells([0, 1], [("b",), ("c",)], None, [(2, 91), ABSENT])
    entries = Cells([0, 0], [("a",), ("a",)], [("x",), ("y",)], [(1, 91), (2, 90)])
    assert alive(entries, Ttl(10), 100) == Cells([0], [("a",)], [("x",)], [(1, 91)])
    lists = Cells([0, 0, 0], [("a",), ("b",), ("c",)], None, [[(1, 90), (2, 91)], [(1, 90)], []])
    assert alive(lists, Ttl(10), 100) == Cells([0], [("a",)], None, [[(2, 91)]])


def test_alive_leaves_the_cells_it_was_given_alone():
    cells = Cells([0], [("a",)], None, [[(1, 90), (2, 91)]])
    alive(cells, Ttl(10), 100)
    assert cells == Cells([0], [("a",)], None, [[(1, 90), (2, 91)]])
