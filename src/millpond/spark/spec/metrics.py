"""The metrics of a keyed operator, and how they reach the driver.

A host sums a shard's batch and sends the sums to the worker with the commit. The worker adds them to an
accumulator of Spark's, and the driver has the sum of all shards. So metrics cost nothing per row, and only
tasks that succeed report them. Spark Connect has no accumulators; see `observed_metrics`.

Counters grow, and a batch that ran again counts again. Levels are the sum of each shard's newest value.
Shards report separately, and reports from one Spark stage belong to one batch. Only the newest stage numbers
are kept, since a stage ends before its query begins the next batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from pyspark import AccumulatorParam

from millpond.cache.curves.telling import EncodedReport

_NEWEST_STAGES = 64
"""How many stage numbers are kept. It must exceed the number of queries that run one plan at the same time."""


class ShardDetail(msgspec.Struct, frozen=True):
    """What a shard reports of its newest batch that cannot be summed.

    Attributes:
        hot_groups: the key groups with the most rows in the batch, and their rows, hottest first.
        heap_bytes, disk_bytes: for a heap that spills, the bytes on the heap and on disk; None for other backends.
        groups: for a heap that spills, each key group with its place, its bytes, and its rate of requests.
        report: the hit-rate curve of the cache in front of the backend, see `Telling`; None if it is not recorded.
    """

    hot_groups: tuple[tuple[int, int], ...] = ()
    heap_bytes: int | None = None
    disk_bytes: int | None = None
    groups: tuple[tuple[int, str, int, float], ...] = ()
    report: EncodedReport | None = None


class BatchMetrics(msgspec.Struct, frozen=True):
    """The metrics of one batch of one shard. Times are in seconds.

    Attributes:
        shard: the shard's number.
        rows: rows given to the processor.
        late_rows: rows dropped because the watermark had passed them.
        dead_letters: calls of the processor that failed and became dead letters.
        state_rows: rows in the checkpoint.
        state_bytes: bytes in the checkpoint.
        cache_hits: reads that the state cache answered.
        cache_misses: reads that it did not.
        spills: key groups that a heap which spills moved to disk.
        loads: key groups that it moved back.
        restores: 1 if the state was first read from the checkpoint.
        shuffle_seconds: time to receive all rows of the batch.
        run_seconds: time in the processor, conversions included.
        flush_seconds: time to write cached changes to the backend.
        commit_seconds: time to encode the version.
        store_seconds: time to put the version into Spark's state store.
        detail: what cannot be summed; None under Spark Connect.
    """

    shard: int
    rows: int = 0
    late_rows: int = 0
    dead_letters: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    spills: int = 0
    loads: int = 0
    restores: int = 0
    shuffle_seconds: float = 0.0
    run_seconds: float = 0.0
    flush_seconds: float = 0.0
    commit_seconds: float = 0.0
    store_seconds: float = 0.0
    detail: ShardDetail | None = None

    def plus(self, later: "BatchMetrics") -> "BatchMetrics":
        """Return the sums of the counters, with the levels of the later batch."""
        return msgspec.structs.replace(
            later, **{name: getattr(self, name) + getattr(later, name) for name in COUNTERS if name != "batches"}
        )


@dataclass(frozen=True)
class KeyedMetrics:
    """The metrics of a keyed operator since its query was planned. Times are in seconds, summed over the shards.

    Attributes:
        batches: batches that ran. A batch counts once, however many shards it has.
        rows: rows given to the processor.
        late_rows: rows dropped because the watermark had passed them.
        dead_letters: calls of the processor that failed and became dead letters.
        cache_hits: reads that the state cache answered.
        cache_misses: reads that it did not.
        spills: key groups that a heap which spills moved to disk.
        loads: key groups that it moved back.
        restores: how often a shard's state was read from the checkpoint.
        shuffle_seconds: time to receive all rows of the batches.
        run_seconds: time in the processor, conversions included.
        flush_seconds: time to write cached changes to the backends.
        commit_seconds: time to encode the versions.
        store_seconds: time to put the versions into Spark's state store.
        levels: the rows and bytes of each shard's state in the checkpoint.
        stages: the numbers of the newest stages that are counted as batches.
        shards: the same metrics for each shard, with its newest levels. Empty under Spark Connect.
        query: the id of the query that ran the batches. Empty for a batch DataFrame, and under Spark Connect.

    >>> metrics = KeyedMetrics.of(BatchMetrics(shard=0, rows=3, state_rows=2, cache_hits=3, cache_misses=1), stage=1)
    >>> metrics += KeyedMetrics.of(BatchMetrics(shard=1, rows=2, state_rows=2), stage=1)
    >>> metrics += KeyedMetrics.of(BatchMetrics(shard=0, rows=1, state_rows=4), stage=4)
    >>> metrics.batches, metrics.rows, metrics.state_rows, metrics.cache_hit_ratio
    (2, 6, 6, 0.75)
    """

    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    dead_letters: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    spills: int = 0
    loads: int = 0
    restores: int = 0
    shuffle_seconds: float = 0.0
    run_seconds: float = 0.0
    flush_seconds: float = 0.0
    commit_seconds: float = 0.0
    store_seconds: float = 0.0
    levels: Mapping[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    stages: frozenset[int] = field(default=frozenset(), repr=False)
    shards: Mapping[int, BatchMetrics] = field(default_factory=dict, repr=False)
    query: str = field(default="", repr=False)

    @staticmethod
    def of(batch: BatchMetrics, stage: int, query: str = "") -> "KeyedMetrics":
        """Return the metrics of one batch of one shard, which ran in this stage of Spark's."""
        counted = {name: getattr(batch, name) for name in COUNTERS if name != "batches"}
        levels = {batch.shard: (batch.state_rows, batch.state_bytes)}
        return KeyedMetrics(
            batches=1,
            **counted,
            levels=levels,
            stages=frozenset([stage]),
            shards={batch.shard: batch},
            query=query,
        )

    def __add__(self, later: "KeyedMetrics") -> "KeyedMetrics":
        counted = {name: getattr(self, name) + getattr(later, name) for name in COUNTERS}
        counted["batches"] -= len(self.stages & later.stages)
        stages = frozenset(sorted(self.stages | later.stages)[-_NEWEST_STAGES:])
        shards = dict(self.shards)
        for shard, batch in later.shards.items():
            shards[shard] = shards[shard].plus(batch) if shard in shards else batch
        levels = {**self.levels, **later.levels}
        return KeyedMetrics(**counted, levels=levels, stages=stages, shards=shards, query=later.query or self.query)

    @property
    def state_rows(self) -> int:
        """Rows in the checkpoint: base segments and newer deltas. One to two times the live rows."""
        return sum(rows for rows, _ in self.levels.values())

    @property
    def state_bytes(self) -> int:
        """Bytes in the checkpoint: base segments and newer deltas."""
        return sum(size for _, size in self.levels.values())

    @property
    def cache_hit_ratio(self) -> float | None:
        """Flink's `stateCacheHitRatio`, over all reads so far. None if no cache was read."""
        reads = self.cache_hits + self.cache_misses
        return self.cache_hits / reads if reads else None


COUNTERS = [each.name for each in fields(KeyedMetrics) if each.name not in {"levels", "stages", "shards", "query"}]
"""The names of the counters."""


class MetricsParam(AccumulatorParam):  # type: ignore[misc]
    """Lets an accumulator of Spark's sum `KeyedMetrics`."""

    def zero(self, value: Any) -> KeyedMetrics:  # noqa: ARG002 - Spark's own signature
        """Return metrics that are all zero."""
        return KeyedMetrics()

    def addInPlace(self, value1: KeyedMetrics, value2: KeyedMetrics) -> KeyedMetrics:
        """Return the sum."""
        return value1 + value2
