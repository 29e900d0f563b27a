"""Manifests: where a shard is born, what makes two of them the same state, and what is refused."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError, OptionError
from millpond.state.checkpoint import Manifest, new_manifest
from millpond.state.checkpoint.format.manifest import check_restores
from millpond.state.checkpoint.format.segment import with_checksum

KEY = pa.schema([("user", pa.string())])


def test_a_shard_is_born_without_bases_for_each_of_its_key_groups():
    manifest = new_manifest("abc", 2, 5, 128, KEY)
    assert (manifest.version, manifest.token, manifest.watermark_ms, manifest.segments) == (0, "", -1, ())
    assert manifest.base_versions == (-1,) * len(manifest.key_groups)
    assert pa.ipc.read_schema(pa.py_buffer(manifest.key_schema)) == KEY


@pytest.mark.parametrize("shard", [-1, 5])
def test_a_shard_that_the_operator_does_not_have_is_refused(shard):
    with pytest.raises(OptionError, match=f"shard {shard} does not exist; the operator has 5"):
        new_manifest("abc", shard, 5, 128, KEY)


def test_only_lineage_version_and_token_together_make_the_same_state():
    manifest = new_manifest("abc", 0, 1, 128, KEY)
    assert manifest.is_same_version_as(msgspec.structs.replace(manifest, watermark_ms=9))
    for other in ({"lineage": "abd"}, {"version": 1}, {"token": "zombie"}):
        assert not manifest.is_same_version_as(msgspec.structs.replace(manifest, **other))


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=50, deadline=None)
def test_a_manifest_with_any_bit_flipped_is_refused_by_name(version, data):
    whole = msgspec.structs.replace(new_manifest("abc", 0, 1, 8, KEY), version=version).encode()
    assert Manifest.decode(whole, "the manifest").version == version
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="the manifest of shard 0"):
        Manifest.decode(bytes(flipped), "the manifest of shard 0")


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"lineage": 1}), msgspec.msgpack.encode([1])])
def test_a_whole_manifest_that_says_something_else_is_refused_by_name(body):
    with pytest.raises(CorruptionError, match="the manifest of shard 0 does not decode"):
        Manifest.decode(with_checksum(b"MPHD", body), "the manifest of shard 0")


def test_a_segment_is_not_taken_for_a_manifest():
    with pytest.raises(CorruptionError, match="begins with b'MPSG', expected b'MPHD'"):
        Manifest.decode(with_checksum(b"MPSG", b"body"), "the manifest")


@pytest.mark.parametrize(
    "wrong",
    [
        {"processing_ms": 1 << 64},
        {"processing_ms": 1.5},
        {"watermark_ms": None},
        {
            "states": (
                {"name": 5, "kind": "value", "value_schema": KEY.serialize().to_pybytes(), "map_key_schema": None},
            )
        },
    ],
)
def test_a_manifest_that_would_not_come_back_is_refused(wrong):
    manifest = new_manifest("lineage", 0, 1, 8, KEY)
    check_restores(manifest)
    with pytest.raises(DataError, match="version 0 of shard 0 could not be restored"):
        check_restores(msgspec.structs.replace(manifest, **wrong))
