"""The record of a batch that ran on one shard: made where it ran, completed on its way to Spark's worker."""

from datetime import datetime

import msgspec

from millpond.spark.spec.metrics import BatchMetrics


class BatchDone(msgspec.Struct, tag=True, frozen=True):
    """One batch of one shard. As a host's message its payload is the new manifest; segments, blobs and `End` follow.

    Attributes:
        metrics: what it counted.
        next_timer_ms: the earliest timer left, or -1.
        oldest: of each blob of output the earliest event time, None for one without; empty unless the output carries
            the watermark on.
        dropped: the ids of segments that the new version no longer needs.
        additions: what user code added to accumulators, encoded.
    """

    metrics: BatchMetrics
    next_timer_ms: int
    oldest: tuple[datetime | None, ...] = ()
    dropped: tuple[int, ...] = ()
    additions: bytes = b""
