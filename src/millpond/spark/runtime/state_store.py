"""One shard's durable state in Spark's state store: a manifest, and the segments that it names.

Spark keeps versions, commits with the task, and cleans up; here is only what one batch reads and writes.
"""

from pyspark.sql.streaming.stateful_processor import MapState, ValueState

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.checkpoint import Commit, Manifest, SegmentRef
from millpond.state.checkpoint.format import seal as seals
from millpond.state.checkpoint.restoring import StoredSegments, check_segment, last_good


class ShardStore:
    """One shard's newest version in Spark's state store: a `CheckpointStorage`. Spark itself keeps the earlier ones.

    Args:
        manifest: where the manifest is.
        segments: where the segments are, by id.
        name: the shard and its query, for errors.
        seal: what manifest and segments are sealed with, if they are.
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
        """The one version there is, if any."""
        manifest = self.manifest()
        return [] if manifest is None else [manifest.version]

    def manifest(self, version: int | None = None) -> Manifest | None:
        """The manifest, or None where there never was one."""
        # Asked first: Spark warns in its log of every value that is read and not there.
        if not self._manifest.exists():
            return None
        stored = self._manifest.get()
        name = f"the manifest of {self._name}"
        manifest = Manifest.decode(seals.opened(self._seal, bytes(stored[0]), seals.MANIFEST, name), name)
        return manifest if version in (None, manifest.version) else None

    def segment(self, ref: SegmentRef) -> bytes:
        """One segment. They are read by key: the store's iterator would load hundreds at once."""
        stored = self._segments.getValue((ref.id,))
        if stored is None:
            raise CorruptionError(
                f"segment {ref.id}, written by version {ref.version}, state {ref.state!r} is missing. {last_good(ref)}"
            )
        name = f"segment {ref.id} of {self._name}, state {ref.state!r}"
        return seals.opened(self._seal, bytes(stored[0]), seals.segment(ref.id), name)

    def segments_of(self, manifest: Manifest) -> StoredSegments:
        """The segments of a manifest, each read when it is asked for."""
        return StoredSegments(self, manifest)

    def is_whole(self) -> bool:
        """Whether there is a manifest with every segment that it names, each as it was written; or nothing at all."""
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
        """Forget everything."""
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
            # Spark closes the connection to its store over an error, and keeps that to itself.
            raise UnavailableError(
                f"{self._name}: Spark's state store broke off while it was given a new version; the executor's log "
                "says why. Most often a disk is full, that of spark.local.dir or that of the checkpoint. What was "
                "durable is as it was, and the batch runs again."
            ) from error
