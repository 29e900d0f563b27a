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

Where a restore changed the form of stored rows, because a state is declared otherwise now, or took
them from a savepoint, no segment has them as they are in memory. The next version is then all bases,
and drops every segment there was.

Bases leave out what has outlived its TTL by the time of their version, and the next version begins by
removing just that from live state: so what has expired goes as fast as bases go round, which is as fast
as state is written, and needs no index of when what expires.

Invariant: between versions, `head` describes exactly the backend's contents, but for their form where
that was changed. `stand_at` is the only way to begin, and it proves that, by going one version back
if need be, or says that only a restore will do.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.backend.cell_bytes import Pairs
from millpond.state.backend.expiry import alive, removals, without_times
from millpond.state.backend.protocols import ABSENT, Cells, KeyedStateBackend, Snapshot
from millpond.state.checkpoint.format.manifest import Head
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.checkpoint.next_manifest import (
    BASE_STEP_ROWS,
    Base,
    PairsOf,
    encode_base,
    encode_delta,
    next_commit,
)
from millpond.state.checkpoint.raw_expiry import living_pairs
from millpond.state.checkpoint.restoring import SegmentSource, StoredStates, load_segments
from millpond.state.checkpoint.savepoint import Savepoint
from millpond.state.checkpoint.segment_spool import SegmentSpool
from millpond.state.checkpoint.starting import load_savepoint
from millpond.state.checkpoint.storage.interface import Commit
from millpond.state.operator.timers import TIMERS, Timers
from millpond.state.types.descriptor import StateDescriptor


class _Prepared(NamedTuple):
    """A base, and what must be written to be rid of the expired cells it left out, by state."""

    base: Base
    expired: list[tuple[str, Cells]]


