"""Where one shard's versions are kept, and what a version puts there.

There are two storages: files (`FileStorage`, for the harness and everything off Spark) and Spark's own state store.
Code that writes or restores a version knows no more than this interface.

Invariant: a version is stored whole or not at all. Its manifest is the commit point and is stored last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millpond.state.checkpoint.format.manifest import Manifest, SegmentRef


@dataclass(frozen=True)
class Commit:
    """What one version puts into durable storage, all of it or nothing.

    Attributes:
        manifest: of the new version.
        segments: the new ones, by id. Each is read on access: together they may not fit into memory.
        dropped: ids of segments that the new version no longer needs.
        parent: the manifest from which this version was made.
        common: the newest version that all shards of the operator have, which must be kept, or None. A shard whose
            versions are newer may still be asked for it, if another shard fails.
    """

    manifest: Manifest
    segments: Mapping[int, bytes]
    dropped: tuple[int, ...]
    parent: Manifest
    common: int | None = None


class CheckpointStorage(Protocol):
    """One shard's durable versions."""

    @property
    def name(self) -> str:
        """The shard and its place, for errors: `shard 3 in /data/checkpoints`."""

    def versions(self) -> list[int]:
        """Return the versions that can be asked for, ascending."""

    def manifest(self, version: int | None = None) -> Manifest | None:
        """Return the manifest of a version, by default the newest, or None. A CorruptionError names a damaged one."""

    def segment(self, ref: SegmentRef) -> bytes:
        """Return one segment, as it is stored. If it is missing, the CorruptionError names the segment and its file."""

    def put(self, commit: Commit) -> None:
        """Store a version whole. After an UnavailableError it does not count, and earlier versions are untouched."""
