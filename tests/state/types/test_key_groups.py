"""Key groups and shards: every group has one shard, and a shard's range is exactly its groups."""

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.state.types.key_groups import key_group_of, key_groups_of, key_hash, max_parallelism, shard_of


@given(st.integers(1, 300), st.integers(0, 700))
@settings(max_examples=100, deadline=None)
def test_key_groups_of_is_the_inverse_of_shard_of(shards, more):
    parallelism = shards + more
    by_group = [shard_of(group, shards, parallelism) for group in range(parallelism)]
    assert by_group == sorted(by_group)
    for shard in range(shards):
        assert list(key_groups_of(shard, shards, parallelism)) == [
            group for group, found in enumerate(by_group) if found == shard
        ]


@given(st.integers(1, 21_845))
@settings(max_examples=100, deadline=None)
def test_the_maximum_parallelism_leaves_room_to_grow_and_no_shard_empty(shards):
    found = max_parallelism(shards)
    assert found >= 128
    assert 2 * found >= 3 * shards
    assert found & (found - 1) == 0
    assert found == 128 or found < 3 * shards, "the smallest such power of two"


@pytest.mark.parametrize("shards", [0, 21_846])
def test_an_operator_without_shards_or_with_more_than_key_groups_allow_is_refused(shards):
    with pytest.raises(OptionError, match=f"shards is {shards}"):
        max_parallelism(shards)


@given(st.binary(max_size=20), st.integers(1, 5000))
@settings(max_examples=100, deadline=None)
def test_a_key_group_lies_within_the_parallelism(key, parallelism):
    assert 0 <= key_group_of((key,), [pa.binary()], parallelism) < parallelism


def test_nulls_leave_the_hash_as_it_is():
    kinds = [pa.string(), pa.int64()]
    assert key_hash((None, None), kinds) == 42
    assert key_hash((None, 7), kinds) == key_hash((7,), kinds[1:])
    assert key_hash(("a", None), kinds) == key_hash(("a",), kinds[:1])


def test_every_nan_and_both_zeros_have_one_hash():
    for kind in (pa.float32(), pa.float64()):
        assert key_hash((math.nan,), [kind]) == key_hash((-math.nan,), [kind])
        assert key_hash((0.0,), [kind]) == key_hash((-0.0,), [kind])


def test_long_decimals_are_hashed_to_their_last_digit():
    kind = pa.decimal128(38, 10)
    longest = decimal.Decimal("1234567890123456789012345678.0123456789")
    neighbour = decimal.Decimal("1234567890123456789012345678.0123456788")
    assert key_hash((longest,), [kind]) != key_hash((neighbour,), [kind])


def test_what_is_not_atomic_has_no_key_group():
    with pytest.raises(OptionError, match="list"):
        key_hash(([1],), [pa.list_(pa.int64())])


def test_a_time_is_hashed_as_the_moment_it_is():
    moment = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=-5)))
    kind = [pa.timestamp("us", tz="UTC")]
    assert key_hash((moment,), kind) == key_hash((elsewhere,), kind)
