"""What a fetcher knows of one GroupBy: the batch that is served, and how far its stream has closed its tiles.

It is looked at anew every few seconds (`serving_info`); each look makes a new object, and none changes.
"""

import msgspec

from millpond.serving.landed_batch import LandedBatch

NEVER_MS = -(1 << 62)
"""The closing time of a stream that has published none: before every tile."""


class Served(msgspec.Struct, frozen=True):
    """What is known of one GroupBy.

    Attributes:
        landed: the batch that is served; None if none can be.
        closed_ms: every tile that ends here or before is closed.
        restarts: how often the closing time went back: a stream was restarted without its state, and what was
            closed before may not be what it writes now.
        problem: why no batch can be served.
        raw: the stored record that says so.
        is_read: whether the store was asked at all.
    """

    landed: LandedBatch | None = None
    closed_ms: int = NEVER_MS
    restarts: int = 0
    problem: str | None = None
    raw: bytes | None = None
    is_read: bool = False
