"""One key of one GroupBy: the request that is asked most, with the least around its work.

Place on the data path: beside `FetchCall`, which answers everything. A `OneKey` goes the same short ways,
for one key without context, derivations or explanation. A test compares both.
"""

from collections.abc import Mapping
from typing import Any

from millpond.features.answering import Finisher
from millpond.serving.counters import Counters
from millpond.serving.messages import FetchResponse, ValueState
from millpond.serving.prepared import Prepared
from millpond.serving.served_group import ServedGroup
from millpond.serving.short_read import ShortRead, ShortReader, ShortResult


class OneKey:
    """A prepared GroupBy of which one key is asked for; immutable.

    Args:
        prepared: the GroupBy and the features wanted of it.
        group: the GroupBy.
        reader: the short way to its keys.
        finish: ends an answer.
        counters: where fetches are counted.
    """

    __slots__ = ("_counters", "_name", "encode", "encode_many", "finish", "group", "prepared", "reader")

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
        self.encode = group.plan.encode_key
        self.encode_many = group.plan.encode_many_keys

    def begin(self, keys: Mapping[str, Any], query_ms: int, now_ms: int) -> ShortRead | None:
        """Begin the short read of a key; None if the long way is to be taken.

        Raises:
            DataError: the key is not of its declared type.
        """
        key = self.encode(keys)
        return None if key is None else self.reader.begin(key, query_ms, now_ms)

    def unconfirmed(self, found: ShortResult) -> list[tuple[ServedGroup, ShortResult]]:
        """Give what may be used only if its batch is still served."""
        return [] if found.is_confirmed else [(self.group, found)]

    def answer(self, keys: Mapping[str, Any], query_ms: int, found: ShortResult, kv_calls: int) -> FetchResponse:
        """Give the answer, and count it.

        Args:
            keys: as in the request.
            query_ms: the time.
            found: what the short read found.
            kv_calls: how many calls of the store it took.
        """
        features = self.finish(found.bases, found.tails)
        states = nulls(features) if None in features.values() else {}
        null = len(states)
        self._counters.one_key(kv_calls, found.counts, null, len(features) - null)
        return FetchResponse(self._name, keys, query_ms, features, states, {}, found.landed.batch_end_ms)


def nulls(features: Mapping[str, Any]) -> dict[str, ValueState]:
    """Give the states of the values that are null."""
    return {name: "null" for name, value in features.items() if value is None}


def one_key(prepared: Prepared, counters: Counters) -> OneKey | None:
    """Give the form for one key of a prepared target; None if it is a Join, derives values, or has no short way."""
    part = prepared.single
    if part is None or part.reader is None or part.finish is None:
        return None
    return OneKey(prepared, part.group, part.reader, part.finish, counters)
