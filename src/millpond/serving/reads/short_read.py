"""The protocol of short reads: a short read gets one key in one round, for one common case.

Place on the data path: most reads. A *short read* handles one case without a generator, and everything that depends
only on the plan was computed before. `CachedReader` handles a key whose closed tiles are cached, `KeepingRead` a key
that is read whole and then cached, `PlainReader` a key whose tiles are not cached. In any other case they return
None, and the *full read* (`key_read`), which handles every case, begins from the start.

A short read depends on a GroupBy and not on a call. So Joins, many keys, one key and the async fetcher all use the
same short reads. Short and full reads give the same bases and tails, which a test checks.

An absent batch row is trusted only if the same batch is still served after the read. So such a result has
`is_confirmed` False, and the caller reads the serving info before it uses the result.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millpond.features import Ir
from millpond.features.answering.layout import Projection
from millpond.kv import Get, TimedValue
from millpond.serving.counters import ReadCounts
from millpond.serving.landed_batch import LandedBatch


class ShortResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a short read: everything that an answer needs, without unknown cells.

    Attributes:
        bases: for each window, the cells of its closed part.
        tails: for each window, the IR of its open part.
        landed: the batch that answers.
        counts: what was read, see `READ_COUNTS`.
        is_confirmed: whether the result may be used as it is. False if the batch row was absent.
        on_confirmed: puts what was read into the caches, once the result is confirmed; None if nothing is to be cached.
    """

    bases: Sequence[Projection]
    tails: Sequence[Ir]
    landed: LandedBatch
    counts: ReadCounts
    is_confirmed: bool = True
    on_confirmed: Callable[[], None] | None = None


class ShortRead(Protocol):
    """A short read of one key, in progress."""

    @property
    def gets(self) -> Sequence[Get]:
        """What the store must be asked; empty if a recently read tail is reused."""
        ...

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        """Decode the rows of the gets and return the result; None if the key needs the full read.

        Raises:
            CorruptionError: a row does not decode. The full read says which.
        """
        ...

    def close(self) -> None:
        """Abandon a read that was not ended, so that no other fetch waits for it."""
        ...


class ShortReader(Protocol):
    """Begins short reads of one GroupBy."""

    def begin(self, key: bytes, query_ms: int, now_ms: int) -> ShortRead | None:
        """Look up a key, and begin a short read; None if the key needs the full read.

        Args:
            key: the encoded key.
            query_ms: the query time.
            now_ms: the present; no tile starts at or after it.
        """
        ...

    def begin_missed(self, key: bytes, query_ms: int, now_ms: int) -> ShortRead | None:
        """Like `begin`, for a key that was looked up before and is not cached."""
        ...
