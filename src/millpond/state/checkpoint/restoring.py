"""Turns a manifest's segments back into cells: which rows of a segment count, and proof that it is the right one.

Segments are applied from the oldest version to the newest, a version's bases before its deltas. A base counts for the
key groups whose newest base it is, a delta for the key groups whose base is older.

Invariant: rows are taken from a segment only after its checksum was compared with the manifest's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import CorruptionError, OptionError
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint.format.manifest import Manifest, SegmentRef
from millpond.state.checkpoint.format.raw import is_raw, raw_groups
from millpond.state.checkpoint.format.segment import (
    MAX_SEGMENT_BYTES,
    CellCodec,
    checksum_of,
    decode_segment,
    grew,
    of_key_groups,
    together,
    verify_segment,
    whole_lists,
)
from millpond.state.checkpoint.living_rows import living_rows
from millpond.state.checkpoint.segment_spool import Segments
from millpond.state.checkpoint.storage.interface import CheckpointStorage
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.schema_change import migration

_PIECE_BYTES = 8 << 20
"""Bytes of a state's segments that are decoded at a time. A segment is read again for each piece that may need it."""


class SegmentSource(Protocol):
    """Where a manifest's segments come from: a dictionary by id, a storage, or a connection.

    They are asked for one by one, each once, in the order of `in_order`.
    """

    def get(self, segment_id: int, /) -> bytes | memoryview | None:
        """Return a segment; None if it is missing."""


@dataclass(frozen=True)
class Version:
    """One version of a shard, still encoded: its manifest, and its segments by id, which may be read on access."""

    manifest: Manifest
    segments: Mapping[int, bytes | memoryview]


class StoredSegments(Segments):
    """The segments of a stored version, read from its storage."""

    def __init__(self, storage: CheckpointStorage, manifest: Manifest) -> None:
        super().__init__({ref.id: partial(storage.segment, ref) for ref in manifest.segments})


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    Attributes:
        manifest: of the version that the backend now holds.
        descriptors: of every state: as declared, or as stored if it was not declared.
    """

    manifest: Manifest
    descriptors: tuple[StateDescriptor, ...]


def segment_name(manifest: Manifest, ref: SegmentRef) -> str:
    """Return the name of a segment for errors."""
    return f"segment {ref.id} of shard {manifest.shard}, version {manifest.version}, state {ref.state!r}"


def last_good(ref: SegmentRef) -> str:
    """Return the last version that does not need a damaged segment, as a sentence for errors."""
    return f"The last version that does not need it is {ref.version - 1}."


def in_order(manifest: Manifest) -> list[SegmentRef]:
    """Return the manifest's segments in the order in which they are applied."""
    return sorted(manifest.segments, key=lambda ref: (ref.version, not ref.base, ref.id))


def check_segment(manifest: Manifest, ref: SegmentRef, data: bytes | memoryview) -> None:
    """Prove that the bytes are the segment that the manifest names. A CorruptionError says what is wrong."""
    name = segment_name(manifest, ref)
    verify_segment(data, name)
    if checksum_of(data) != ref.checksum:
        raise CorruptionError(
            f"{name} is whole, but another one than its manifest names: manifest and segments come from different "
            "attempts or checkpoints. Restore an earlier version of the checkpoint."
        )


def read_segment(manifest: Manifest, ref: SegmentRef, data: bytes | memoryview) -> pa.Table:
    """Return the rows of a segment that count under this manifest. A CorruptionError names a wrong segment."""
    check_segment(manifest, ref, data)
    table = decode_segment(data, segment_name(manifest, ref))
    first, bases = manifest.key_groups.start, manifest.base_versions
    wanted = [
        group
        for group in range(ref.first_group, ref.last_group + 1)
        if (bases[group - first] == ref.version if ref.base else bases[group - first] < ref.version)
    ]
    if len(wanted) > ref.last_group - ref.first_group:
        return table
    return table.filter(pc.is_in(table["key_group"], pa.array(wanted, type=pa.int32())))


