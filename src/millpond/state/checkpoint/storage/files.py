"""A shard's versions as files: on a local disk, HDFS, S3, GCS or Azure, through pyarrow's filesystems.

    LOCATION/shard-00003/writers/…    one empty file per writer, its lease
                        /segments/…   each written once, never changed
                        /heads/…      one manifest per version, written after its segments
                        /marks/…      one empty file per acknowledged version, written after its manifest

Nothing is renamed, and no name is used twice: each contains the writer's token and the number of the attempt. A name
also contains the length and checksum of the bytes, so a truncated file is recognized by its size.

A version exists if its manifest is whole or has a mark. A truncated manifest without a mark was never acknowledged: a
crash interrupted it, so the version does not exist, and is skipped. A manifest that is truncated or missing and has a
mark was whole once. That is damage, and asking for the version raises an error with the file's name. Three properties
of marks make this safe:

- A mark is empty, so it exists or not, and is never torn.
- A mark is deleted, durably, before its manifest.
- Marks are listed before manifests, so a reader that sees a mark also sees its manifest.

A mark without a manifest does not count once a higher writer has stored a version: that writer may have deleted the
manifest while the manifest's own writer was about to write the mark.

Two writers, one of which wrongly believes itself alone (a *zombie*), cannot damage each other:

1. A writer begins with a *lease* of an epoch one above all that it sees. Epoch and token order all writers.
2. It looks for a higher lease before it stores a manifest, and again afterwards. If it finds one, it reports that the
   version does not count, and never deletes anything again.
3. The newest version is the highest version of the highest writer that has stored any. The earlier ones are found from
   parent to parent: a manifest names the one that it was made from. Manifests off that chain belong to writers that
   were superseded.

A new writer takes its lease before it reads manifests. So either the old writer's second look finds the lease, or its
manifest was there before the lease and the new writer found it: an acknowledged version is never lost. The file system
must show a file to all once it is written, as local disks, HDFS, S3, GCS and Azure do.

Deletion keeps the newest `retain` versions of the chain, and those down to the newest that all shards of the operator
have (`Commit.common`): else shards that fail in turn would be left with no version in common. Only files of this
shard's lineage, by this writer or lower ones, are ever deleted: first manifests, then, after another look for leases,
the segments that no remaining manifest names. A writer whose lease precedes that look stops the deletion. One whose
lease comes later does not see the deleted manifests. So a writer finds every segment of the version it chose, whichever
that is.
"""

import re
import secrets
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import xxhash

from millpond.errors import CorruptionError, MillpondError, OptionError, UnavailableError
from millpond.state.checkpoint.format import seal as seals
from millpond.state.checkpoint.format.manifest import Manifest, SegmentRef
from millpond.state.checkpoint.format.segment import checksum_of, verify_segment
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.checkpoint.storage.interface import Commit

_WRITTEN_AT_ONCE = 8
"""Segments of a version that are written at the same time."""

_LEASE = re.compile(r"(?P<epoch>\d{8})-(?P<token>\w+)")
_MANIFEST = re.compile(
    r"(?P<version>\d{12})-(?P<identity>[0-9a-f]{16})-(?P<parent>[0-9a-f]{16})"
    r"-(?P<lineage>[0-9a-f]{16})-(?P<bytes>\d+)-(?P<epoch>\d{8})-(?P<token>\w+)-(?P<attempt>\d+)\.(head|mark)"
)
_SEGMENT = re.compile(
    r"(?P<id>\d{12})-(?P<checksum>[0-9a-f]{16})-(?P<lineage>[0-9a-f]{16})-(?P<bytes>\d+)"
    r"-(?P<epoch>\d{8})-(?P<token>\w+)-(?P<attempt>\d+)\.segment"
)


class _Writer(NamedTuple):
    """The writer of a file. Of two writers the greater one wins."""

    epoch: int
    token: str


def _writer(match: re.Match[str]) -> _Writer:
    return _Writer(int(match["epoch"]), match["token"])


class _ManifestFile(NamedTuple):
    """One manifest, by what its name or its mark's name says. `counts` if it is whole or has a mark."""

    writer: _Writer
    version: int
    attempt: int
    identity: str
    parent: str
    lineage: str
    name: str
    counts: bool


