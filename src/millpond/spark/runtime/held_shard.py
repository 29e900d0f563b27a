"""A shard held in memory by a process on Spark: brought to a manifest, run for a batch, committed, taken back.

The same in a state host and in a worker with `host="inline"`. What is held is a cache of the segments in
Spark's state store: whatever cannot go on as it is, is closed and restored from them.
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
    """A shard, and what its backend was opened with. Not thread-safe: it belongs to whoever holds its slot.

    Args:
        spec: of the operator.
        manifest: where it stands.
        segments: the manifest's. They are asked for one by one, in the order of `in_order`.
        batch_time: by which the TTL of what is restored is judged.

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
        """Whether the shard stands at the manifest, if need be by undoing a version; False: it has to be restored.

        A query that was restarted with other options or declarations gets the backend that it asks for.
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
        """Run a batch and commit it in memory; what user code yields goes to `output`."""
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
        """Undo what a failed batch changed. False: the backend is damaged, or cannot; it is to be closed."""
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
    """The slot's shard at the manifest. It is restored from its segments where what is in memory is of no use."""
    if slot.shard is None or not slot.shard.begins_at(spec, manifest):
        slot.drop()
        slot.shard = HeldShard(spec, manifest, segments(), batch_time)
    return slot.shard


@contextlib.contextmanager
def reverting(slot: Slot[HeldShard]) -> Iterator[None]:
    """Where a batch fails in here, the slot's shard is as before it, or dropped."""
    try:
        yield
    except BaseException as error:
        if slot.shard is not None and not slot.shard.revert(error):
            slot.drop()
        raise


def _opening(spec: OperatorSpec) -> tuple[StateOptions, str, bool]:
    return *spec.config.opened_with, spec.dead_letter is not None


class _Temperatures:
    """Where a heap that spills has its key groups. To know it, all of them are counted: so at most once a second."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._looked: float | None = None
        self._found: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        """Fields of `ShardDetail`; none of a backend that moves no key groups."""
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
"""Fields of `BatchMetrics`, by the counters of which backends and caches tell a recorder."""


class _Heard(NullRecorder):
    """Hears of the cache in front of the backend, and of key groups that a heap which spills moved."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Add up what is known."""
        field = _HEARD.get((metric, name if metric == MOVES else result))
        if field is not None:
            self._counted[field] += int(amount)

    def taken(self) -> dict[str, int]:
        """What was counted since this was last asked."""
        counted, self._counted = self._counted, Counter()
        return dict(counted)