def read_version(storage: CheckpointStorage, version: int) -> Version:
    """Read a version, and prove that each segment is the one its manifest names before anything is made of any.

    Segments are read one by one, and again on access.
    """
    manifest = storage.manifest(version)
    if manifest is None:
        raise OptionError(f"{storage.name} has no version {version}; it has {storage.versions()}.")
    segments = StoredSegments(storage, manifest)
    for ref in manifest.segments:
        try:
            check_segment(manifest, ref, segments[ref.id])
        except CorruptionError as error:
            raise CorruptionError(f"{storage.name}, {segment_name(manifest, ref)}: {error}") from error
    return Version(manifest, segments)


def load_version(
    manifest: Manifest,
    segments: SegmentSource,
    backend: KeyedStateBackend,
    declared: Iterable[StateDescriptor],
    now_ms: int | None,
) -> tuple[StateDescriptor, ...]:
    """Load a manifest's version into an empty backend, segment by segment. Return every state there is then.

    Every state's schema is compared before the backend is changed. An OptionError shows both declarations if a change
    is rejected. A CorruptionError names a missing or damaged segment. The backend must then be discarded.
    """
    states = StoredStates.of(manifest.states, declared, manifest.key_schema, now_ms)
    for ref in in_order(manifest):
        data = segments.get(ref.id)
        if data is None:
            raise CorruptionError(
                f"{segment_name(manifest, ref)} is missing. The state part of the checkpoint was deleted or is "
                "incomplete: restore it, or start the query with a new checkpoint folder."
            )
        try:
            table = read_segment(manifest, ref, data)
        except CorruptionError as error:
            raise CorruptionError(f"{error} {last_good(ref)}") from error
        states.load(backend, ref.state, table)
    return states.descriptors


def restore(
    storage: CheckpointStorage,
    backend: KeyedStateBackend,
    declared: Iterable[StateDescriptor] = (),
    *,
    version: int | None = None,
    now_ms: int | None = None,
) -> Restored | None:
    """Load a version, by default the newest, into an empty backend. Return None if there is none.

    Every segment is read and proven, and every state's schema compared, before the backend is changed. Segments are
    read one by one, and a second time to be loaded, so they need not fit into memory together. Raises a CorruptionError
    that names shard, version, segment, file and the last good version. Raises an OptionError that shows both schemas if
    a declared state cannot hold the stored one. `now_ms` is the time at which the lives of values begin if a TTL was
    added.
    """
    versions = storage.versions()
    if version is None and not versions:
        return None
    asked = versions[-1] if version is None else version
    try:
        found = read_version(storage, asked)
    except CorruptionError as error:
        raise CorruptionError(f"{error} {_last_good_version(storage, asked)}") from error
    return Restored(found.manifest, load_version(found.manifest, found.segments, backend, declared, now_ms))


def _last_good_version(storage: CheckpointStorage, before: int) -> str:
    """Name the newest whole version older than `before`, as a sentence for errors."""
    for version in reversed(storage.versions()):
        if version < before:
            try:
                read_version(storage, version)
            except CorruptionError:
                continue
            return (
                f"The last good version in {storage.name} is {version}; ask for it, or restore the operator with "
                "fall_back=True, to go on from there. What later versions held is then lost."
            )
    return f"No earlier version in {storage.name} is whole."