class _SegmentFile(NamedTuple):
    id: int
    checksum: int
    bytes: int
    lineage: str
    writer: _Writer
    name: str
    whole: bool


class FileStorage:
    """One shard's versions in a folder. Not thread-safe: one `put` at a time.

    Args:
        location: a path, a URI (`file:///…`, `hdfs://…`, `s3://…`, `gs://…`, `abfs://…`), or a path in `filesystem`.
        shard: the number of the shard.
        filesystem: used instead of the one that the location's scheme names.
        retain: how many versions are kept; more while a version that all shards have is older.
        writer: names this writer; random unless given.
        read_only: leave no trace. Otherwise the first use, even a read, takes the shard over from every earlier
            writer, whose next version will not count.
        seal: the key to seal everything with, 16 to 64 random bytes; None for checksums alone.

    >>> import tempfile
    >>> storage = FileStorage(tempfile.mkdtemp(), shard=0)
    >>> storage.versions(), storage.manifest()
    ([], None)
    """

    def __init__(
        self,
        location: str,
        shard: int,
        *,
        filesystem: pa.fs.FileSystem | None = None,
        retain: int = 3,
        writer: str | None = None,
        read_only: bool = False,
        seal: seals.Seal | bytes | None = None,
    ) -> None:
        if retain < 1:
            raise OptionError(f"retain is {retain}; at least 1 version must be kept.")
        if writer is not None and not re.fullmatch(r"\w+", writer):
            raise OptionError(
                f"writer is {writer!r}; it goes into file names: expected letters, digits and underscores."
            )
        folder = Folder(location, filesystem)
        self._folder = folder.within(f"shard-{shard:05d}")
        self.name = f"shard {shard} in {folder.location}"
        """The shard and its place, for errors."""
        self._retain = retain
        self._token = writer or secrets.token_hex(8)
        self._read_only = read_only
        self._seal = seals.Seal.of(seal)
        self._writer: _Writer | None = None
        self._lineage = ""
        self._attempts = 0
        self._segments: dict[tuple[int, int, int], str] = {}

    def versions(self) -> list[int]:
        """Return the versions that can be asked for, ascending: the newest and those that it was made from."""
        self._lease()
        return [manifest.version for manifest in self._chain(self._manifests())][::-1]

    def manifest(self, version: int | None = None) -> Manifest | None:
        """Return the manifest of a version, by default the newest; None if there is none."""
        self._lease()
        chain = self._chain(self._manifests())
        for found in chain if version is None else [manifest for manifest in chain if manifest.version == version]:
            return self._decoded(found.name)
        return None

    def _decoded(self, name: str) -> Manifest:
        what = f"manifest {self._folder.path(name)}"
        return Manifest.decode(seals.opened(self._seal, self._read(name), seals.MANIFEST, what), what)

    def segment(self, ref: SegmentRef) -> bytes:
        """Return one segment. All files with its id, checksum and length hold the same bytes."""
        wanted = (ref.id, ref.checksum, ref.bytes + (0 if self._seal is None else seals.SEAL_BYTES))
        if wanted not in self._segments:
            files = self._segment_files()
            self._segments = {(file.id, file.checksum, file.bytes): file.name for file in files if file.whole}
        if wanted not in self._segments:
            raise CorruptionError(
                f"no file {self._folder.path('segments')}/{ref.id:012d}-{ref.checksum:016x}-* of {wanted[2]} bytes is "
                "there. Restore the file, an earlier version, or a savepoint."
            )
        name = self._segments[wanted]
        what = f"file {self._folder.path(name)}"
        data = seals.opened(self._seal, self._read(name), seals.segment(ref.id), what)
        verify_segment(data, what)
        return data

    def put(self, commit: Commit) -> None:
        """Store a version: segments, then the manifest. Then delete what no retained version needs."""
        self._lease()
        self._attempts += 1
        manifest, what = commit.manifest, f"{self.name}: version {commit.manifest.version} was not stored"
        try:
            self._refuse_another_lineage(manifest)
            encoded = seals.closed(self._seal, manifest.encode(), seals.MANIFEST)
            manifest_path = self._manifest_path(commit, len(encoded))
            self._write_segments(commit)
            self._refuse_if_passed(what)
            self._folder.write(manifest_path, encoded)
            self._folder.sync("heads")
            self._refuse_if_passed(what)
            self._folder.write(_mark_of(manifest_path), b"")
            self._folder.sync("marks")
        except OSError as error:
            raise UnavailableError(f"{what}: {error}. Earlier versions are untouched; mend that and go on.") from error
        self._segments = {}
        try:
            self._delete_superfluous(manifest, commit.common)
        except (OSError, MillpondError) as error:
            warnings.warn(
                f"{self.name}: version {manifest.version} is stored, but old files could not be deleted: {error}. "
                "They are tried again with the next version.",
                stacklevel=2,
            )

    def _write_segments(self, commit: Commit) -> None:
        """Write several segments at a time: a disk's sync or a store's answer takes longer than the bytes do."""
        with ThreadPoolExecutor(_WRITTEN_AT_ONCE, "millpond-segments") as threads:
            writing: deque[Future[None]] = deque()
            # Read one by one: together they may not fit into memory.
            for segment_id, data in commit.segments.items():
                stored = seals.closed(self._seal, data, seals.segment(segment_id))
                path = self._segment_path(commit.manifest, segment_id, checksum_of(data), len(stored))
                writing.append(threads.submit(self._folder.write, path, stored))
                if len(writing) == _WRITTEN_AT_ONCE:
                    writing.popleft().result()
            for written in writing:
                written.result()
        self._folder.sync("segments")

    def _lease(self) -> None:
        """Become the writer, before anything is read."""
        if self._read_only or self._writer is not None:
            return
        try:
            self._folder.make(("writers", "segments", "heads", "marks"))
            known = [*self._leases(), *(manifest.writer for manifest in self._manifests())]
            writer = _Writer(max((writer.epoch for writer in known), default=0) + 1, self._token)
            self._folder.write(f"writers/{writer.epoch:08d}-{writer.token}", b"")
            self._folder.sync("writers")
        except OSError as error:
            raise UnavailableError(f"{self.name} gave no lease for writing: {error}.") from error
        self._writer = writer

    def _refuse_if_passed(self, what: str) -> None:
        higher = [lease for lease in self._leases() if lease > self._mine]
        if higher:
            raise UnavailableError(
                f"{what}: writer {max(higher).token} has taken over from {self._mine.token}, which restored earlier. "
                "Stop this one, or restore and go on from what is stored."
            )

    def _refuse_another_lineage(self, manifest: Manifest) -> None:
        if self._lineage == manifest.lineage:
            return
        others = {found.lineage for found in self._manifests()} - {_hashed(manifest.lineage)}
        if others:
            raise OptionError(
                f"{self.name} holds another shard's versions, of lineage {sorted(others)}, not of "
                f"{manifest.lineage!r}. Restore from this folder before writing to it, or choose an empty one."
            )
        self._lineage = manifest.lineage

    @property
    def _mine(self) -> _Writer:
        if self._writer is None:
            raise OptionError(f"{self.name} was opened with read_only=True. Open it without, to write.")
        return self._writer

    def _delete_superfluous(self, manifest: Manifest, common: int | None) -> None:
        """Delete all but the newest versions, and `common` if it is older, with those between: they lead to it.

        This is the most dangerous code here: each condition prevents a loss.
        """
        manifests = [found for found in self._manifests() if found.lineage == _hashed(manifest.lineage)]
        chain = self._chain(manifests)
        if not chain or chain[0].identity != _identity(manifest):
            return
        to_common = [at for at, found in enumerate(chain, 1) if found.version == common]
        kept = {found.name for found in chain[: max([self._retain, *to_common])]}
        superfluous = [found for found in manifests if found.name not in kept and found.writer <= self._mine]
        for found in superfluous:
            self._folder.delete(_mark_of(found.name))
        if superfluous:
            self._folder.sync("marks")
        for found in superfluous:
            self._folder.delete(found.name)
        named = {(ref.id, ref.checksum) for name in kept for ref in self._decoded(name).segments}
        unnamed = [
            found.name
            for found in self._segment_files()
            if found.lineage == _hashed(manifest.lineage)
            and found.writer <= self._mine
            and (found.id, found.checksum) not in named
        ]
        self._refuse_if_passed(f"{self.name}: nothing was deleted")
        for name in unnamed:
            self._folder.delete(name)
        for lease in self._leases():
            if lease < self._mine:
                self._folder.delete(f"writers/{lease.epoch:08d}-{lease.token}")

    def _chain(self, manifests: list[_ManifestFile]) -> list[_ManifestFile]:
        """Return the newest manifest, its parent, and so on."""
        there = [manifest for manifest in manifests if manifest.counts]
        by_identity = {manifest.identity: manifest for manifest in sorted(there)}
        chain = []
        at = max(there, default=None)
        while at is not None:
            chain.append(at)
            at = by_identity.get(at.parent)
        return chain

    def _leases(self) -> list[_Writer]:
        return [_writer(match) for _, _, match in self._files("writers", _LEASE)]

    def _manifests(self) -> list[_ManifestFile]:
        # Marks first: the manifest of a mark that is listed was written before the mark. See the module.
        marked = {_manifest_of(name): match for name, _, match in self._files("marks", _MANIFEST)}
        files = {name: (size, match) for name, size, match in self._files("heads", _MANIFEST)}
        meanings = marked | {name: match for name, (_, match) in files.items()}
        whole = {name for name, (size, match) in files.items() if size == int(match["bytes"])}
        highest = max((_writer(files[name][1]) for name in whole), default=None)

        def counts(name: str, writer: _Writer) -> bool:
            if name in files or highest is None:
                return name in whole or name in marked
            return writer >= highest

        return [
            _ManifestFile(
                _writer(match),
                int(match["version"]),
                int(match["attempt"]),
                match["identity"],
                match["parent"],
                match["lineage"],
                name,
                counts(name, _writer(match)),
            )
            for name, match in meanings.items()
        ]

    def _segment_files(self) -> Iterator[_SegmentFile]:
        for name, size, match in self._files("segments", _SEGMENT):
            yield _SegmentFile(
                int(match["id"]),
                int(match["checksum"], 16),
                int(match["bytes"]),
                match["lineage"],
                _writer(match),
                name,
                size == int(match["bytes"]),
            )

    def _manifest_path(self, commit: Commit, length: int) -> str:
        manifest = commit.manifest
        return (
            f"heads/{manifest.version:012d}-{_identity(manifest)}-{_identity(commit.parent)}"
            f"-{_hashed(manifest.lineage)}-{length}-{self._author}.head"
        )

    def _segment_path(self, manifest: Manifest, segment_id: int, checksum: int, length: int) -> str:
        return f"segments/{segment_id:012d}-{checksum:016x}-{_hashed(manifest.lineage)}-{length}-{self._author}.segment"

    @property
    def _author(self) -> str:
        return f"{self._mine.epoch:08d}-{self._mine.token}-{self._attempts}"

    def _files(self, folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, int, re.Match[str]]]:
        """Yield name, size and parsed name of each file that has a name of this pattern."""
        try:
            sizes = self._folder.sizes(folder)
        except OSError as error:
            raise UnavailableError(f"{self.name}: its {folder} cannot be listed: {error}.") from error
        for name, size in sizes.items():
            match = pattern.fullmatch(name)
            if match:
                yield f"{folder}/{name}", size, match

    def _read(self, name: str) -> bytes:
        path = self._folder.path(name)
        try:
            return self._folder.read(name)
        except FileNotFoundError as error:
            raise CorruptionError(f"file {path} is missing. Restore it, an earlier version, or a savepoint.") from error
        except OSError as error:
            raise UnavailableError(f"file {path} cannot be read: {error}.") from error


def _mark_of(manifest_name: str) -> str:
    return manifest_name.replace("heads/", "marks/").removesuffix(".head") + ".mark"


def _manifest_of(mark_name: str) -> str:
    return mark_name.replace("marks/", "heads/").removesuffix(".mark") + ".head"


def _identity(manifest: Manifest) -> str:
    """Return what identifies a version among all, those of the same number included."""
    return _hashed(f"{manifest.lineage}/{manifest.version}/{manifest.token}")


def _hashed(text: str) -> str:
    return f"{xxhash.xxh64_intdigest(text.encode()):016x}"
