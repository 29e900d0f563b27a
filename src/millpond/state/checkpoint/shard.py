"""A shard in memory, and its way from version to version.

On the data path this is the keyed state of one task: a backend, and the manifest that says which
durable version its contents are. What a version consists of is `millpond.state.checkpoint.writer`'s business.

Bases of the committed version are prepared between versions (`prepare_bases`), in small steps that
a background thread may take while the stream is idle; what is still owed when the next version
begins is made up then, so the log cannot outgrow its bound.

Where a restore changed the form of stored rows, because a state is declared otherwise now, or took
them from a savepoint, no segment has them as they are in memory. The next version is then all bases,
and drops every segment there was.

Each version begins by removing from live state what the bases just prepared left out: so what has expired
goes as fast as bases go round, which is as fast as state is written, and needs no index of when what expires.

Invariant: between versions, `head` describes exactly the backend's contents, but for their form where
that was changed. `begin_at` is the only way to begin, and it proves that, by going one version back
if need be, or says that only a restore will do.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.backend.expiry import alive, without_times
from millpond.state.backend.protocols import ABSENT, Cells, KeyedStateBackend, Snapshot
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.owed_bases import owed_rows
from millpond.state.checkpoint.restoring import SegmentSource, StoredStates, load_segments
from millpond.state.checkpoint.savepoint import Savepoint
from millpond.state.checkpoint.starting import load_savepoint
from millpond.state.checkpoint.storage.interface import Commit
from millpond.state.checkpoint.writer import CheckpointWriter, Round
from millpond.state.operator.timers import TIMERS, Timers
from millpond.state.types.descriptor import StateDescriptor


class Shard:
    """The state of one shard at one version. Not thread-safe: its owner holds a lock around it."""

    def __init__(self, manifest: Manifest, backend: KeyedStateBackend, timers: StateDescriptor = TIMERS) -> None:
        self.manifest = manifest
        self.backend = backend
        self._timers_state = timers
        self._before: Manifest | None = None
        # False once a commit could be neither finished nor undone: the contents are of no version.
        self._intact = True
        # False from `begin_at` to the end of the version: only then is there anything to roll back.
        self._ended = False
        # Whether the contents, and those of the version before, are in no segment as they are in memory.
        self._unwritten = False
        self._unwritten_before = False
        self.key_schema = pa.ipc.read_schema(pa.py_buffer(manifest.key_schema))
        self._writer = CheckpointWriter(self.key_schema)
        self._round = self._next_round()
        self._round_before = self._round
        self._timers: Timers | None = None

    @property
    def timers(self) -> Timers:
        """The shard's timers, declared at the first use."""
        if self._timers is None:
            self.declare(self._timers_state)
            self._timers = Timers(self.backend, self.manifest.key_groups, self._timers_state)
        return self._timers

    @property
    def declared(self) -> tuple[StateDescriptor, ...]:
        """Every state that its checkpoints know of."""
        return tuple(self._writer.states.values())

    def rollback(self) -> None:
        """Drop every change since the last commit."""
        if self.backend.rollback():
            self._forget_queue()

    def _forget_queue(self) -> None:
        if self._timers is not None:
            self._timers.forget_queue()

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints of this shard. Refused where it is known as another, even if empty."""
        known = self._writer.states.get(descriptor.name)
        if known is None:
            self._writer.declare(descriptor)
        elif known != descriptor:
            raise OptionError(
                f"state {descriptor.name!r} is known to its checkpoint as [{known.describe()}] and was declared as "
                f"[{descriptor.describe()}]. Declare it as it was, or give the new state another name."
            )

    def holds(self, declared: Iterable[StateDescriptor]) -> bool:
        """Whether its contents are in the form of these declarations: each is known as it is, or not known at all."""
        return all(self._writer.states.get(state.name, state) == state for state in declared)

    def delete_state(self, name: str) -> None:
        """Remove every key's cells of a state, in the open version, if there is such a state."""
        if name in self._writer.states:
            self._forget_queue()
            for key_group in self.manifest.key_groups:
                cells = self.backend.cells(name, key_group)
                if len(cells):
                    self.backend.write(name, replace(cells, values=[ABSENT] * len(cells)))

    def restore(
        self, segments: SegmentSource, declared: Iterable[StateDescriptor] = (), now_ms: int | None = None
    ) -> None:
        """Load the manifest's version from its segments into the (empty) backend, in the form of the declarations.

        Segments are asked for one by one, in the order of `in_order`, and let go of once they are loaded. States that
        nobody declares are kept as they are stored. `now_ms` is the time at which lives begin where a TTL was added.
        An OptionError shows both declarations of a state whose change is refused, before anything is loaded. A
        missing or damaged segment raises a CorruptionError that names it; the shard must then be thrown away.
        """
        self._forget_queue()
        states = StoredStates.of(self.manifest.states, declared, self.manifest.key_schema, now_ms)
        for descriptor in states.descriptors:
            self.declare(descriptor)
        load_segments(self.manifest, segments, states, self.backend)
        self._unwritten = states.migrated

    def start_from(
        self, savepoint: Savepoint, declared: Iterable[StateDescriptor] = (), now_ms: int | None = None
    ) -> None:
        """Load what belongs to this (newborn) shard from a savepoint, in the form of the declarations.

        Refusals are those of `restore`, and a CorruptionError names a file of the savepoint that is not as it was
        written.
        """
        self._forget_queue()
        for descriptor in load_savepoint(savepoint, self.manifest, self.backend, declared, now_ms):
            self.declare(descriptor)
        self._unwritten = True

    def begin_at(self, manifest: Manifest) -> bool:
        """Begin a version at exactly this manifest, if memory allows: as it is, or by undoing the last version.

        False means that only a restore will do. Bases still owed to the manifest are made up here.
        """
        if not self._intact:
            return False
        if not self._ended:
            self.rollback()
        if self.manifest.is_same_version_as(manifest):
            self.backend.acknowledge()
        elif self._before is not None and self._before.is_same_version_as(manifest):
            self.backend.undo_commit()
            self._forget_queue()
            self.manifest, self._round = self._before, self._round_before
            self._unwritten = self._unwritten_before
        else:
            return False
        self._before, self._round_before, self._unwritten_before = None, self._round, False
        self._ended = False
        while self.prepare_bases():
            continue
        for name, key_group in self._round.outlived:
            self._writer.remove_expired(self.backend, name, key_group)
        return True

    def _next_round(self) -> Round:
        """The bases that are owed to the manifest."""
        return Round(self.manifest, self.manifest.version, owed_rows(self.manifest))

    def prepare_bases(self) -> bool:
        """Encode the bases of the next few key groups, if any are owed; whether a step was taken.

        Only between versions: what is encoded is the committed version.
        """
        if self._unwritten:
            return False
        return self._writer.add_bases(self._round, self.backend, self.backend.context.now_ms)

    def living_cells(self, name: str, key_group: int) -> Cells:
        """A state's cells in a key group as users know them: without what has expired, and without TTL's times."""
        cells, descriptor = self.backend.cells(name, key_group), self._writer.states.get(name)
        if descriptor is None or descriptor.ttl is None:
            return cells
        return without_times(alive(cells, descriptor.ttl, self.backend.context.now_ms), descriptor.kind)

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
        version = self.manifest.version + 1
        if self._unwritten:
            everything = Round(self.manifest, version, None)
            while self._writer.add_bases(everything, snapshot, None):
                continue
            bases, deltas = everything.bases, []
        else:
            bases, deltas = self._round.bases, [self._writer.delta(version, snapshot, self._round.spool)]
        commit = self._writer.commit(
            self.manifest,
            version=version,
            token=token,
            watermark_ms=watermark_ms,
            processing_ms=self.backend.context.now_ms,
            bases=bases,
            deltas=deltas,
        )
        self._before, self.manifest = self.manifest, commit.manifest
        self._unwritten_before, self._unwritten = self._unwritten, False
        self._round, self._round_before = self._next_round(), self._round
        self._ended = True
        return commit
