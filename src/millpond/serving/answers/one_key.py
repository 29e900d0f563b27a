"""Answers one request for one key of a GroupBy, the most frequent request, with as little overhead as possible.

Place on the data path: beside `FetchCall`, which answers every request. A `OneKey` uses the same short reads, for one
key without context, derivations or explanation. A test compares both.
"""

from collections.abc import Mapping
from typing import Any

from millpond.features.answering import Finisher
from millpond.serving.answers.prepared import Prepared
from millpond.serving.counters import Counters
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.messages import FetchResponse, ValueState
from millpond.serving.reads.short_read import ShortRead, ShortReader, ShortResult


class OneKey:
    """The form that answers one request for a prepared GroupBy; immutable.

    Args:
        prepared: the GroupBy and its wanted features.
        group: the GroupBy.
        reader: begins the short reads of its keys.
        finish: computes the features from bases and tails.
        counters: where fetches are counted.

    Attributes:
        parts: 1, see `OneJoin`.
    """

    __slots__ = ("_counters", "_name", "encode", "encode_many", "finish", "group", "parts", "prepared", "reader")

    def __init__(
        self,
        prepared: Prepared,
        group: ServedGroup,
        reader: ShortReader,
        finish: Finisher,
        counters: Counters,
    ) -> None:
        self.prepared = prepared
        self.group = group
        self.reader = reader
        self.finish = finish
        self._counters = counters
        self._name = prepared.target.name
        self.parts = 1
        self.encode = group.plan.encode_named_key
        self.encode_many = group.plan.encode_many_keys

    def begin(self, keys: Mapping[str, Any], query_ms: int, now_ms: int) -> ShortRead | None:
        """Begin the short read of a key; None if the key needs the full read, or has a null.

        Raises:
            DataError: the key is not of its declared type.
        """
        key = self.encode(keys)
        return None if key is None else self.reader.begin(key, query_ms, now_ms)

    def unconfirmed(self, found: ShortResult) -> list[tuple[ServedGroup, ShortResult]]:
        """Return the result if it may be used only if its batch is still served."""
        return [] if found.is_confirmed else [(self.group, found)]

    def answer(self, keys: Mapping[str, Any], query_ms: int, found: ShortResult, kv_calls: int) -> FetchResponse:
        """Make the answer, and count it.

        Args:
            keys: the keys of the request.
            query_ms: the query time.
            found: the result of the short read.
            kv_calls: how many calls of the store it took.
        """
        features = self.finish(found.bases, found.tails)
        states = {} if all(features.values()) else nulls(features)
        null = len(states)
        self._counters.one_key(kv_calls, found.counts, null, len(features) - null)
        return FetchResponse(self._name, keys, query_ms, features, states, {}, found.landed.batch_end_ms)


def nulls(features: Mapping[str, Any]) -> dict[str, ValueState]:
    """Return the state ``null`` for each feature whose value is null.

    If every value is true, none is null. That is much faster to check than to compare each with None.

    >>> nulls({"count_1h": 3, "sum_1h": 0, "max_1h": None})
    {'max_1h': 'null'}
    """
    return {name: "null" for name, value in features.items() if value is None}


def one_key(prepared: Prepared, counters: Counters) -> OneKey | None:
    """Return the form of a prepared GroupBy; None for a Join, for derived values, and without short reads."""
    part = prepared.single
    if part is None or part.reader is None or part.finish is None:
        return None
    return OneKey(prepared, part.group, part.reader, part.finish, counters)
