"""What a fetcher knows of one GroupBy: the batch that is served, and up to when its stream has closed tiles.

`serving_info` refreshes this every few seconds. Each refresh makes a new, immutable object.
"""

import msgspec

from millpond.features.stored.rows import NEVER_CLOSED_MS
from millpond.serving.landed_batch import LandedBatch


class Served(msgspec.Struct, frozen=True):
    """What is known of one GroupBy.

    Attributes:
        landed: the batch that is served; None if none can be.
        closed_ms: the closing time; every tile that ends at or before it is closed.
        restarts: how often the closing time went back. It does when a stream restarts without its state, which may
            then write other tiles than those closed before.
        problem: why no batch can be served.
        raw: the stored record that this was read from.
        is_read: whether the record was read and taken as it is.
        started_ms: the stream has all events from this time on; None if that is not known.
    """

    landed: LandedBatch | None = None
    closed_ms: int = NEVER_CLOSED_MS
    restarts: int = 0
    problem: str | None = None
    raw: bytes | None = None
    is_read: bool = False
    started_ms: int | None = None
