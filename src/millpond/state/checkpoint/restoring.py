"""From a head's segments back to cells: which of a segment's rows count, and proof that it is the right one.

Segments are applied from the oldest version to the newest, a version's bases before its deltas. A
base speaks for the key groups it is the newest base of, a delta for those based before it.

Invariant: rows are taken from a segment only after its checksum was compared with the head's.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import CorruptionError, OptionError
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint.format.manifest import Head, SegmentRef
from millpond.state.checkpoint.format.raw import is_raw, raw_groups
from millpond.state.checkpoint.format.segment import CellCodec, checksum_of, decode_segment, verify_segment
from millpond.state.checkpoint.storage.interface import CheckpointStorage
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.schema_change import migration


@dataclass(frozen=True)
class Version:
    """One version of a shard in memory, still encoded: its head, and every segment by id, each found whole."""

    head: Head
    segments: Mapping[int, bytes | memoryview]


@dataclass(frozen=True)
class Restored:
    """What a restore brought back.

    Attributes:
        head: of the version that the backend now holds.
        descriptors: of every state, as declared, or as stored where nobody declared it.
        passed_over: what is wrong with each newer version that was damaged; empty unless falling back was allowed.
    """

    head: Head
    descriptors: tuple[StateDescriptor, ...]
    passed_over: tuple[str, ...] = ()


def segment_name(head: Head, ref: SegmentRef) -> str:
    """What errors call a segment."""
    return f"segment {ref.id} of shard {head.shard}, version {head.version}, state {ref.state!r}"


def last_good(ref: SegmentRef) -> str:
    """Which version does without a segment that is damaged, for errors."""
    return f"The last version that does not need it is {ref.version - 1}."


def in_order(head: Head) -> list[SegmentRef]:
    """The head's segments in the order in which they are applied."""
    return sorted(head.segments, key=lambda ref: (ref.version, not ref.base, ref.id))


def check_segment(head: Head, ref: SegmentRef, data: bytes | memoryview) -> None:
    """Prove that the bytes are the segment that the head names; a CorruptionError says what is wrong with it."""
    name = segment_name(head, ref)
    verify_segment(data, name)
    if checksum_of(data) != ref.checksum:
        raise CorruptionError(
            f"{name} is whole, but another one than its head names: head and segments come from different "
            "attempts or checkpoints. Restore an earlier version of the checkpoint."
        )


def read_segment(head: Head, ref: SegmentRef, data: bytes | memoryview) -> pa.Table:
    """The rows of a segment that count under this head. A CorruptionError names the segment when it is not the one."""
    check_segment(head, ref, data)
    table = decode_segment(data, segment_name(head, ref))
    first, bases = head.key_groups.start, head.base_versions
    wanted = [
        group
        for group in range(ref.first_group, ref.last_group + 1)
        if (bases[group - first] == ref.version if ref.base else bases[group - first] < ref.version)
    ]
    if len(wanted) > ref.last_group - ref.first_group:
        return table
    return table.filter(pc.is_in(table["key_group"], pa.array(wanted, type=pa.int32())))


def read_version(storage: CheckpointStorage, version: int) -> Version:
    """A version, with every segment proven to be the one that its head names before anything is made of any."""
    head = storage.head(version)
    if head is None:
        raise OptionError(f"{storage.name} has no version {version}; it has {storage.versions()}.")
    segments = {}
    for ref in head.segments:
        try:
            segments[ref.id] = storage.segment(ref)
            check_segment(head, ref, segments[ref.id])
        except CorruptionError as error:
            raise CorruptionError(f"{storage.name}, {segment_name(head, ref)}: {error}") from error
    return Version(head, segments)


def restore(
    storage: CheckpointStorage,
    backend: KeyedStateBackend,
    declared: Iterable[StateDescriptor] = (),
    *,
    version: int | None = None,
    fall_back: bool = False,
    now_ms: int | None = None,
) -> Restored | None:
    """Load a version, the newest unless another is asked for, into an empty backend; None where there is none.

    Every segment is read and proven, and every state's schema compared, before the backend is touched.
    Raises a CorruptionError that names shard, version, segment, file and the last good version; with
    `fall_back` that version is restored instead, and the result says what was passed over. Raises an
    OptionError that shows both schemas where a declared state cannot hold the stored one. `now_ms` is the
    time at which the lives of values begin where a TTL was added.
    """
    versions = storage.versions()
    if version is None and not versions:
        return None
    found, passed_over = _whole_version(storage, versions[-1] if version is None else version, fall_back=fall_back)
    states = StoredStates.of(found.head.states, declared, found.head.key_schema, now_ms)
    for ref in in_order(found.head):
        states.load(backend, ref.state, read_segment(found.head, ref, found.segments[ref.id]))
    return Restored(found.head, states.descriptors, passed_over)


