"""Heads: where a shard is born, what makes two of them the same state, and what is refused."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, OptionError
from millpond.state.checkpoint import Head, birth
from millpond.state.checkpoint.format.segment import sealed

KEY = pa.schema([("user", pa.string())])


def test_a_shard_is_born_without_bases_for_each_of_its_key_groups():
    head = birth("abc", 2, 5, 128, KEY)
    assert (head.version, head.token, head.watermark_ms, head.segments) == (0, "", -1, ())
    assert head.base_versions == (-1,) * len(head.key_groups)
    assert pa.ipc.read_schema(pa.py_buffer(head.key_schema)) == KEY


@pytest.mark.parametrize("shard", [-1, 5])
def test_a_shard_that_the_operator_does_not_have_is_refused(shard):
    with pytest.raises(OptionError, match=f"shard {shard} does not exist; the operator has 5"):
        birth("abc", shard, 5, 128, KEY)


def test_only_lineage_version_and_token_together_make_the_same_state():
    head = birth("abc", 0, 1, 128, KEY)
    assert head.stands_with(msgspec.structs.replace(head, watermark_ms=9))
    for other in ({"lineage": "abd"}, {"version": 1}, {"token": "zombie"}):
        assert not head.stands_with(msgspec.structs.replace(head, **other))


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=50, deadline=None)
def test_a_head_with_any_bit_flipped_is_refused_by_name(version, data):
    whole = msgspec.structs.replace(birth("abc", 0, 1, 8, KEY), version=version).encode()
    assert Head.decode(whole, "the head").version == version
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="the head of shard 0"):
        Head.decode(bytes(flipped), "the head of shard 0")


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"lineage": 1}), msgspec.msgpack.encode([1])])
def test_a_whole_head_that_says_something_else_is_refused_by_name(body):
    with pytest.raises(CorruptionError, match="the head of shard 0 does not decode"):
        Head.decode(sealed(b"MPHD", body), "the head of shard 0")


def test_a_segment_is_not_taken_for_a_head():
    with pytest.raises(CorruptionError, match="begins with b'MPSG', expected b'MPHD'"):
        Head.decode(sealed(b"MPSG", b"body"), "the head")
