"""Stores a shard's versions off Spark: a short blocking part, and the rest while records flow.

`begin` ends the shard's version and holds the stream up no longer than that. `write` turns the snapshot into segments
and a manifest and stores them. It may run in any thread while the next records are worked off, and several checkpoints
may have begun before the first is written.

Invariant: a checkpoint that failed or was aborted loses nothing, since `Shard` leaves its changes to the next one.

An incremental checkpoint writes its delta and as many cells again of bases, key groups in turn; a full one writes
every key group and nothing else, and so does the first of all. Version numbers are never used twice: that of a failed
checkpoint stays free.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from millpond.errors import OptionError
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.next_manifest import beside
from millpond.state.checkpoint.pending import PendingCheckpoint
from millpond.state.checkpoint.shard import Shard
from millpond.state.checkpoint.storage.interface import CheckpointStorage
from millpond.state.types.descriptor import StateDescriptor


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


class Checkpointer:
    """Makes one shard's checkpoints.

    `begin`, `declare` and every use of the backend belong to the operator's thread; `write` and `abort`
    may run in any, one at a time.

    Args:
        storage: where versions are kept.
        backend: whose state they hold. It stands at the manifest: empty when it is new, or as `restore` left it.
        manifest: of the version that the backend holds.
        states: every state declared so far, and every restored one.
        last_version: versions begin after it, and after all stored ones; so the shards of an operator count alike.
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
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._storage = storage
        self._writer = secrets.token_hex(8)
        self._clock_ns = clock_ns
        self._shard = Shard(manifest, backend, last_version=max([last_version, *storage.versions()]))
        self._begun: deque[PendingCheckpoint] = deque()
        self._lock = threading.Lock()
        for descriptor in states:
            self.declare(descriptor)
        if manifest.version == 0:
            # What a backend holds when it is new came from a savepoint, if anything, and no version has it yet.
            self._shard.write_anew()

    @property
    def storage(self) -> CheckpointStorage:
        """Where versions are kept."""
        return self._storage

    @property
    def manifest(self) -> Manifest:
        """Of the last version that was stored."""
        return self._shard.manifest

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints begun from now on. An OptionError where it is known as another."""
        self._shard.declare(descriptor)

    def begin(self, watermark_ms: int = -1, *, full: bool = False) -> PendingCheckpoint:
        """The blocking part: end the backend's version. What it returns must go to `write` or to `abort`."""
        started = self._clock_ns()
        pending = self._shard.end_version(watermark_ms, full=full)
        # Live state is never taken back here: a checkpoint that fails hands its changes on.
        self._shard.backend.acknowledge()
        pending = replace(pending, blocking_ns=self._clock_ns() - started)
        self._begun.append(pending)
        return pending

    def remove_expired(self) -> None:
        """Remove from live state what bases left out: see `Shard.remove_expired`."""
        self._shard.remove_expired()

    def write(self, pending: PendingCheckpoint) -> CheckpointStats:
        """Encode and store a begun checkpoint, the oldest first.

        When it fails, with whatever error the storage raised, nothing of it counts and its changes go with
        the next one; it is over then, and not written again.
        """
        with self._lock:
            self.check_oldest(pending)
            full = self._shard.is_full(pending)
            try:
                with ThreadPoolExecutor(1, "millpond-encoding") as thread:
                    commit = self._shard.encode(pending, f"{self._writer}-{pending.version}", encode=beside(thread))
                self._storage.put(commit)
            except BaseException:
                self._shard.lose(pending)
                raise
            finally:
                self._begun.popleft()
                pending.snapshot.release()
            self._shard.stored(commit.manifest)
            sizes = [ref.bytes for ref in commit.manifest.segments if ref.id in commit.segments]
            return CheckpointStats(pending.version, full, pending.blocking_ns, sum(sizes), len(sizes))

    def check_oldest(self, pending: PendingCheckpoint) -> None:
        """Refuse to write a checkpoint before those begun before it, or a second time."""
        if not self._begun or self._begun[0] is not pending:
            raise OptionError(
                f"{self._storage.name}: checkpoint {pending.version} is not the oldest one begun: "
                f"{[begun.version for begun in self._begun]}. Write or abort checkpoints in the order begun."
            )

    def abort(self, pending: PendingCheckpoint) -> None:
        """Give a begun checkpoint up, whichever it is. Its changes go with the next one that is written."""
        with self._lock:
            if pending not in self._begun:
                raise OptionError(f"{self._storage.name}: checkpoint {pending.version} is over already.")
            self._shard.lose(pending)
            self._begun.remove(pending)
            pending.snapshot.release()

    def abort_all(self) -> None:
        """Give up whatever was begun."""
        for pending in list(self._begun):
            self.abort(pending)
