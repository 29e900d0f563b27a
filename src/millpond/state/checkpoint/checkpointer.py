"""One shard's checkpoints off Spark: a short blocking part, and the rest while records flow.

`begin` ends the backend's version and holds the stream up no longer than that. `write` turns the
snapshot into segments and a manifest and stores them; it may run in any thread while the next records
are worked off, and several checkpoints may have begun before the first is written.

Invariant: every change since the newest stored version is in a carried delta, in a pending
checkpoint, in the open version, or belongs to a version in `_lost`. So a checkpoint that failed or
was aborted loses nothing: the next one writes its delta too. When carried deltas grow past
`MAX_CARRIED_BYTES`, as in a long outage of the storage, they are given up, and the next checkpoint
is a full one, which needs none of them.

An incremental checkpoint writes its delta and as many cells again of bases, key groups in turn; a
full one writes every key group and nothing else, and so does the first of all. Version numbers are
never used twice: that of a failed checkpoint stays free.

Bases leave out what has expired, and live state still has it. It is the operator's thread that may write
live state, so the writing thread only notes where, and `remove_expired` does it, a bounded part at a time.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.backend.protocols import KeyedStateBackend, Snapshot
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.next_manifest import Delta, beside
from millpond.state.checkpoint.owed_bases import Written, owed_rows
from millpond.state.checkpoint.segment_spool import SegmentSpool
from millpond.state.checkpoint.storage.interface import CheckpointStorage, Commit
from millpond.state.checkpoint.writer import BASE_STEP_ROWS, CheckpointWriter, Round
from millpond.state.types.descriptor import StateDescriptor

MAX_CARRIED_BYTES = 64 << 20

_HISTORY = 10_000


@dataclass(frozen=True)
class CheckpointStats:
    """What one stored checkpoint cost.

    Attributes:
        version: its number.
        full: whether it holds every key group anew.
        blocking_ns: how long the stream stood still for it.
        bytes: of the segments it wrote.
        segments: how many it wrote.
    """

    version: int
    full: bool
    blocking_ns: int
    bytes: int
    segments: int


@dataclass(frozen=True, eq=False)
class PendingCheckpoint:
    """A checkpoint between its blocking part and its last byte.

    Attributes:
        version: its number.
        full: whether it was asked to be a full one.
        watermark_ms: the event-time watermark it was begun under, or -1.
        now_ms: the processing time it was begun at, by which values that have outlived their TTL are left out.
        blocking_ns: how long the stream stood still for it.
        snapshot: the state it holds.
        states: every state declared by then.
    """

    version: int
    full: bool
    watermark_ms: int
    now_ms: int
    blocking_ns: int
    snapshot: Snapshot
    states: Mapping[str, StateDescriptor]


class Checkpointer:
    """Makes one shard's checkpoints.

    `begin`, `declare` and every use of the backend belong to the operator's thread; `write` and `abort`
    may run in any, one at a time.

    Args:
        storage: where versions are kept.
        backend: whose state they hold. It stands at `head`: empty when it is new, or as `restore` left it.
        manifest: of the version that the backend holds.
        states: every state declared so far, and every restored one.
        last_version: versions begin after it, and after all stored ones; so the shards of an operator count alike.
        writer: names this writer in its manifests; random unless given.
        clock_ns: monotonic nanoseconds, by which the blocking part is measured.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        backend: KeyedStateBackend,
        manifest: Manifest,
        states: Iterable[StateDescriptor] = (),
        *,
        last_version: int = 0,
        writer: str | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.history: deque[CheckpointStats] = deque(maxlen=_HISTORY)
        self._storage = storage
        self._backend = backend
        self._manifest = manifest
        self._writer = writer or secrets.token_hex(8)
        self._clock_ns = clock_ns
        self._encoder = CheckpointWriter(pa.ipc.read_schema(pa.py_buffer(manifest.key_schema)))
        self._last_version = max([manifest.version, last_version, *storage.versions()])
        self._begun: deque[PendingCheckpoint] = deque()
        self._carried: list[Delta] = []
        self._carried_spool = SegmentSpool()
        self._lost: set[int] = set()
        # What the bases of every round so far left out. It is used without the lock, which a whole write holds.
        self._outlived: dict[tuple[str, int], None] = {}
        self._removal_rows = BASE_STEP_ROWS
        self._lock = threading.Lock()
        for descriptor in states:
            self.declare(descriptor)
        # What a backend holds when it is new came from a savepoint, if anything, and no version has it yet. Segments
        # written under an earlier declaration are not read under this one: a full checkpoint needs neither.
        if manifest.version == 0 or any(self._declared_anew(stored) for stored in manifest.states):
            self._lost.add(manifest.version)

    def _declared_anew(self, stored: Mapping[str, Any]) -> bool:
        """Whether a state is declared otherwise than the manifest has it."""
        declared = self._encoder.states.get(stored["name"])
        return declared is not None and declared.encode() != stored

    @property
    def storage(self) -> CheckpointStorage:
        """Where versions are kept."""
        return self._storage

    @property
    def manifest(self) -> Manifest:
        """Of the last version that was stored."""
        return self._manifest

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints begun from now on."""
        if descriptor.name not in self._encoder.states:
            self._encoder.declare(descriptor)

    def begin(self, watermark_ms: int = -1, *, full: bool = False) -> PendingCheckpoint:
        """The blocking part: end the backend's version. What it returns must go to `write` or to `abort`."""
        now_ms = self._backend.context.now_ms
        started = self._clock_ns()
        snapshot = self._backend.commit()
        # Live state is never taken back here: a checkpoint that fails hands its changes on.
        self._backend.acknowledge()
        blocking_ns = self._clock_ns() - started
        self._last_version += 1
        pending = PendingCheckpoint(
            self._last_version, full, watermark_ms, now_ms, blocking_ns, snapshot, dict(self._encoder.states)
        )
        self._begun.append(pending)
        return pending

    def remove_expired(self) -> None:
        """Remove from live state, in the open version, what bases left out and what is still expired by now.

        Belongs in the thread that processes records. Looks at whole key groups, until it has seen as many cells as the
        last checkpoint had changed, and 50,000 at least; the rest waits for the next call.
        """
        seen = 0
        while self._outlived and seen < self._removal_rows:
            (name, key_group), _ = self._outlived.popitem()
            seen += self._encoder.remove_expired(self._backend, name, key_group)

    def write(self, pending: PendingCheckpoint) -> CheckpointStats:
        """Encode and store a begun checkpoint, the oldest first.

        When it fails, with whatever error the storage raised, nothing of it counts and its changes go with
        the next one; it is over then, and not written again.
        """
        with self._lock:
            if not self._begun or self._begun[0] is not pending:
                raise OptionError(
                    f"{self._storage.name}: checkpoint {pending.version} is not the oldest one begun: "
                    f"{[begun.version for begun in self._begun]}. Write or abort checkpoints in the order begun."
                )
            try:
                full = pending.full or any(version < pending.version for version in self._lost)
                commit = self._commit(pending, full=full)
                self._storage.put(commit)
            except BaseException:
                self._carry(pending)
                raise
            finally:
                self._begun.popleft()
                pending.snapshot.release()
            self._manifest = commit.manifest
            self._carried = [delta for delta in self._carried if delta.version > pending.version]
            if full:
                self._lost = {version for version in self._lost if version > pending.version}
            sizes = [len(data) for data in commit.segments.values()]
            stats = CheckpointStats(pending.version, full, pending.blocking_ns, sum(sizes), len(sizes))
            self.history.append(stats)
            return stats

    def abort(self, pending: PendingCheckpoint) -> None:
        """Give a begun checkpoint up, whichever it is. Its changes go with the next one that is written."""
        with self._lock:
            if pending not in self._begun:
                raise OptionError(f"{self._storage.name}: checkpoint {pending.version} is over already.")
            self._carry(pending)
            self._begun.remove(pending)
            pending.snapshot.release()

    def _commit(self, pending: PendingCheckpoint, *, full: bool) -> Commit:
        _refuse_undeclared(pending)
        deltas, spool = [], SegmentSpool()
        if not full:
            deltas = [delta for delta in self._carried if delta.version < pending.version]
            deltas.append(self._encoder.delta(pending.version, pending.snapshot, spool))
        written = [Written(part.state, part.rows, part.length) for delta in deltas for part in delta.parts]
        owed = None if full else owed_rows(self._manifest, written)
        self._removal_rows = max(BASE_STEP_ROWS, sum(part.rows for part in written))
        bases = Round(self._manifest, pending.version, owed, self._outlived, spool)
        with ThreadPoolExecutor(1, "millpond-encoding") as thread:
            encode = beside(thread)
            while self._encoder.add_bases(bases, pending.snapshot, pending.now_ms, pending.states, encode):
                continue
        return self._encoder.commit(
            self._manifest,
            version=pending.version,
            token=f"{self._writer}-{pending.version}",
            watermark_ms=pending.watermark_ms,
            processing_ms=pending.now_ms,
            bases=bases.bases,
            deltas=deltas,
            states=pending.states,
        )

    def _carry(self, pending: PendingCheckpoint) -> None:
        """Keep a lost checkpoint's changes for the next one, or make that a full one."""
        try:
            if not self._carried:
                self._carried_spool = SegmentSpool()
            self._carried.append(self._encoder.delta(pending.version, pending.snapshot, self._carried_spool))
        except Exception:  # noqa: BLE001 - why it cannot be encoded is told by the checkpoint that needs it
            self._lost.add(pending.version)
        if sum(delta.bytes for delta in self._carried) > MAX_CARRIED_BYTES:
            self._lost.update(delta.version for delta in self._carried)
            self._carried.clear()


def _refuse_undeclared(pending: PendingCheckpoint) -> None:
    """A state that the checkpoint does not know of would be lost without a word."""
    for state in pending.snapshot.states():
        if state not in pending.states:
            raise OptionError(
                f"state {state!r} is in use but was not declared to its Checkpointer when checkpoint {pending.version} "
                "began. Call declare()."
            )
