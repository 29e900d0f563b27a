"""The short ways to a key: one round, no generator, no work that a plan could have done.

Place on the data path: most reads. `key_read` is the long way, for everything; a short one knows one case.
`CachedReader` knows the key of which the closed tiles are cached, `KeepingRead` the key that is read whole
for the cache, `PlainReader` the key of which nothing is kept. In any other case they give None, and the long
way is taken from its start.

A short read belongs to a GroupBy and not to a call, so Joins, many keys, one key and the async fetcher
all go the same short ways. Both ways end in the same bases and tails, which a test compares.

An absent batch row is believed only if the same batch is still served after it was read. So its result is
not `is_confirmed`, and whoever asked reads the serving info before it is used.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millpond.features import Ir
from millpond.features.answering.layout import Projection
from millpond.kv import Get, TimedValue
from millpond.serving.landed_batch import LandedBatch

READ_COUNTS = ("batch_gets", "batch_gets_saved", "stream_gets", "rows", "bytes", "tiles", "tiles_saved")
"""What a short read counts, by the names of a `Tally`."""

ReadCounts = tuple[int, int, int, int, int, int, int]
"""A count for each of `READ_COUNTS`."""


class ShortResult(msgspec.Struct, frozen=True, gc=False):
    """What a short read found: all that an answer needs, every cell of it known.

    Attributes:
        bases: for each window, the cells of its closed part.
        tails: for each window, the IR of its open part.
        landed: the batch that answers.
        counts: what was read, see `READ_COUNTS`.
        is_confirmed: whether it may be used as it is; else the batch row was absent.
        on_confirmed: keeps what was read, once it is known that it may be used; None if nothing waits for that.
    """

    bases: Sequence[Projection]
    tails: Sequence[Ir]
    landed: LandedBatch
    counts: ReadCounts
    is_confirmed: bool = True
    on_confirmed: Callable[[], None] | None = None


class ShortRead(Protocol):
    """One short read of one key that was begun."""

    @property
    def gets(self) -> Sequence[Get]:
        """What the store is to be asked; nothing if a tail may be used that was read not long ago."""
        ...

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        """Take the rows of the gets; None if the long way is to be taken.

        Raises:
            CorruptionError: a row does not decode. The long way says which.
        """
        ...

    def close(self) -> None:
        """Give up a read that was not ended, so that nobody waits for it."""
        ...


class ShortReader(Protocol):
    """Begins short reads of one GroupBy."""

    def begin(self, key: bytes, query_ms: int, now_ms: int) -> ShortRead | None:
        """Look up a key; None if the long way is to be taken.

        Args:
            key: the encoded key.
            query_ms: the time that is asked for.
            now_ms: the present, from which on there are no tiles.
        """
        ...

    def begin_missed(self, key: bytes, query_ms: int, now_ms: int) -> ShortRead | None:
        """Do as `begin` for a key that was looked up and is not cached."""
        ...
