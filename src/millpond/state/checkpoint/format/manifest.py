"""The manifest of a shard: what its durable state consists of, in one small record.

A shard's segments mean nothing alone. The manifest says which of them there are, which version and
attempt they make up, and under which schemas; it is written last. Whoever holds a manifest can say
whether the state it has in memory is that state: lineage, version and token must be equal.
"""

from typing import Any

import msgspec
import pyarrow as pa

from millpond.errors import CorruptionError, DataError, OptionError
from millpond.state.checkpoint.format.segment import DECODE_ERRORS, checked_body, with_checksum
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.key_groups import key_groups_of

_MAGIC = b"MPHD"


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """One segment, by what the manifest must know of it.

    `first_group` and `last_group` bound the key groups whose cells it holds, both included. `checksum`
    is the segment's own, so that another segment under the same id is not taken for it.
    """

    id: int
    base: bool
    version: int
    state: str
    first_group: int
    last_group: int
    rows: int
    bytes: int
    checksum: int


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of one shard after one version.

    Attributes:
        lineage: random, given when it is new; how a host knows the shard.
        version: the number of versions committed so far; 0 when it is new.
        token: names the attempt that committed this version.
        shard: its number, from 0.
        shards: how many shards the operator has.
        max_parallelism: how many key groups the operator has.
        watermark_ms: the event-time watermark this version was made under, or -1.
        processing_ms: the processing time this version was made at; -1 where there was none, and in a manifest that was
            written before manifests had it.
        key_schema: the key columns, as a serialized Arrow schema.
        states: the descriptors, encoded.
        segments: in the order they were written.
        base_versions: per key group of the shard, the version of its newest base, or -1.
        next_base: the position of the key group whose base comes next.
        next_segment: the id of the next segment.
    """

    lineage: str
    shard: int
    shards: int
    max_parallelism: int
    key_schema: bytes
    version: int = 0
    token: str = ""
    watermark_ms: int = -1
    states: tuple[dict[str, Any], ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    base_versions: tuple[int, ...] = ()
    next_base: int = 0
    next_segment: int = 0
    processing_ms: int = -1

    @property
    def key_groups(self) -> range:
        """The key groups of this shard."""
        return key_groups_of(self.shard, self.shards, self.max_parallelism)

    def is_same_version_as(self, other: "Manifest") -> bool:
        """Whether both describe the very same state."""
        return (self.lineage, self.version, self.token) == (other.lineage, other.version, other.token)

    def encode(self) -> bytes:
        """The manifest as sealed bytes."""
        return with_checksum(_MAGIC, msgspec.msgpack.encode(self))

    @staticmethod
    def decode(data: bytes, name: str) -> "Manifest":
        """The inverse of `encode`; a CorruptionError names the manifest when it is not whole."""
        body = checked_body(_MAGIC, data, name)
        try:
            return msgspec.msgpack.decode(body, type=Manifest)
        except DECODE_ERRORS as error:
            raise CorruptionError(f"{name} does not decode: {error}. Restore an earlier version.") from error


def check_restores(manifest: Manifest) -> None:
    """Refuse a manifest that a restore would not read as it is meant: before its version is acknowledged.

    Raises:
        DataError: it says what would come back, or why nothing would.
    """
    what = f"version {manifest.version} of shard {manifest.shard}"
    mend = "The version was not stored. Report this as a bug of Millpond."
    try:
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=Manifest)
        states = tuple(StateDescriptor.decode(plain).encode() for plain in back.states)
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{what} could not be restored: its manifest does not decode: {error}. {mend}") from error
    changed = [name for name in Manifest.__struct_fields__ if getattr(back, name) != getattr(manifest, name)]
    if changed or states != manifest.states:
        raise DataError(f"{what} could not be restored: its {changed or 'states'} would come back as others. {mend}")


def new_manifest(lineage: str, shard: int, shards: int, max_parallelism: int, key_schema: pa.Schema) -> Manifest:
    """The manifest of a shard that holds nothing yet."""
    if not 0 <= shard < shards:
        raise OptionError(f"shard {shard} does not exist; the operator has {shards}, numbered from 0.")
    groups = key_groups_of(shard, shards, max_parallelism)
    return Manifest(
        lineage=lineage,
        shard=shard,
        shards=shards,
        max_parallelism=max_parallelism,
        key_schema=key_schema.serialize().to_pybytes(),
        base_versions=(-1,) * len(groups),
    )