class Shard:
    """The state of one shard at one version. Not thread-safe: its owner holds a lock around it."""

    def __init__(self, head: Head, backend: KeyedStateBackend, timers: StateDescriptor = TIMERS) -> None:
        self.head = head
        self.backend = backend
        self._timers_state = timers
        self._before: Head | None = None
        # False once a commit could be neither finished nor undone: the contents are of no version.
        self._intact = True
        # False from `stand_at` to the end of the version: only then is there anything to roll back.
        self._ended = False
        # Whether the contents, and those of the version before, are in no segment as they are in memory.
        self._unwritten = False
        self._unwritten_before = False
        self.key_schema = pa.ipc.read_schema(pa.py_buffer(head.key_schema))
        self._descriptors: dict[str, StateDescriptor] = {}
        self._codecs: dict[str, CellCodec] = {}
        self._prepared: list[_Prepared] = []
        self._attached: list[_Prepared] = []
        # Where the segments of the next version wait.
        self._spool = SegmentSpool()
        self._timers: Timers | None = None

    @property
    def timers(self) -> Timers:
        """The shard's timers, declared at the first use."""
        if self._timers is None:
            self.declare(self._timers_state)
            self._timers = Timers(self.backend, self.head.key_groups, self._timers_state)
        return self._timers

    @property
    def declared(self) -> tuple[StateDescriptor, ...]:
        """Every state that its checkpoints know of."""
        return tuple(self._descriptors.values())

    def rollback(self) -> None:
        """Drop every change since the last commit."""
        if self.backend.rollback():
            self._forget_queue()

    def _forget_queue(self) -> None:
        if self._timers is not None:
            self._timers.forget_queue()

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints of this shard. Refused where it is known as another, even if empty."""
        known = self._descriptors.get(descriptor.name)
        if known is None:
            self._descriptors[descriptor.name] = descriptor
            self._codecs[descriptor.name] = CellCodec(descriptor, self.key_schema)
        elif known != descriptor:
            raise OptionError(
                f"state {descriptor.name!r} is known to its checkpoint as [{known.describe()}] and was declared as "
                f"[{descriptor.describe()}]. Declare it as it was, or give the new state another name."
            )

    def holds(self, declared: Iterable[StateDescriptor]) -> bool:
        """Whether its contents are in the form of these declarations: each is known as it is, or not known at all."""
        return all(self._descriptors.get(state.name, state) == state for state in declared)

    def delete_state(self, name: str) -> None:
        """Remove every key's cells of a state, in the open version, if there is such a state."""
        if name in self._descriptors:
            for key_group in self.head.key_groups:
                cells = self.backend.cells(name, key_group)
                if len(cells):
                    self.backend.write(name, replace(cells, values=[ABSENT] * len(cells)))

    def restore(
        self, segments: SegmentSource, declared: Iterable[StateDescriptor] = (), now_ms: int | None = None
    ) -> None:
        """Load the head's version from its segments into the (empty) backend, in the form of the declarations.

        Segments are asked for one by one, in the order of `in_order`, and let go of once they are loaded. States that
        nobody declares are kept as they are stored. `now_ms` is the time at which lives begin where a TTL was added.
        An OptionError shows both declarations of a state whose change is refused, before anything is loaded. A
        missing or damaged segment raises a CorruptionError that names it; the shard must then be thrown away.
        """
        self._forget_queue()
        states = StoredStates.of(self.head.states, declared, self.head.key_schema, now_ms)
        for descriptor in states.descriptors:
            self.declare(descriptor)
        load_segments(self.head, segments, states, self.backend)
        self._unwritten = states.migrated

    def start_from(
        self, savepoint: Savepoint, declared: Iterable[StateDescriptor] = (), now_ms: int | None = None
    ) -> None:
        """Load what belongs to this (newborn) shard from a savepoint, in the form of the declarations.

        Refusals are those of `restore`, and a CorruptionError names a file of the savepoint that is not as it was
        written.
        """
        self._forget_queue()
        for descriptor in load_savepoint(savepoint, self.head, self.backend, declared, now_ms):
            self.declare(descriptor)
        self._unwritten = True

    def stand_at(self, head: Head) -> bool:
        """Begin a version at exactly this head, if memory allows: as it is, or by undoing the last version.

        False means that only a restore will do. Bases still owed to the head are made up here.
        """
        if not self._intact:
            return False
        if not self._ended:
            self.rollback()
        if self.head.stands_with(head):
            self.backend.settle()
        elif self._before is not None and self._before.stands_with(head):
            self.backend.undo_commit()
            self._forget_queue()
            self.head, self._prepared = self._before, self._attached
            self._unwritten = self._unwritten_before
        else:
            return False
        self._before, self._attached, self._unwritten_before = None, [], False
        self._ended = False
        while self.prepare_bases():
            continue
        for name, expired in chain.from_iterable(prepared.expired for prepared in self._prepared):
            self.backend.write(name, expired)
        return True

    def prepare_bases(self) -> bool:
        """Encode the bases of the next few key groups, if any are owed; whether a step was taken.

        Only between versions: what is encoded is the committed version.
        """
        if self._unwritten:
            return False
        owed = sum(ref.rows for ref in self.head.segments if not ref.base and ref.version == self.head.version)
        owed -= sum(prepared.base.rows for prepared in self._prepared)
        first = self.head.next_base + sum(len(prepared.base.positions) for prepared in self._prepared)
        groups = self.head.key_groups
        if owed <= 0 or first >= self.head.next_base + len(groups):
            return False
        start = first % len(groups)
        expired: list[tuple[str, Cells]] = []
        base = encode_base(
            groups,
            range(start, len(groups)),
            min(owed, BASE_STEP_ROWS),
            self.head.version,
            self._codecs,
            partial(self._living, expired),
            partial(self._living_raw, expired),
            spool=self._spool,
        )
        self._prepared.append(_Prepared(base, expired))
        return True

    def living_cells(self, name: str, key_group: int) -> Cells:
        """A state's cells in a key group as users know them: without what has expired, and without TTL's times."""
        cells, descriptor = self.backend.cells(name, key_group), self._descriptors.get(name)
        if descriptor is None or descriptor.ttl is None:
            return cells
        return without_times(alive(cells, descriptor.ttl, self.backend.context.now_ms), descriptor.kind)

    def _living(self, left_out: list[tuple[str, Cells]], name: str, key_group: int) -> Cells:
        """A state's cells in a key group without what has expired, whose removal is noted."""
        cells, ttl = self.backend.cells(name, key_group), self._descriptors[name].ttl
        if ttl is None:
            return cells
        now_ms = self.backend.context.now_ms
        expired = removals(cells, ttl, now_ms)
        if not len(expired):
            return cells
        left_out.append((name, expired))
        return alive(cells, ttl, now_ms)

    def _living_raw(self, left_out: list[tuple[str, Cells]], name: str, key_group: int) -> Pairs | None:
        """The same as bytes, where the backend has them."""
        copy: PairsOf | None = getattr(self.backend, "raw_cells", None)
        pairs, descriptor = None if copy is None else copy(name, key_group), self._descriptors[name]
        if pairs is None or descriptor.ttl is None:
            return pairs
        living, gone = living_pairs(descriptor, descriptor.ttl, key_group, pairs, self.backend.context.now_ms)
        if len(gone):
            left_out.append((name, gone))
        return living

    def commit(self, token: str, watermark_ms: int = -1, flushed: Callable[[], object] = lambda: None) -> Commit:
        """End the version under the attempt's token. What is returned must be stored whole or not at all.

        `flushed` is called when the backend has ended its version, caches flushed, and before the delta is encoded.
        """
        snapshot = self.backend.commit()
        flushed()
        try:
            return self._committed(snapshot, token, watermark_ms)
        except BaseException:
            self._intact = False
            self.backend.undo_commit()
            self._intact = True
            self._forget_queue()
            raise
        finally:
            snapshot.release()

    def _committed(self, snapshot: Snapshot, token: str, watermark_ms: int) -> Commit:
        version = self.head.version + 1
        if self._unwritten:
            bases, deltas = list(self._all_bases(snapshot, version)), []
        else:
            bases, deltas = (
                [prepared.base for prepared in self._prepared],
                [encode_delta(version, snapshot.changes(), self._codecs, self._spool)],
            )
        commit = next_commit(
            self.head,
            version=version,
            token=token,
            watermark_ms=watermark_ms,
            processing_ms=self.backend.context.now_ms,
            states=(descriptor.encode() for descriptor in self._descriptors.values()),
            bases=bases,
            deltas=deltas,
        )
        self._before, self.head = self.head, commit.head
        self._unwritten_before, self._unwritten = self._unwritten, False
        self._prepared, self._attached = [], self._prepared
        self._spool = SegmentSpool()
        self._ended = True
        return commit

    def _all_bases(self, snapshot: Snapshot, version: int) -> Iterator[Base]:
        groups, start = self.head.key_groups, 0
        while start < len(groups):
            positions = range(start, len(groups))
            raw: PairsOf | None = getattr(snapshot, "raw_cells", None)
            base = encode_base(
                groups, positions, BASE_STEP_ROWS, version, self._codecs, snapshot.cells, raw, spool=self._spool
            )
            start = base.positions.stop
            yield base
