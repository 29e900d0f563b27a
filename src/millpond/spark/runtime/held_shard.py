"""A shard in the memory of a Spark process: it begins at a manifest, runs a batch, commits, or reverts.

State hosts use it, and so do workers with `host="inline"`. The memory is a cache of the segments in
Spark's state store. A shard that cannot continue from memory is closed and restored from them.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa

from millpond.cache.curves import recordings_of
from millpond.cache.curves.telling import Telling
from millpond.errors import CorruptionError, UnavailableError
from millpond.metrics.recorder import NullRecorder, Result
from millpond.spark.runtime.opened_shard import filled_shard
from millpond.spark.runtime.shard_backend import open_shard_backend
from millpond.spark.runtime.shard_run import ShardRun
from millpond.spark.runtime.slots import Slot
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.lease import Lease
from millpond.spark.spec.metrics import ShardDetail
from millpond.spark.spec.operator import BatchTime, OperatorSpec
from millpond.state.checkpoint import Commit, Manifest, Shard
from millpond.state.checkpoint.restoring import SegmentSource
from millpond.state.options.operator import StateOptions
from millpond.state.spillable.spill_metrics import MOVES
from millpond.state.wrappers.lru.backend import LruStateCache
from millpond.state.wrappers.lru.hit_ratio import REQUESTS
from millpond.state.wrappers.undo import UndoableBackend


class HeldShard:
    """A shard, and the options that its backend was opened with. Not thread-safe: only the holder of its slot uses it.

    Args:
        spec: the operator.
        manifest: the version to restore.
        segments: the manifest's segments. They are read one by one, in the order of `in_order`.
        batch_time: the time that decides which restored values have expired.

    Raises:
        CorruptionError: a segment is missing or damaged.
    """

    def __init__(self, spec: OperatorSpec, manifest: Manifest, segments: SegmentSource, batch_time: BatchTime) -> None:
        self._opened_with = _opening(spec)
        self._heard = _Heard()
        backend = open_shard_backend(spec.config.parsed, manifest.key_groups, self._heard)
        cache = [backend] if isinstance(backend, LruStateCache) else []
        self._curve = Telling(next(iter(recordings_of(cache).values()), None))
        undoable = backend if spec.dead_letter is None else UndoableBackend(backend)
        self.shard = filled_shard(spec, manifest, segments, batch_time, undoable)
        self._restored = True
        self._temperatures = _Temperatures(self.shard)

    def begins_at(self, spec: OperatorSpec, manifest: Manifest) -> bool:
        """Bring the shard to the manifest, if need be by undoing one version. False: it must be restored.

        It is also False after a restart with other options or declarations, which need another backend.
        """
        if self._opened_with != _opening(spec):
            return False
        self._restored = False
        try:
            return self.shard.begin_at(manifest) and self.shard.holds(spec.states)
        except (CorruptionError, UnavailableError):
            return False

    def run(
        self,
        spec: OperatorSpec,
        batch_time: BatchTime,
        lease: Lease,
        tables: Iterable[pa.Table],
        output: Spool,
        token: str,
    ) -> tuple[BatchDone, Commit]:
        """Run a batch and commit it in memory. What user code yields goes to `output`."""
        marks = [time.perf_counter()]
        done = ShardRun(spec, self.shard, batch_time, lease).run(tables, output)
        marks.append(time.perf_counter())
        pending = self.shard.end_version(batch_time.watermark_ms)
        marks.append(time.perf_counter())
        commit = self.shard.finish(pending, token)
        marks.append(time.perf_counter())
        ran, flushed, committed = (later - earlier for earlier, later in pairwise(marks))
        detail = done.metrics.detail or ShardDetail()
        metrics = msgspec.structs.replace(
            done.metrics,
            detail=msgspec.structs.replace(detail, report=self._curve.now(), **self._temperatures.now()),
            state_rows=sum(ref.rows for ref in commit.manifest.segments),
            state_bytes=sum(ref.bytes for ref in commit.manifest.segments),
            restores=int(self._restored),
            run_seconds=ran,
            flush_seconds=flushed,
            commit_seconds=committed,
            **self._heard.taken(),
        )
        return msgspec.structs.replace(done, metrics=metrics, dropped=commit.dropped), commit

    def revert(self, error: BaseException) -> bool:
        """Undo what a failed batch changed. False: the backend is damaged or cannot undo it, and must be closed."""
        if not isinstance(error, CorruptionError):
            with contextlib.suppress(CorruptionError, UnavailableError, MemoryError):
                self.shard.rollback()
                return True
        return False

    def close(self) -> None:
        """Free the state. Idempotent."""
        self.shard.backend.close()


def standing_at(
    slot: Slot[HeldShard],
    spec: OperatorSpec,
    manifest: Manifest,
    batch_time: BatchTime,
    segments: Callable[[], SegmentSource],
) -> HeldShard:
    """Return the slot's shard at the manifest, restored from its segments if the one in memory cannot be used."""
    if slot.shard is None or not slot.shard.begins_at(spec, manifest):
        slot.drop()
        slot.shard = HeldShard(spec, manifest, segments(), batch_time)
    return slot.shard


@contextlib.contextmanager
def reverting(slot: Slot[HeldShard]) -> Iterator[None]:
    """Undo a batch that fails inside this context. A shard that cannot undo it is dropped from the slot."""
    try:
        yield
    except BaseException as error:
        if slot.shard is not None and not slot.shard.revert(error):
            slot.drop()
        raise


def _opening(spec: OperatorSpec) -> tuple[StateOptions, str, bool]:
    return *spec.config.opened_with, spec.dead_letter is not None


class _Temperatures:
    """Where a heap that spills holds its key groups. Finding out counts all of them, so once a second at most."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._looked: float | None = None
        self._found: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        """Return fields of `ShardDetail`; empty for a backend that does not move key groups."""
        at = time.monotonic()
        if self._looked is None or at - self._looked >= 1:
            self._looked = at
            table = self._shard.backend.temperatures()
            self._found = {} if table is None else _fields(table)
        return self._found


def _fields(temperatures: pa.Table) -> dict[str, Any]:
    groups: dict[int, tuple[int, str, int, float]] = {}
    held = Counter[str]()
    for row in temperatures.to_pylist():
        key_group, place, size = row["key_group"], row["place"], row["bytes"]
        before = groups.get(key_group, (key_group, place, 0, row["rate"]))
        groups[key_group] = key_group, place, before[2] + size, row["rate"]
        held[place] += size
    return {"groups": tuple(groups.values()), "heap_bytes": held["heap"], "disk_bytes": held["disk"]}


_HEARD = {
    (REQUESTS, "hit"): "cache_hits",
    (REQUESTS, "miss"): "cache_misses",
    (MOVES, "spill"): "spills",
    (MOVES, "load"): "loads",
}
"""Fields of `BatchMetrics` by the counter that backends and caches record, with its result or, for moves, its name."""


class _Heard(NullRecorder):
    """A recorder that counts hits and misses of the state cache, and the key groups that a heap spilled or loaded."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Add to the field of this counter. Other counters are ignored."""
        field = _HEARD.get((metric, name if metric == MOVES else result))
        if field is not None:
            self._counted[field] += int(amount)

    def taken(self) -> dict[str, int]:
        """Return the counts since the last call, and start again at zero."""
        counted, self._counted = self._counted, Counter()
        return dict(counted)
