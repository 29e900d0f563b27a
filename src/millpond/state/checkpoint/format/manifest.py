"""The manifest of a shard: what its durable state consists of, in one small record.

A shard's segments mean nothing alone. The manifest says which segments there are, which version and attempt they make
up, and under which schemas. It is written last. State in memory is the manifest's state if lineage, version and token
are equal.
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
    """What the manifest records of one segment.

    `first_group` and `last_group` bound the key groups whose cells it holds, both included. `checksum` is the segment's
    own, so that another segment under the same id is not mistaken for it.
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
        lineage: random, set when the shard is new; identifies the shard to a host.
        version: the number of versions committed so far; 0 when it is new.
        token: names the attempt that committed this version.
        shard: its number, from 0.
        shards: how many shards the operator has.
        max_parallelism: how many key groups the operator has.
        watermark_ms: the event-time watermark under which this version was made, or -1.
        processing_ms: the processing time at which this version was made. It is -1 if there was none, and in manifests
            written before this field existed.
        key_schema: the key columns, as a serialized Arrow schema.
        states: the descriptors, encoded.
        segments: in the order in which they were written.
        base_versions: for each key group of the shard, the version of its newest base, or -1.
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
        """Return whether both describe the very same state."""
        return (self.lineage, self.version, self.token) == (other.lineage, other.version, other.token)

    def encode(self) -> bytes:
        """Encode the manifest, with its checksum."""
        return with_checksum(_MAGIC, msgspec.msgpack.encode(self))

    @staticmethod
    def decode(data: bytes, name: str) -> "Manifest":
        """Decode what `encode` returned. If it is not whole, the CorruptionError names the manifest."""
        body = checked_body(_MAGIC, data, name)
        try:
            return msgspec.msgpack.decode(body, type=Manifest)
        except DECODE_ERRORS as error:
            raise CorruptionError(f"{name} does not decode: {error}. Restore an earlier version.") from error


def check_restores(manifest: Manifest) -> None:
    """Reject a manifest that a restore would read differently, before its version is acknowledged.

    Raises:
        DataError: it says what would differ, or why it does not decode.
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
    """Return the manifest of a shard that holds nothing yet."""
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
