"""Stores a shard's versions off Spark: a short blocking part, and the rest while records flow.

`begin` ends the shard's version, and blocks the stream only for that. `write` turns the snapshot into segments and a
manifest and stores them. It may run in any thread while the next records are processed, and several checkpoints may
have begun before the first is written.

Invariant: a checkpoint that failed or was aborted loses nothing, since `Shard` leaves its changes to the next one.

An incremental checkpoint writes its delta and about as many bytes of bases, key groups in turn (`owed_bases`). A full
checkpoint writes every key group and nothing else. The first checkpoint is full. A version number is never used twice:
that of a failed checkpoint stays unused.
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
    """The cost of one stored checkpoint.

    Attributes:
        version: its number.
        full: whether it holds every key group anew.
        blocking_ns: how long it blocked the stream.
        bytes: size of the segments it wrote.
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
        backend: holds the state, at the manifest's version: empty for a new manifest, or as `restore` left it.
        manifest: of the version that the backend holds.
        states: every state declared so far, and every restored one.
        last_version: versions are numbered after it, and after all stored ones. So the shards of an operator agree.
        clock_ns: returns monotonic nanoseconds, to measure the blocking part.
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
            # The state of a new backend came from a savepoint, if there is any, and is in no version yet.
            self._shard.write_anew()

    @property
    def storage(self) -> CheckpointStorage:
        """Where versions are kept."""
        return self._storage

    @property
    def manifest(self) -> Manifest:
        """The manifest of the last version that was stored."""
        return self._shard.manifest

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints begun from now on. Raises OptionError if its declaration changed."""
        self._shard.declare(descriptor)

    def begin(self, watermark_ms: int = -1, *, full: bool = False) -> PendingCheckpoint:
        """Do the blocking part: end the backend's version. Pass the result to `write` or to `abort`."""
        started = self._clock_ns()
        pending = self._shard.end_version(watermark_ms, full=full)
        # Live state is never reverted here: a checkpoint that fails leaves its changes to the next one.
        self._shard.backend.acknowledge()
        pending = replace(pending, blocking_ns=self._clock_ns() - started)
        self._begun.append(pending)
        return pending

    def remove_expired(self) -> None:
        """Remove from live state the expired cells that bases left out: see `Shard.remove_expired`."""
        self._shard.remove_expired()

    def write(self, pending: PendingCheckpoint, *, common: int | None = None) -> CheckpointStats:
        """Encode and store a begun checkpoint, the oldest first. `common` is that of `Commit`.

        If it fails, with whatever error the storage raised, nothing of it counts and the next checkpoint has its
        changes. It is over then, and cannot be written again.
        """
        with self._lock:
            self.check_oldest(pending)
            full = self._shard.is_full(pending)
            try:
                with ThreadPoolExecutor(1, "millpond-encoding") as thread:
                    commit = self._shard.encode(pending, f"{self._writer}-{pending.version}", encode=beside(thread))
                self._storage.put(replace(commit, common=common))
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
        """Raise an OptionError unless this is the oldest checkpoint that is begun and not over."""
        if not self._begun or self._begun[0] is not pending:
            raise OptionError(
                f"{self._storage.name}: checkpoint {pending.version} is not the oldest one begun: "
                f"{[begun.version for begun in self._begun]}. Write or abort checkpoints in the order begun."
            )

    def abort(self, pending: PendingCheckpoint) -> None:
        """Abort any begun checkpoint. Its changes go with the next one that is written."""
        with self._lock:
            if pending not in self._begun:
                raise OptionError(f"{self._storage.name}: checkpoint {pending.version} is over already.")
            self._shard.lose(pending)
            self._begun.remove(pending)
            pending.snapshot.release()

    def abort_all(self) -> None:
        """Abort every begun checkpoint."""
        for pending in list(self._begun):
            self.abort(pending)
