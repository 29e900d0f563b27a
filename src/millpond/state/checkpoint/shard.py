"""A shard in memory, and its way from version to version: the one engine of checkpoints, on Spark and off it.

A version ends with `end_version`, and `encode` turns it into segments and a manifest. Then it is stored, or it is not.
Two kinds of owners handle a version that was not stored differently:

- A state host on Spark goes back. `commit` ends and encodes a version in one step. The next `begin_at` says which
  version was stored, and undoes the last one if it was not.
- `Checkpointer`, off Spark, goes on. Versions are encoded and stored in another thread while records flow. A version
  that failed is passed to `lose`, and the next one writes its changes.

`millpond.state.checkpoint.writer` determines what a version consists of.

A host prepares the bases that its last version owes between two versions (`prepare_bases`). It takes small steps, which
a background thread may run while the stream is idle. Bases that are still outstanding when the next version begins are
written then, so the log cannot outgrow its bound. Without prepared bases, `encode` takes them from the version's
snapshot.

A version is full (all bases and no delta) if some change in memory is in no segment in the same form. That is so if the
state came from a savepoint, if it is declared otherwise than it is stored, or if it belongs to a lost version that
could not be carried. It is also full if it changed most of each state, since that takes fewer bytes than a delta and as
many bytes of bases. A full version drops all earlier segments.

Bases leave out expired values, which live state still has. `remove_expired` removes them there. So expired cells are
removed as fast as bases go round, and no index of expiration times is needed.

Invariant: every change since `manifest` is in the open version, in a version that ended and is neither stored nor lost,
or in `_unstored`.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.backend.expiry import alive, without_times
from millpond.state.backend.protocols import ABSENT, Cells, KeyedStateBackend
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.next_manifest import Encode, at_once, next_commit
from millpond.state.checkpoint.owed_bases import Written, owed_rows, rather_full
from millpond.state.checkpoint.pending import PendingCheckpoint
from millpond.state.checkpoint.restoring import SegmentSource, load_version
from millpond.state.checkpoint.savepoint import Savepoint
from millpond.state.checkpoint.segment_spool import SegmentSpool
from millpond.state.checkpoint.starting import load_savepoint
from millpond.state.checkpoint.storage.interface import Commit
from millpond.state.checkpoint.unstored import UnstoredChanges
from millpond.state.checkpoint.writer import BASE_STEP_ROWS, CheckpointWriter, Round
from millpond.state.operator.timers import Timers
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.schema_change import migration
from millpond.state.types.timer_states import TIMERS


class Shard:
    """The state of one shard at one version. Not thread-safe: its owner holds a lock around it.

    Off Spark, `encode`, `stored` and `lose` may run in one other thread beside all other methods.

    Attributes:
        manifest: of the newest version that counts: one committed in memory, or stored.
        backend: the state.
        key_schema: of its keys.

    Args:
        manifest: of the version that the backend holds, or is about to be given.
        backend: of the manifest's key groups.
        timers: the state of the keys' timers.
        last_version: versions are numbered after it, and after the manifest's.
    """

    def __init__(
        self,
        manifest: Manifest,
        backend: KeyedStateBackend,
        timers: StateDescriptor = TIMERS,
        *,
        last_version: int = 0,
    ) -> None:
        self.manifest = manifest
        self.backend = backend
        self.key_schema = pa.ipc.read_schema(pa.py_buffer(manifest.key_schema))
        self._timers_state = timers
        self._timers: Timers | None = None
        self._writer = CheckpointWriter(self.key_schema)
        self._last_version = max(manifest.version, last_version)
        # False once a commit could be neither finished nor undone: then the contents belong to no version.
        self._intact = True
        # False from `begin_at` to the end of the version. Only then is there anything to roll back.
        self._ended = False
        self._unstored = UnstoredChanges()
        # State and key group of expired cells that bases left out and live state still has.
        self._outlived: dict[tuple[str, int], None] = {}
        self._removal_rows = BASE_STEP_ROWS
        self._round = self._next_round()
        self._before: tuple[Manifest, Round] | None = None

    @property
    def timers(self) -> Timers:
        """The shard's timers, declared at the first use."""
        if self._timers is None:
            self.declare(self._timers_state)
            self._timers = Timers(self.backend, self.manifest.key_groups, self._timers_state)
        return self._timers

    @property
    def declared(self) -> tuple[StateDescriptor, ...]:
        """Every state that the checkpoints know."""
        return tuple(self._writer.states.values())

    def rollback(self) -> None:
        """Drop every change since the last commit."""
        if self.backend.rollback():
            self._forget_queue()

    def _forget_queue(self) -> None:
        if self._timers is not None:
            self._timers.forget_queue()

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the shard's checkpoints. Raises OptionError if it is known otherwise, even if empty."""
        known = self._writer.states.get(descriptor.name)
        if known is None:
            self._writer.declare(descriptor)
            # The segments of one version never hold rows of two forms.
            stored = [StateDescriptor.decode(each) for each in self.manifest.states if each["name"] == descriptor.name]
            if any(migration(each, descriptor, 0) is not None for each in stored):
                self.write_anew()
        elif known != descriptor:
            raise OptionError(
                f"state {descriptor.name!r} is known to its checkpoint as [{known.describe()}] and was declared as "
                f"[{descriptor.describe()}]. Declare it as it was, or give the new state another name."
            )

    def write_anew(self) -> None:
        """Have the next version be a full one, because no segment holds the contents as they are in memory."""
        self._unstored.leave_to_full(self.manifest.version)

    def holds(self, declared: Iterable[StateDescriptor]) -> bool:
        """Return whether its contents have the form of these declarations: each is known as declared, or unknown."""
        return all(self._writer.states.get(state.name, state) == state for state in declared)

    def delete_state(self, name: str) -> None:
        """Remove every key's cells of a state in the open version, if there is such a state."""
        if name in self._writer.states:
            self._forget_queue()
            for key_group in self.manifest.key_groups:
                cells = self.backend.cells(name, key_group)
                if len(cells):
                    self.backend.write(name, replace(cells, values=[ABSENT] * len(cells)))

    def living_cells(self, name: str, key_group: int) -> Cells:
        """Return a state's cells in a key group as users know them: without expired values and without TTL's times."""
        cells, descriptor = self.backend.cells(name, key_group), self._writer.states.get(name)
        if descriptor is None or descriptor.ttl is None:
            return cells
        return without_times(alive(cells, descriptor.ttl, self.backend.context.now_ms), descriptor.kind)

    def restore(
        self, segments: SegmentSource, declared: Iterable[StateDescriptor] = (), now_ms: int | None = None
    ) -> None:
        """Load the manifest's version from its segments into the (empty) backend, in the form of the declarations.

        Segments are asked for one by one, in the order of `in_order`, and dropped once they are loaded. States that
        are not declared are kept as they are stored. `now_ms` is the time at which lives begin if a TTL was added. An
        OptionError shows both declarations of a state whose change is rejected, before anything is loaded. A missing
        or damaged segment raises a CorruptionError that names it. The shard must then be discarded.
        """
        self._forget_queue()
        for descriptor in load_version(self.manifest, segments, self.backend, declared, now_ms):
            self.declare(descriptor)

    def start_from(
        self, savepoint: Savepoint, declared: Iterable[StateDescriptor] = (), now_ms: int | None = None
    ) -> None:
        """Load this (new) shard's part of a savepoint, in the form of the declarations.

        Raises as `restore`, and a CorruptionError that names a file of the savepoint that is not as it was written.
        """
        self._forget_queue()
        for descriptor in load_savepoint(savepoint, self.manifest, self.backend, declared, now_ms):
            self.declare(descriptor)
        self.write_anew()

    def begin_at(self, manifest: Manifest) -> bool:
        """Begin a version at exactly this manifest, if memory allows: as it is, or by undoing the last version.

        Return False if only a restore will do. Bases still owed to the manifest are written here.
        """
        if not self._intact:
            return False
        if not self._ended:
            self.rollback()
        if self.manifest.is_same_version_as(manifest):
            self.backend.acknowledge()
            self._unstored.stored(manifest.version)
        elif self._before is not None and self._before[0].is_same_version_as(manifest):
            self.backend.undo_commit()
            self._forget_queue()
            self.manifest, self._round = self._before
            self._last_version = self.manifest.version
        else:
            return False
        self._before = None
        self._ended = False
        while self.prepare_bases():
            continue
        self.remove_expired()
        return True

    def prepare_bases(self) -> bool:
        """Encode the bases of the next few key groups, if any are owed. Return whether a step was taken.

        Only between versions: the committed version is encoded.
        """
        if self._unstored.holds(self.manifest.version):
            return False
        return self._writer.add_bases(
            self._round, self.backend, self.manifest.version, self.backend.context.now_ms, self._writer.states
        )

    def _next_round(self) -> Round:
        """Return an empty round for the bases that are owed to the manifest."""
        return Round(self.manifest, owed_rows(self.manifest), self._outlived)

    def remove_expired(self) -> None:
        """Remove from live state, in the open version, the cells that bases left out and that are still expired.

        Call it in the thread that processes records. It checks whole key groups, until it has seen as many cells as the
        last version owed rows of bases, and at least 50,000. The rest waits for the next call.
        """
        seen = 0
        while self._outlived and seen < self._removal_rows:
            (name, key_group), _ = self._outlived.popitem()
            seen += self._writer.remove_expired(self.backend, name, key_group)

    def end_version(self, watermark_ms: int = -1, *, full: bool = False) -> PendingCheckpoint:
        """End the open version. Release its snapshot once it was encoded or lost."""
        snapshot = self.backend.commit()
        self._last_version += 1
        return PendingCheckpoint(
            self._last_version, full, watermark_ms, self.backend.context.now_ms, snapshot, dict(self._writer.states)
        )

    def is_full(self, pending: PendingCheckpoint) -> bool:
        """Return whether a version will be all bases and no delta."""
        return (
            pending.full
            or self._unstored.ask_for_full(pending.version)
            or rather_full(self.manifest, pending.snapshot, pending.states.values())
        )

    def encode(
        self, pending: PendingCheckpoint, token: str, prepared: Round | None = None, encode: Encode = at_once
    ) -> Commit:
        """Turn a version that has ended into segments and the next manifest. It does not count yet.

        Args:
            pending: the version.
            token: names the attempt, or the writer, in the manifest.
            prepared: bases that were encoded before.
            encode: makes segments, here or in another thread.

        Raises:
            OptionError: a state is in use that was not declared.
        """
        pending.refuse_undeclared()
        if self.is_full(pending):
            deltas, bases = [], Round(self.manifest, None, self._outlived)
        else:
            spool = SegmentSpool() if prepared is None else prepared.spool
            delta = self._writer.delta(pending.version, pending.snapshot, spool)
            deltas = [*self._unstored.deltas(pending.version), delta]
            written = [Written(part.state, part.rows, part.length) for delta in deltas for part in delta.parts]
            bases = prepared or Round(self.manifest, owed_rows(self.manifest, written), self._outlived, spool)
        self._removal_rows = max(BASE_STEP_ROWS, bases.owed_rows or 0)
        while self._writer.add_bases(bases, pending.snapshot, pending.version, pending.now_ms, pending.states, encode):
            continue
        return next_commit(
            self.manifest,
            version=pending.version,
            token=token,
            watermark_ms=pending.watermark_ms,
            processing_ms=pending.now_ms,
            states=(state.encode() for state in pending.states.values()),
            bases=bases.bases,
            deltas=deltas,
        )

    def commit(self, token: str, watermark_ms: int = -1) -> Commit:
        """End and encode a version, under the attempt's token: see `finish`."""
        return self.finish(self.end_version(watermark_ms), token)

    def finish(self, pending: PendingCheckpoint, token: str) -> Commit:
        """Encode a version with the bases prepared for it, and make it the shard's version. If that fails, undo it.

        Store the result whole or not at all. The next `begin_at` says which.
        """
        try:
            commit = self.encode(pending, token, self._round)
        except BaseException:
            self._intact = False
            self.backend.undo_commit()
            self._intact = True
            self._last_version = self.manifest.version
            self._forget_queue()
            raise
        finally:
            pending.snapshot.release()
        self._before = self.manifest, self._round
        self.manifest = commit.manifest
        self._round = self._next_round()
        self._ended = True
        return commit

    def stored(self, manifest: Manifest) -> None:
        """Take note that an encoded version is stored, and make it the shard's version."""
        self.manifest = manifest
        self._unstored.stored(manifest.version)

    def lose(self, pending: PendingCheckpoint) -> None:
        """Leave the changes of a version that will not be stored to the next one."""
        self._unstored.carry(
            pending.version, lambda spool: self._writer.delta(pending.version, pending.snapshot, spool)
        )
