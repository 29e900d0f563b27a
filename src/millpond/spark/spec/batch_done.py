"""The record of a batch that ran on one shard. The process that ran it makes it; Spark's worker completes it."""

from datetime import datetime

import msgspec

from millpond.spark.spec.metrics import BatchMetrics


class BatchDone(msgspec.Struct, tag=True, frozen=True):
    """One finished batch of one shard.

    As a host's message its payload is the new manifest. Segments, `End`, blobs and `End` follow.

    Attributes:
        metrics: the batch's metrics.
        next_timer_ms: the time of the earliest timer that is left, or -1.
        oldest: the earliest event time in each blob of output, None for a blob without one. Empty unless the output
            carries the watermark on.
        dropped: the ids of segments that the new version does not need.
        additions: what user code added to accumulators, encoded.
    """

    metrics: BatchMetrics
    next_timer_ms: int
    oldest: tuple[datetime | None, ...] = ()
    dropped: tuple[int, ...] = ()
    additions: bytes = b""