class StoredStates:
    """Turns the stored rows of every state into cells of the states as they are declared now."""

    def __init__(
        self,
        stored: Iterable[StateDescriptor],
        declared: Iterable[StateDescriptor],
        key_schema: pa.Schema,
        now_ms: int | None,
    ) -> None:
        by_name = {descriptor.name: descriptor for descriptor in declared}
        self._migrations: dict[str, Callable[[pa.Table], pa.Table] | None] = {}
        self._codecs: dict[str, CellCodec] = {}
        self._stored_codecs: dict[str, CellCodec] = {}
        for old in stored:
            self._stored_codecs[old.name] = CellCodec(old, key_schema)
            new = by_name.setdefault(old.name, old)
            self._migrations[old.name] = migration(old, new, now_ms)
            self._codecs[old.name] = CellCodec(new, key_schema)
        self._by_name = by_name

    @staticmethod
    def of(
        plain: Iterable[dict[str, Any]], declared: Iterable[StateDescriptor], key_schema: bytes, now_ms: int | None
    ) -> "StoredStates":
        """Create it from a manifest's fields. An OptionError shows both schemas if a state cannot be read."""
        stored = [StateDescriptor.decode(each) for each in plain]
        return StoredStates(stored, declared, pa.ipc.read_schema(pa.py_buffer(key_schema)), now_ms)

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """The descriptor of every state: as declared, or as stored if it was not declared."""
        return tuple(self._by_name.values())

    def load(self, backend: KeyedStateBackend, state: str, table: pa.Table) -> None:
        """Load rows of one state into a backend, a segment's size at a time: objects need more memory than bytes."""
        migrate = self._migrations[state]
        for part in parts_of(table):
            rows = part if migrate is None else migrate(self._stored_codecs[state].plain(part))
            load_table(backend, self._by_name[state], self._codecs[state], rows)


def load_table(backend: KeyedStateBackend, descriptor: StateDescriptor, codec: CellCodec, table: pa.Table) -> None:
    """Load a segment's rows into a backend. Bytes are passed on as they are; a backend that keeps none decodes them."""
    if not is_raw(table):
        backend.load(descriptor, codec.cells(table))
        return
    for key_group, pairs in raw_groups(table):
        backend.load_raw(descriptor, key_group, pairs)


def parts_of(table: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of a table, each of about the size of a segment."""
    each = max(1, table.num_rows * MAX_SEGMENT_BYTES // max(1, table.nbytes))
    for first in range(0, table.num_rows, each):
        yield table.slice(first, each)


def key_group_pieces(manifest: Manifest, state: str) -> Iterator[range]:
    """Yield the key groups of a shard in runs, each of which holds a bounded part of a state."""
    groups = manifest.key_groups
    stored = sum(ref.bytes for ref in manifest.segments if ref.state == state)
    each = max(1, len(groups) * _PIECE_BYTES // max(1, stored))
    for first in range(groups.start, groups.stop, each):
        yield range(first, min(first + each, groups.stop))


def row_pieces(version: Version, descriptor: StateDescriptor) -> Iterator[pa.Table]:
    """Yield every row of one state as of a version, some key groups at a time: see `newest_rows`."""
    for groups in key_group_pieces(version.manifest, descriptor.name):
        yield newest_rows(version, descriptor, groups)


def newest_rows(version: Version, descriptor: StateDescriptor, key_groups: range | None = None) -> pa.Table:
    """Return one state's cells as of a version: the newest row of each cell, unless it is deleted or expired.

    By default of all key groups of the shard, else of some, so that a large state can be read piece by piece.
    """
    manifest = version.manifest
    wanted = key_groups or manifest.key_groups
    codec = CellCodec(descriptor, pa.ipc.read_schema(pa.py_buffer(manifest.key_schema)))
    tables = [codec.schema.empty_table()]
    newest: dict[object, int] = {}
    numbers: dict[object, int] = {}
    rows = 0
    for ref in in_order(manifest):
        if ref.state == descriptor.name and ref.first_group < wanted.stop and ref.last_group >= wanted.start:
            table = read_segment(manifest, ref, version.segments[ref.id])
            if wanted != manifest.key_groups:
                table = of_key_groups(table, wanted)
            table = codec.plain(table)
            cells = list(codec.cell_keys(table))
            newest.update(zip(cells, range(rows, rows + table.num_rows), strict=True))
            if descriptor.kind is StateKind.LIST:
                numbered = [numbers.setdefault(cell, len(numbers)) for cell in cells]
                table = table.append_column("cell", pa.array(numbered, type=pa.int64()))
            rows += table.num_rows
            tables.append(table)
    found = together(tables)
    if grew(found):
        found = whole_lists(found)
    else:
        found = found.select(codec.schema.names).take(pa.array(newest.values(), type=pa.int64()))
    found = found.filter(pc.invert(found["deleted"])).drop_columns(["deleted"])
    return living_rows(found, descriptor, manifest.processing_ms)
