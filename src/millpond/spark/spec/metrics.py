"""What a keyed operator counts, and how it comes back to the driver.

A host adds up a batch of a shard and hands the sums to the worker with the commit; the worker adds
them to an accumulator of Spark's, and the driver has the sum of all shards. So they cost nothing per
row, and come with the tasks that succeeded. Spark Connect has no accumulators: `observed_metrics`.

Counters grow; a batch that ran again counts again. Levels are the newest of each shard, added up. Each shard
reports a batch for itself, so the number of Spark's stage tells which reports are of one batch. The newest
numbers are enough for that: a stage ends before its query begins the next batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from pyspark import AccumulatorParam

from millpond.cache.curves.telling import EncodedReport

_NEWEST_STAGES = 64
"""How many stages are remembered: more than queries that run one plan at a time."""


class ShardDetail(msgspec.Struct, frozen=True):
    """What a shard tells of its newest batch beside sums.

    Attributes:
        hot_groups: key groups with most rows in the batch, and their rows, the hottest first.
        heap_bytes, disk_bytes: of a heap that spills, what is on the heap and on disk; None of other backends.
        groups: of a heap that spills, each key group with its place, its bytes, and how often it is asked for.
        report: the hit-rate curve of the cache in front of the backend, see `Telling`; None if it is not recorded.
    """

    hot_groups: tuple[tuple[int, int], ...] = ()
    heap_bytes: int | None = None
    disk_bytes: int | None = None
    groups: tuple[tuple[int, str, int, float], ...] = ()
    report: EncodedReport | None = None


class BatchMetrics(msgspec.Struct, frozen=True):
    """One batch of one shard. Times are in seconds.

    Attributes:
        shard: which.
        rows: that the processor was given.
        late_rows: dropped, because the watermark had passed them.
        dead_letters: calls of the processor that failed and were set aside.
        state_rows: in the checkpoint.
        state_bytes: in the checkpoint.
        cache_hits: reads that the state cache answered.
        cache_misses: reads that it did not.
        spills: key groups that a heap which spills moved to disk.
        loads: key groups that it moved back.
        restores: 1 where the state had to be read from the checkpoint first.
        shuffle_seconds: until all rows of the batch had come.
        run_seconds: in the processor, conversions included.
        flush_seconds: until the backend had what its caches held back.
        commit_seconds: until the version was encoded.
        store_seconds: until it was in Spark's state store.
        detail: what is no sum; None under Spark Connect.
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
        """The sum of the counters, with the later levels."""
        return msgspec.structs.replace(
            later, **{name: getattr(self, name) + getattr(later, name) for name in COUNTERS if name != "batches"}
        )


@dataclass(frozen=True)
class KeyedMetrics:
    """What a keyed operator did since its query was planned. Times are in seconds, added up over the shards.

    Attributes:
        batches: that ran; a batch counts once, however many shards it has.
        rows: that the processor was given.
        late_rows: dropped, because the watermark had passed them.
        dead_letters: calls of the processor that failed and were set aside.
        cache_hits: reads that the state cache answered.
        cache_misses: reads that it did not.
        spills: key groups that a heap which spills moved to disk.
        loads: key groups that it moved back.
        restores: how often a shard's state was read from the checkpoint.
        shuffle_seconds: until all rows of a batch had come.
        run_seconds: in the processor, conversions included.
        flush_seconds: until backends had what their caches held back.
        commit_seconds: until versions were encoded.
        store_seconds: until they were in Spark's state store.
        levels: of each shard, the rows and bytes of its state in the checkpoint.
        stages: the numbers of the newest stages that are counted as batches.
        shards: the same of each shard, with its newest levels; none under Spark Connect.
        query: the id of the query that ran them; empty for a batch DataFrame, and under Spark Connect.

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
        """Those of one batch of one shard, which ran in this stage of Spark's."""
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
        """Rows in the checkpoint: the state, and beside it the newest changes; between once and twice the live ones."""
        return sum(rows for rows, _ in self.levels.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of the same."""
        return sum(size for _, size in self.levels.values())

    @property
    def cache_hit_ratio(self) -> float | None:
        """Flink's `stateCacheHitRatio`, over all reads so far; None where no cache was asked."""
        reads = self.cache_hits + self.cache_misses
        return self.cache_hits / reads if reads else None


COUNTERS = [each.name for each in fields(KeyedMetrics) if each.name not in {"levels", "stages", "shards", "query"}]
"""The names of what grows."""


class MetricsParam(AccumulatorParam):  # type: ignore[misc]
    """Has Spark add up `KeyedMetrics`."""

    def zero(self, value: Any) -> KeyedMetrics:  # noqa: ARG002 - Spark's own signature
        """Nothing counted."""
        return KeyedMetrics()

    def addInPlace(self, value1: KeyedMetrics, value2: KeyedMetrics) -> KeyedMetrics:
        """The sum."""
        return value1 + value2
