"""Reads the keys of one part of a target for many requests, and finishes their values.

Place on the data path: between `ManyKeys`, which has a `PartReads` for each part of its target, and the short reads.
Cached keys are read and finished together (`cached_reads`), the others one by one. Equal keys are read once.
"""

from collections.abc import Sequence
from typing import Any

from millpond.errors import CorruptionError, UnavailableError
from millpond.kv import Get, TimedValue
from millpond.serving.answers.prepared import PreparedPart
from millpond.serving.counters import ReadCounts
from millpond.serving.reads.cached_reader import CachedReader
from millpond.serving.reads.cached_reads import CachedReads, KeyColumns, begin_many
from millpond.serving.reads.short_read import ShortRead, ShortResult

NO_COUNTS: ReadCounts = (0, 0, 0, 0, 0, 0, 0)

Rows = list[TimedValue] | UnavailableError
"""The rows of a get, or the error of the server that holds them."""


class PartReads:
    """The reads of one part's keys for several requests with one query time. Requests are named by their index.

    Attributes:
        part: the GroupBy, and how its features are finished.
        gets: what the store must be asked.
        long: the requests whose keys need the full read.
        values: the features of each request, under the names of the answer; None if not known yet.
        unconfirmed: the results that may be used only if their batch is still served, with their requests.
        counts: what was read, see `READ_COUNTS`.

    Args:
        part: a part with short reads and without derivations.
        keys: the encoded key of each request.
    """

    __slots__ = (
        "_cached",
        "_requests_of",
        "_single",
        "_unique",
        "counts",
        "gets",
        "long",
        "part",
        "unconfirmed",
        "values",
    )

    def __init__(self, part: PreparedPart, keys: Sequence[bytes]) -> None:
        self.part = part
        self.gets: list[Get] = []
        self.long: list[int] = []
        self.values: list[dict[str, Any] | None] = [None] * len(keys)
        self.unconfirmed: list[tuple[ShortResult, Sequence[int]]] = []
        self.counts = NO_COUNTS
        self._cached: CachedReads | None = None
        self._single: list[tuple[int, ShortRead]] = []
        self._unique = keys
        self._requests_of: list[list[int]] | None = None
        places: dict[bytes, list[int]] = {}
        if len(set(keys)) < len(keys):
            for request, key in enumerate(keys):
                places.setdefault(key, []).append(request)
            self._unique, self._requests_of = list(places), list(places.values())

    def begin(self, query_ms: int, now_ms: int) -> None:
        """Look up all keys, and begin the reads; the caller must then call `end` or `close`."""
        reader, keys = self.part.reader, self._unique
        assert reader is not None  # noqa: S101 - what has none is no form
        missed: Sequence[int] = range(len(keys))
        begin = reader.begin
        if type(reader) is CachedReader:
            cached = self._cached = begin_many(reader, keys, query_ms, now_ms)
            if cached is not None:
                self.gets += cached.gets
                missed, begin = cached.missed, reader.begin_missed
        for place in missed:
            read = begin(keys[place], query_ms, now_ms)
            if read is None:
                self.long += self._requests([place])
            else:
                self._single.append((place, read))
                self.gets += read.gets

    def end(self, answers: Sequence[Rows]) -> list[int]:
        """End the reads with the rows of the gets; return the requests that need the full read after all."""
        failed: list[int] = []
        cached, at = self._cached, 0
        if cached is not None:
            at = len(cached.gets)
            if at:
                self._end_cached(cached, answers[:at] if len(answers) > at else answers, failed)
            if cached.recent:
                self._end_recent(cached)
        self._single.reverse()
        while self._single:
            place, read = self._single.pop()
            first, at = at, at + len(read.gets)
            found, requests = _ended(read, answers[first:at]), self._requests([place])
            if found is None:
                failed += requests
            elif found.is_confirmed:
                self.take(found, requests)
            else:
                self.unconfirmed.append((found, requests))
        return failed

    def close(self) -> None:
        """Abandon the reads that were not ended."""
        for _, read in self._single:
            read.close()

    def take(self, found: ShortResult, requests: Sequence[int]) -> None:
        """Finish some requests with the result of a short read."""
        finish = self.part.finish
        assert finish is not None  # noqa: S101 - what derives values is no form
        for request in requests:
            self.values[request] = finish(found.bases, found.tails)
        self._count(found.counts)

    def _end_cached(self, cached: CachedReads, answers: Sequence[Rows], failed: list[int]) -> None:
        columns = cached.columns(answers)
        left: Sequence[int] = range(len(answers))
        if columns is not None:
            self._take_columns(columns, [cached.places[at] for at in columns.places])
            left = sorted(set(left).difference(columns.places)) if len(columns.places) < len(answers) else ()
        for at in left:
            result = cached.end(at, answers[at])
            requests = self._requests([cached.places[at]])
            if result is None:
                failed += requests
            else:
                self.take(result, requests)

    def _end_recent(self, cached: CachedReads) -> None:
        columns = cached.recent_columns()
        if columns is not None:
            self._take_columns(columns, columns.places)
            return
        for place, closed, recent in cached.recent:
            counts = (0, closed.view.reads_batch, 0, 0, 0, 0, closed.tiles)
            self.take(ShortResult(closed.bases, recent[3], cached.landed, counts), self._requests([place]))

    def _take_columns(self, columns: KeyColumns, places: Sequence[int]) -> None:
        """Finish the requests of some keys. Requests with equal keys get separate values, which callers may change."""
        bases, tails, values = columns.bases, columns.tails, self.values
        finish = self.part.finish_columns
        assert finish is not None  # noqa: S101 - what derives values is no form
        requests = places
        if self._requests_of is not None:
            requests = self._requests(places)
            at = [at for at, place in enumerate(places) for _ in self._requests_of[place]]
            bases, tails = [bases[one] for one in at], [[column[one] for one in at] for column in tails]
        found = finish(bases, tails)
        if self._requests_of is None and len(found) == len(values):
            self.values = found  # type: ignore[assignment]  # every value is known
        else:
            for request, features in zip(requests, found, strict=True):
                values[request] = features
        self._count(columns.counts)

    def _requests(self, places: Sequence[int]) -> Sequence[int]:
        """Return the requests for some keys."""
        of = self._requests_of
        return places if of is None else [request for place in places for request in of[place]]

    def _count(self, counts: ReadCounts) -> None:
        self.counts = tuple(map(sum, zip(self.counts, counts, strict=True)))  # type: ignore[assignment]  # as many


def _ended(read: ShortRead, answers: Sequence[Rows]) -> ShortResult | None:
    """Return the result of a short read; None for the full read, which also reports errors."""
    rows = [one for one in answers if isinstance(one, list)]
    if len(rows) < len(answers):
        read.close()
        return None
    try:
        return read.end(rows)
    except CorruptionError:
        return None
