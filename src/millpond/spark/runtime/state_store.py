"""One shard's durable state in Spark's state store: a manifest, and the segments that it names.

This module reads and writes for one batch. Spark keeps the versions, commits them with the task, and cleans up.
"""

from pyspark.sql.streaming.stateful_processor import MapState, ValueState

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.checkpoint import Commit, Manifest, SegmentRef
from millpond.state.checkpoint.format import seal as seals
from millpond.state.checkpoint.restoring import StoredSegments, check_segment, last_good


class ShardStore:
    """One shard's newest version in Spark's state store: a `CheckpointStorage`. Spark itself keeps the earlier ones.

    Args:
        manifest: the state that holds the manifest.
        segments: the state that holds the segments, by id.
        name: the shard and its query, for errors.
        seal: the seal of manifest and segments, if they have one.
    """

    def __init__(self, manifest: ValueState, segments: MapState, name: str, seal: seals.Seal | None = None) -> None:
        self._manifest = manifest
        self._segments = segments
        self._name = name
        self._seal = seal

    @property
    def name(self) -> str:
        """The shard and its query, for errors."""
        return self._name

    def versions(self) -> list[int]:
        """Return the newest version's number, if there is one."""
        manifest = self.manifest()
        return [] if manifest is None else [manifest.version]

    def manifest(self, version: int | None = None) -> Manifest | None:
        """Return the manifest; None if there is none, or if it is of another version than the given one."""
        # Spark logs a warning for each missing value that is read.
        if not self._manifest.exists():
            return None
        stored = self._manifest.get()
        name = f"the manifest of {self._name}"
        manifest = Manifest.decode(seals.opened(self._seal, bytes(stored[0]), seals.MANIFEST, name), name)
        return manifest if version in (None, manifest.version) else None

    def segment(self, ref: SegmentRef) -> bytes:
        """Return one segment. It is read by key, since the store's iterator would load hundreds at once."""
        stored = self._segments.getValue((ref.id,))
        if stored is None:
            raise CorruptionError(
                f"segment {ref.id}, written by version {ref.version}, state {ref.state!r} is missing. {last_good(ref)}"
            )
        name = f"segment {ref.id} of {self._name}, state {ref.state!r}"
        return seals.opened(self._seal, bytes(stored[0]), seals.segment(ref.id), name)

    def segments_of(self, manifest: Manifest) -> StoredSegments:
        """Return the segments of a manifest. Each is read on demand."""
        return StoredSegments(self, manifest)

    def is_whole(self) -> bool:
        """Whether the manifest and every segment that it names are present and undamaged, or nothing is stored."""
        try:
            manifest = self.manifest()
            if manifest is None:
                return not self._segments.exists()
            for ref in manifest.segments:
                check_segment(manifest, ref, self.segment(ref))
        except CorruptionError:
            return False
        return True

    def clear(self) -> None:
        """Remove manifest and segments."""
        self._manifest.clear()
        self._segments.clear()

    def put(self, commit: Commit) -> None:
        """Store a version: segments first, the manifest last.

        Raises:
            UnavailableError: Spark's state store could not take it.
        """
        try:
            for segment_id, data in commit.segments.items():
                sealed = seals.closed(self._seal, data, seals.segment(segment_id))
                self._segments.updateValue((segment_id,), (sealed,))
            for segment_id in commit.dropped:
                self._segments.removeKey((segment_id,))
            self._manifest.update((seals.closed(self._seal, commit.manifest.encode(), seals.MANIFEST),))
        except (EOFError, ConnectionError) as error:
            # On an error Spark closes the connection to its store without a reason.
            raise UnavailableError(
                f"{self._name}: Spark's state store broke off while it was given a new version; the executor's log "
                "says why. Most often a disk is full, that of spark.local.dir or that of the checkpoint. What was "
                "durable is as it was, and the batch runs again."
            ) from error
