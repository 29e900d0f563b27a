"""Db keys: every key comes back as it was, equal keys are one db key, and different ones two."""

import datetime as dt
import decimal
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError
from millpond.state.types.arrow_values import NAN
from millpond.state.types.ordered_keys import after, decode_key, encode_key

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([dt.UTC, BERLIN, dt.timezone(dt.timedelta(hours=-5))])),
    st.timedeltas(),
    st.times(),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**30), max_value=10**30),
)
KEYS = st.lists(st.one_of(ATOMS, st.tuples(ATOMS, ATOMS)), max_size=4).map(tuple)


def typed(key):
    """A key with its types, so that 1, True and 1.0 differ."""
    return tuple((type(item), typed(item) if isinstance(item, tuple) else item) for item in key)


def instant(item):
    return item.astimezone(dt.UTC) if isinstance(item, dt.datetime) and item.tzinfo else item


@given(KEYS)
def test_every_key_comes_back_equal_and_of_the_same_types(key):
    again = decode_key(encode_key(key))
    assert typed(again) == typed(tuple(map(_without_wall_gaps, key)))
    assert encode_key(again) == encode_key(key)


def _without_wall_gaps(item):
    # An hour that the wall skips in spring is written as the instant it means.
    return instant(item).astimezone(item.tzinfo) if isinstance(item, dt.datetime) and item.tzinfo else item


@given(KEYS, KEYS)
def test_different_keys_have_different_bytes(one, other):
    same = typed(tuple(map(instant, one))) == typed(tuple(map(instant, other)))
    assert same or encode_key(one) != encode_key(other)


def test_what_python_finds_equal_but_has_other_types_are_different_keys():
    keys = [(1,), (True,), (1.0,), ("1",), (b"1",), (decimal.Decimal(1),), (1, None), ((1,),)]
    assert len(set(map(encode_key, keys))) == len(keys)


def test_every_nan_is_one_key_and_so_are_both_zeros():
    nan = float("nan")
    assert encode_key((nan,)) == encode_key((-nan,))
    assert decode_key(encode_key((nan,)))[0] is NAN, "dictionaries find a NaN only by the one object"
    assert encode_key((-0.0,)) == encode_key((0.0,))


def test_a_decimal_keeps_its_digits_and_zero_has_no_sign():
    assert str(decode_key(encode_key((decimal.Decimal("1.50"),)))[0]) == "1.50"
    assert encode_key((decimal.Decimal("-0.00"),)) == encode_key((decimal.Decimal("0.00"),))


def test_the_hour_that_comes_twice_in_autumn_is_two_keys():
    first = dt.datetime(2013, 10, 27, 2, 30, tzinfo=BERLIN)
    second = first.replace(fold=1)
    assert encode_key((first,)) != encode_key((second,))
    assert decode_key(encode_key((second,)))[0].fold == 1


def test_utc_is_one_zone_whatever_its_name():
    noon = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
    assert encode_key((noon.replace(tzinfo=zoneinfo.ZoneInfo("UTC")),)) == encode_key((noon,))
    assert decode_key(encode_key((noon,))) == (noon,)


def test_a_type_that_no_key_can_have_is_refused_by_name():
    with pytest.raises(DataError, match="of type list cannot be part of a key"):
        encode_key((["a"],))


def test_bytes_that_are_no_key_are_corruption():
    with pytest.raises(CorruptionError, match="is not a key"):
        decode_key(b"\xc1")


@given(st.binary(min_size=1).filter(lambda prefix: prefix.strip(b"\xff")), st.binary())
def test_after_a_prefix_comes_what_does_not_begin_with_it(prefix, rest):
    assert prefix + rest < after(prefix)
    assert not after(prefix).startswith(prefix)
