"""Where one shard's versions are kept, and what a version puts there.

Two storages exist: files (`FileStorage`, for the harness and everything off Spark) and Spark's own
state store. What writes a version and what restores one knows no more than this interface.

Invariant: a version is there whole or not at all. Its manifest is the commit point and is stored last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millpond.state.checkpoint.format.manifest import Manifest, SegmentRef


@dataclass(frozen=True)
class Commit:
    """What one version has to put into durable storage, all of it or nothing.

    Attributes:
        manifest: of the new version.
        segments: new ones, by id. Each is read when it is asked for: together they may be more than memory holds.
        dropped: ids that the new version no longer needs.
        parent: the manifest that this version was made from.
    """

    manifest: Manifest
    segments: Mapping[int, bytes]
    dropped: tuple[int, ...]
    parent: Manifest


class CheckpointStorage(Protocol):
    """One shard's durable versions."""

    @property
    def name(self) -> str:
        """The shard and its place, for errors: `shard 3 in /data/checkpoints`."""
        ...

    def versions(self) -> list[int]:
        """The versions that can be asked for, ascending."""
        ...

    def manifest(self, version: int | None = None) -> Manifest | None:
        """The manifest of a version, or of the newest; None where there is none. Damage is a CorruptionError."""
        ...

    def segment(self, ref: SegmentRef) -> bytes:
        """One segment, as it is stored. A CorruptionError names the segment and its file when it is missing."""
        ...

    def put(self, commit: Commit) -> None:
        """Store a version whole. An UnavailableError says that it does not count; earlier versions are untouched."""
        ...
