"""Answers one request for a Join with as little overhead as possible.

Place on the data path: beside `FetchCall`, which answers every request, and `OneKey`. A `OneJoin` begins the short
reads of all parts, whose gets are one call of the store, and ends them. If a part has no short read, a `FetchCall`
goes on with the reads that were begun. A test compares both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millpond.features.answering import Finisher
from millpond.kv import Get, TimedValue
from millpond.serving.answers.one_key import nulls
from millpond.serving.answers.prepared import Prepared
from millpond.serving.counters import Counters
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.messages import FetchResponse
from millpond.serving.reads.short_read import ShortRead, ShortReader, ShortResult


class JoinResult(msgspec.Struct, frozen=True, gc=False):
    """The results of the short reads of all parts.

    Attributes:
        parts: the result of each part.
        is_confirmed: whether all parts are confirmed, see `ShortResult`.
    """

    parts: Sequence[ShortResult]
    is_confirmed: bool


class JoinRead:
    """The short reads of all parts of one request."""

    __slots__ = ("gets", "parts")

    def __init__(self, parts: Sequence[ShortRead]) -> None:
        self.parts = parts
        self.gets: list[Get] = [get for part in parts for get in part.gets]

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> JoinResult | None:
        """End the reads with their rows; None if a part needs the full read.

        Raises:
            CorruptionError: a row does not decode. The full read says which.
        """
        found: list[ShortResult] = []
        is_confirmed, at = True, 0
        for part in self.parts:
            count = len(part.gets)
            result = part.end([answers[at]] if count == 1 else answers[at : at + count])
            if result is None:
                return None
            at += count
            found.append(result)
            if not result.is_confirmed:
                is_confirmed = False
        return JoinResult(found, is_confirmed)

    def close(self) -> None:
        """Abandon the reads that were not ended."""
        for part in self.parts:
            part.close()


class OneJoin:
    """The form that answers one request for a prepared Join; immutable.

    Args:
        prepared: the Join and its wanted features.
        parts: of each part the GroupBy, the reader of its keys, and the function that finishes its features.
        counters: where fetches are counted.

    Attributes:
        parts: the number of parts. A fetch that reads only tails has at most one get for each.
    """

    __slots__ = ("_begins", "_counters", "_features", "_finishes", "_name", "_parts", "parts", "prepared")

    def __init__(
        self, prepared: Prepared, parts: Sequence[tuple[ServedGroup, ShortReader, Finisher]], counters: Counters
    ) -> None:
        self.prepared = prepared
        self._parts = tuple(parts)
        self.parts = len(self._parts)
        self._counters = counters
        self._name = prepared.target.name
        self._begins = tuple(reader.begin for _, reader, _ in parts)
        self._finishes = tuple(zip(prepared.labels, (finish for _, _, finish in parts), strict=True))
        self._features = None if prepared.is_in_order else prepared.features

    def begin(self, keys: Mapping[str, Any], query_ms: int, now_ms: int) -> JoinRead | list[ShortRead | None] | None:
        """Begin the short reads of all parts.

        If some parts have no short read, return a list with None for them and the reads of the others, which a
        `FetchCall` goes on with. Return None if a part's key has a null.

        Raises:
            DataError: a key is missing or not of its declared type.
        """
        encoded = self.prepared.encoded_keys(keys)
        if None in encoded:
            return None
        begun: list[Any] = []
        is_short = True
        try:
            for key, begin in zip(encoded, self._begins, strict=True):
                read = begin(key, query_ms, now_ms)  # type: ignore[arg-type]  # none is None, see above
                begun.append(read)
                if read is None:
                    is_short = False
        except BaseException:
            for read in begun:
                if read is not None:
                    read.close()
            raise
        return JoinRead(begun) if is_short else begun

    def unconfirmed(self, found: JoinResult) -> list[tuple[ServedGroup, ShortResult]]:
        """Return the parts that may be used only if their batch is still served."""
        return [
            (group, result)
            for (group, _, _), result in zip(self._parts, found.parts, strict=True)
            if not result.is_confirmed
        ]

    def answer(self, keys: Mapping[str, Any], query_ms: int, found: JoinResult, kv_calls: int) -> FetchResponse:
        """Make the answer, and count it.

        Args:
            keys: the keys of the request.
            query_ms: the query time.
            found: the results of the short reads.
            kv_calls: how many calls of the store they took.
        """
        features: dict[str, Any] = {}
        ends: dict[str, int | None] = {}
        for (label, finish), result in zip(self._finishes, found.parts, strict=True):
            features.update(finish(result.bases, result.tails))
            ends[label] = result.landed.batch_end_ms
        if self._features is not None:
            features = {name: features[name] for name in self._features}
        states = {} if all(features.values()) else nulls(features)
        null = len(states)
        self._counters.one_join(kv_calls, [result.counts for result in found.parts], null, len(features) - null)
        return FetchResponse(self._name, keys, query_ms, features, states, {}, ends)


def one_join(prepared: Prepared, counters: Counters) -> OneJoin | None:
    """Return the form of a prepared Join; None if it derives values, or a part has no short reads."""
    if prepared.single is not None or prepared.derived is not None or not prepared.parts:
        return None
    parts = []
    for part in prepared.parts:
        if part.reader is None or part.finish is None:
            return None
        parts.append((part.group, part.reader, part.finish))
    return OneJoin(prepared, parts, counters)
