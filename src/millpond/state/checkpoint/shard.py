"""A shard in memory, and its way from version to version.

On the data path this is the keyed state of one task: a backend, and the head that says which
durable version its contents are. Each commit writes one *delta* (the cells that the version
changed) and as many cells again of *bases* (whole key groups, in turn), so that a version costs
what it touches, and a restore reads about twice the state at most:

- every key group has a newest base, of some version; the deltas after that version complete it;
- bases go round the key groups in turn, so each gets a new one in time;
- a delta older than every base, and a base whose key groups all have a newer one, is dropped.

Bases of the committed version are prepared between versions (`prepare_bases`), in small steps that
a background thread may take while the stream is idle; what is still owed when the next version
begins is made up then, so the log cannot outgrow its bound.

Invariant: between versions, `head` describes exactly the backend's contents. `stand_at` is the only
way to begin, and it proves that, by going one version back if need be, or says that only a restore
will do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import CorruptionError
from millpond.state.backend import Cells, KeyedStateBackend
from millpond.state.checkpoint.head import Head, SegmentRef
from millpond.state.checkpoint.segment import CellCodec, checksum_of, decode_segment, encode_segments
from millpond.state.descriptor import StateDescriptor
from millpond.state.timers import TIMERS, Timers

BASE_STEP_ROWS = 50_000


@dataclass(frozen=True)
class Commit:
    """What one version has to put into durable storage, all of it or nothing.

    Attributes:
        head: of the new version.
        segments: new ones, by id.
        dropped: ids that the new version no longer needs.
    """

    head: Head
    segments: Mapping[int, bytes]
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class _PreparedBase:
    """Bases of a run of key groups, encoded, not yet in any head."""

    positions: range
    rows: int
    parts: tuple[tuple[str, pa.Table, bytes], ...]


class Shard:
    """The state of one shard at one version. Not thread-safe: its owner holds a lock around it."""

    def __init__(self, head: Head, backend: KeyedStateBackend) -> None:
        self.head = head
        self.backend = backend
        self._before: Head | None = None
        self.key_schema = pa.ipc.read_schema(pa.py_buffer(head.key_schema))
        self._descriptors: dict[str, StateDescriptor] = {}
        self._codecs: dict[str, CellCodec] = {}
        self._prepared: list[_PreparedBase] = []
        self._attached: list[_PreparedBase] = []
        self._timers: Timers | None = None

    @property
    def timers(self) -> Timers:
        """The shard's timers, declared at the first use."""
        if self._timers is None:
            self.declare(TIMERS)
            self._timers = Timers(self.backend, self.head.key_groups)
        return self._timers

    def rollback(self) -> None:
        """Drop every change since the last commit."""
        if self.backend.rollback():
            self._forget_queue()

    def _forget_queue(self) -> None:
        if self._timers is not None:
            self._timers.forget_queue()

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints of this shard."""
        if descriptor.name not in self._descriptors:
            self._descriptors[descriptor.name] = descriptor
            self._codecs[descriptor.name] = CellCodec(descriptor, self.key_schema)

    def restore(self, segments: Mapping[int, bytes]) -> None:
        """Load the head's version from its segments into the (empty) backend.

        A missing or damaged segment raises a CorruptionError that names it; the shard must then be
        thrown away.
        """
        self._forget_queue()
        for plain in self.head.states:
            self.declare(StateDescriptor.decode(plain))
        first_group = self.head.key_groups.start
        for ref in sorted(self.head.segments, key=lambda ref: (ref.version, not ref.base, ref.id)):
            name = f"segment {ref.id} of shard {self.head.shard}, version {self.head.version}, state {ref.state!r}"
            if ref.id not in segments:
                raise CorruptionError(
                    f"{name} is missing. The state part of the checkpoint was deleted or is incomplete: restore it, or "
                    "start the query with a new checkpoint folder."
                )
            table = decode_segment(segments[ref.id], name)
            if checksum_of(segments[ref.id]) != ref.checksum:
                raise CorruptionError(
                    f"{name} is whole, but another one than its head names: head and segments come from different "
                    "attempts or checkpoints. Restore an earlier version of the checkpoint."
                )
            cells = self._codecs[ref.state].cells(table)
            # A base speaks for the key groups it is the newest base of; a delta for those based before it.
            bases = self.head.base_versions
            wanted = [
                bases[group - first_group] == ref.version if ref.base else bases[group - first_group] < ref.version
                for group in range(ref.first_group, ref.last_group + 1)
            ]
            if not all(wanted):
                cells = _of_groups(cells, {ref.first_group + at for at, want in enumerate(wanted) if want})
            self.backend.load(self._descriptors[ref.state], cells)

    def stand_at(self, head: Head) -> bool:
        """Begin a version at exactly this head, if memory allows: as it is, or by undoing the last version.

        False means that only a restore will do. Bases still owed to the head are made up here.
        """
        self.rollback()
        if self.head.stands_with(head):
            self.backend.settle()
        elif self._before is not None and self._before.stands_with(head):
            self.backend.undo_commit()
            self._forget_queue()
            self.head, self._prepared = self._before, self._attached
        else:
            return False
        self._before, self._attached = None, []
        while self.prepare_bases():
            continue
        return True

    def prepare_bases(self) -> bool:
        """Encode the bases of the next few key groups, if any are owed; whether a step was taken.

        Only between versions: what is encoded is the committed version.
        """
        owed = sum(ref.rows for ref in self.head.segments if not ref.base and ref.version == self.head.version)
        owed -= sum(base.rows for base in self._prepared)
        first = self.head.next_base + sum(len(base.positions) for base in self._prepared)
        groups = self.head.key_groups
        if owed <= 0 or first >= self.head.next_base + len(groups):
            return False
        start = first % len(groups)
        taken: dict[str, list[Cells]] = {name: [] for name in self._descriptors}
        rows, stop = 0, start
        while stop < len(groups) and rows < min(owed, BASE_STEP_ROWS):
            for name, found in taken.items():
                cells = self.backend.cells(name, groups[stop])
                if len(cells):
                    found.append(cells)
                    rows += len(cells)
            stop += 1
        parts = chain.from_iterable(self._encoded(name, _concat(found)) for name, found in taken.items() if found)
        self._prepared.append(_PreparedBase(range(start, stop), rows, tuple(parts)))
        return True

    def commit(self, token: str, watermark_ms: int = -1) -> Commit:
        """End the version under the attempt's token. What is returned must be stored whole or not at all."""
        snapshot = self.backend.commit()
        try:
            return self._committed(snapshot.changes(), token, watermark_ms)
        except BaseException:
            self.backend.undo_commit()
            self._forget_queue()
            raise
        finally:
            snapshot.release()

    def _committed(self, changes: Iterable[tuple[str, Cells]], token: str, watermark_ms: int) -> Commit:
        version = self.head.version + 1
        refs: list[SegmentRef] = []
        segments: dict[int, bytes] = {}

        def add(state: str, part: pa.Table, data: bytes, *, base: bool) -> None:
            groups = pc.min_max(part["key_group"]).as_py()
            ref = SegmentRef(
                id=self.head.next_segment + len(refs),
                base=base,
                version=self.head.version if base else version,
                state=state,
                first_group=groups["min"],
                last_group=groups["max"],
                rows=part.num_rows,
                bytes=len(data),
                checksum=checksum_of(data),
            )
            refs.append(ref)
            segments[ref.id] = data

        base_versions = list(self.head.base_versions)
        for prepared in self._prepared:
            for state, part, data in prepared.parts:
                add(state, part, data, base=True)
            for position in prepared.positions:
                base_versions[position] = self.head.version
        for state, cells in changes:
            for name, part, data in self._encoded(state, cells):
                add(name, part, data, base=False)
        kept = [ref for ref in self.head.segments if self._needed(ref, base_versions)]
        dropped = tuple(ref.id for ref in self.head.segments if not self._needed(ref, base_versions))
        self._before = self.head
        self.head = msgspec.structs.replace(
            self.head,
            version=version,
            token=token,
            watermark_ms=watermark_ms,
            states=tuple(descriptor.encode() for descriptor in self._descriptors.values()),
            segments=(*kept, *refs),
            base_versions=tuple(base_versions),
            next_base=(self.head.next_base + sum(len(base.positions) for base in self._prepared)) % len(base_versions),
            next_segment=self.head.next_segment + len(refs),
        )
        self._prepared, self._attached = [], self._prepared
        return Commit(self.head, segments, dropped)

    def _encoded(self, state: str, cells: Cells) -> Iterable[tuple[str, pa.Table, bytes]]:
        for part, data in encode_segments(self._codecs[state].table(cells)):
            yield state, part, data

    def _needed(self, ref: SegmentRef, base_versions: list[int]) -> bool:
        """Whether any key group that the segment may speak of still rests on it."""
        if not ref.base:
            return ref.version > min(base_versions)
        first = self.head.key_groups.start
        return any(base_versions[group - first] <= ref.version for group in range(ref.first_group, ref.last_group + 1))


def _concat(parts: list[Cells]) -> Cells:
    if len(parts) == 1:
        return parts[0]
    return Cells(
        key_groups=[group for part in parts for group in part.key_groups],
        keys=[key for part in parts for key in part.keys],
        map_keys=None if parts[0].map_keys is None else [key for part in parts for key in part.map_keys or ()],
        values=[value for part in parts for value in part.values],
    )


def _of_groups(cells: Cells, wanted: set[int]) -> Cells:
    at = [position for position, group in enumerate(cells.key_groups) if group in wanted]
    return Cells(
        key_groups=[cells.key_groups[position] for position in at],
        keys=[cells.keys[position] for position in at],
        map_keys=None if cells.map_keys is None else [cells.map_keys[position] for position in at],
        values=[cells.values[position] for position in at],
    )
