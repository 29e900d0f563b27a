"""Versions of one shard in files, as small as can be: the tests of `FileStorage` put them and read them back."""

import pyarrow as pa

from millpond.state.checkpoint import FileStorage, new_manifest
from millpond.state.checkpoint.format.segment import with_checksum
from millpond.state.checkpoint.next_manifest import Base, Delta, next_commit
from millpond.state.checkpoint.segment_spool import Part
from tests.state.checkpoint.faulty_files import FaultyFiles

KEY = pa.schema([("user", pa.string())])
BIRTH = new_manifest("a lineage", 0, 1, 4, KEY)


def a_commit(manifest, text, *, version=None, based=(), attempt="attempt"):
    """A version with one delta and the bases of some key groups, whose segments hold no more than a text."""
    version = manifest.version + 1 if version is None else version

    def part(what, group):
        return Part.of("count", 1, group, group, with_checksum(b"MPSG", f"{text} {what} {group}".encode()))

    bases = [Base(version, range(at, at + 1), 1, (part("base", at),)) for at in based]
    deltas = [Delta(version, (part("delta", 0),))]
    token = f"{attempt}-{version}"
    return next_commit(
        manifest, version=version, token=token, watermark_ms=7, processing_ms=8, states=(), bases=bases, deltas=deltas
    )


def stored(storage, version=None):
    """A version's manifest and the bytes of every segment of it."""
    manifest = storage.manifest(version)
    return manifest, {ref.id: storage.segment(ref) for ref in manifest.segments}


def whole(*commits):
    """What `stored` gives for the last of these."""
    manifest, everything = (
        commits[-1].manifest,
        {at: data for commit in commits for at, data in commit.segments.items()},
    )
    return manifest, {ref.id: everything[ref.id] for ref in manifest.segments}


def on(disk, *, atomic=False, **options):
    files = FaultyFiles(disk, atomic=atomic)
    return files, FileStorage("folder", 0, filesystem=files.filesystem(), **options)


def reader(disk):
    return on(disk, read_only=True)[1]