def _whole_version(storage: CheckpointStorage, version: int, *, fall_back: bool) -> tuple[Version, tuple[str, ...]]:
    try:
        return read_version(storage, version), ()
    except CorruptionError as error:
        damage = str(error)
        good, passed_over = _last_good(storage, version)
        if good is None:
            raise CorruptionError(f"{damage} No earlier version in {storage.name} is whole.") from error
        if not fall_back:
            raise CorruptionError(
                f"{damage} The last good version in {storage.name} is {good.head.version}; ask for it, or restore with "
                "fall_back=True, to go on from there. What later versions held is then lost."
            ) from error
        return good, (damage, *passed_over)


def _last_good(storage: CheckpointStorage, before: int) -> tuple[Version | None, tuple[str, ...]]:
    """The newest whole version older than `before`, and what is wrong with those in between."""
    damaged: list[str] = []
    for version in reversed(storage.versions()):
        if version < before:
            try:
                return read_version(storage, version), tuple(damaged)
            except CorruptionError as error:
                damaged.append(str(error))
    return None, tuple(damaged)


class StoredStates:
    """How the stored rows of every state become cells of the states as they are declared now."""

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
        """From what a head or manifest says. An OptionError shows both schemas where a state cannot be read."""
        stored = [StateDescriptor.decode(each) for each in plain]
        return StoredStates(stored, declared, pa.ipc.read_schema(pa.py_buffer(key_schema)), now_ms)

    @property
    def migrated(self) -> bool:
        """Whether the rows of any state change their form on their way."""
        return any(migrate is not None for migrate in self._migrations.values())

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """Of every state: as declared, or as stored where nobody declared it."""
        return tuple(self._by_name.values())

    def load(self, backend: KeyedStateBackend, state: str, table: pa.Table) -> None:
        """Rows of one state into a backend."""
        migrate = self._migrations[state]
        if migrate is not None:
            table = migrate(self._stored_codecs[state].plain(table))
        load_table(backend, self._by_name[state], self._codecs[state], table)


def load_table(backend: KeyedStateBackend, descriptor: StateDescriptor, codec: CellCodec, table: pa.Table) -> None:
    """A segment's rows into a backend: bytes as they are, where it takes such."""
    load_raw = getattr(backend, "load_raw", None)
    if load_raw is None or not is_raw(table):
        backend.load(descriptor, codec.cells(table))
        return
    for key_group, pairs in raw_groups(table):
        load_raw(descriptor, key_group, pairs)


def newest_rows(version: Version, descriptor: StateDescriptor, key_groups: range | None = None) -> pa.Table:
    """One state's cells as of a version: of each key, or map entry, the newest row, unless it was deleted.

    Of all key groups of the shard, or of some, so that a large state can be read piece by piece.
    """
    head = version.head
    wanted = key_groups or head.key_groups
    codec = CellCodec(descriptor, pa.ipc.read_schema(pa.py_buffer(head.key_schema)))
    tables = [codec.schema.empty_table()]
    newest: dict[object, int] = {}
    rows = 0
    for ref in in_order(head):
        if ref.state == descriptor.name and ref.first_group < wanted.stop and ref.last_group >= wanted.start:
            table = read_segment(head, ref, version.segments[ref.id])
            if wanted != head.key_groups:
                group = table["key_group"]
                table = table.filter(pc.and_(pc.greater_equal(group, wanted.start), pc.less(group, wanted.stop)))
            table = codec.plain(table)
            newest.update(zip(codec.cell_keys(table), range(rows, rows + table.num_rows), strict=True))
            rows += table.num_rows
            tables.append(table)
    found = pa.concat_tables(tables).take(pa.array(newest.values(), type=pa.int64()))
    return found.filter(pc.invert(found["deleted"])).drop_columns(["deleted"])
