"""A harness: drives one keyed operator record by record, for tests and benchmarks. No Spark.

It stands where a stream would: it gives records to the operator, key by key, moves both times, fires
timers, drops what is late, and makes state durable. All of it is done when the caller says so and
nothing behind its back, so a test says exactly what happens and when.

Times and lateness are those of a stream of micro-batches, where an advance of the watermark ends a
batch: what comes after it is late if its time is at or before that watermark; timers up to it fire
during the advance, in the order of time. A timer that a handler sets in the past fires in the next
advance, and one is deleted after its handler ran.

Invariant: user code that raises leaves the harness *failed*, since the state may hold half of what it
did. Then nothing is processed and nothing committed until `rollback` or `restore`; as on Spark, a
batch fails whole, and who runs it decides what comes next.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from millpond.errors import OptionError
from millpond.state.backend import KeyedStateBackend
from millpond.state.heap import HeapBackend
from millpond.state.key_places import KeyPlaces, key_schema
from millpond.state.keygroups import key_groups_of, max_parallelism
from millpond.state.operator import KeyedOperator, TimeDomain, Times
from millpond.state.operator_shard import OperatorShard


class Harness:
    """One keyed operator, its state and its time.

    Args:
        operator: makes the operator; called once a shard, and again at every restore.
        key: the key of a record.
        key_type: of what `key` gives: a Python type, a tuple of them, or an Arrow schema.
        time: the event time of a record, in ms; without it a record has one only if `process` is told.
        shards: how many shards the operator runs as.
        backend: makes the backend of a range of key groups.

    >>> class Count:
    ...     def open(self, states):
    ...         self.seen = states.value("seen", int, default=0)
    ...
    ...     def process(self, key, record, context):
    ...         self.seen.update(self.seen.get() + 1)
    ...         yield key, self.seen.get()
    >>> harness = Harness(Count, key=lambda record: record[0], key_type=str)
    >>> harness.process_many([("ann", 5), ("bob", 1), ("ann", 7)])
    >>> harness.take_output()
    [('ann', 1), ('bob', 1), ('ann', 2)]
    """

    def __init__(
        self,
        operator: Callable[[], KeyedOperator],
        *,
        key: Callable[[Any], Any],
        key_type: Any,
        time: Callable[[Any], int | None] | None = None,
        shards: int = 1,
        backend: Callable[[range], KeyedStateBackend] = HeapBackend,
    ) -> None:
        self._key = key
        self._time = time
        self._max_parallelism = max_parallelism(shards)
        self._times = Times()
        self._shards = []
        for number in range(shards):
            groups = key_groups_of(number, shards, self._max_parallelism)
            self._shards.append(OperatorShard(operator(), backend(groups), groups, self._times))
        self._places = KeyPlaces(key_schema(key_type), self._shards, self._max_parallelism)
        self._output: list[Any] = []
        self._failed = False
        self.late_records = 0
        """How many records were dropped because the watermark had passed them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def watermark_ms(self) -> int:
        """The watermark; -1 before the first."""
        return self._times.watermark_ms

    @property
    def processing_ms(self) -> int:
        """The processing time."""
        return self._times.processing_ms

    def process(self, record: Any, at_ms: int | None = None) -> None:
        """Give the operator one record, unless it is late. `at_ms` is its event time where `time` does not tell."""
        if at_ms is None:
            self._run((record,))
        elif at_ms <= self._times.watermark_ms:
            self.late_records += 1
        else:
            self._times.at_ms = at_ms
            self._run((record,), timed=True)

    def process_many(self, records: Iterable[Any]) -> None:
        """Give the operator records, one after the other, but those that are late."""
        self._run(records)

    def _run(self, records: Iterable[Any], *, timed: bool = False) -> None:
        self._check_whole()
        if self._time is not None and not timed:
            records = self._in_time(records, self._time)
        # The hot path: everything is at hand, a known key costs one look-up, a key group is entered when it changes.
        key_of, places, find, collect = self._key, self._places.remembered, self._places.find, self._output.extend
        self._failed = True
        for record in records:
            given = key_of(record)
            try:
                shard, key_group, key, given = places[given]
            except (KeyError, TypeError):
                shard, key_group, key, given = find(given)
            if shard.entered != key_group:
                shard.enter(key_group)
            shard.key_context.key = key
            output = shard.process(given, record, shard.context)
            if output is not None:
                collect(output)
        self._failed = False
        self._times.at_ms = None

    def _in_time(self, records: Iterable[Any], time: Callable[[Any], int | None]) -> Iterator[Any]:
        times = self._times
        for record in records:
            at_ms = times.at_ms = time(record)
            # A record without an event time is never late, as in Spark.
            if at_ms is None or at_ms > times.watermark_ms:
                yield record
            else:
                self.late_records += 1

    def advance_watermark(self, watermark_ms: int) -> None:
        """Say that no record of this event time or before is to come, and fire the timers that waited for it."""
        self._check_forward("watermark", self._times.watermark_ms, watermark_ms)
        self._times.watermark_ms = watermark_ms
        self._fire(TimeDomain.EVENT, watermark_ms)

    def advance_processing_time(self, processing_ms: int) -> None:
        """Move the processing time, by which values with a TTL expire, and fire the timers that waited for it."""
        self._check_forward("processing time", self._times.processing_ms, processing_ms)
        self._times.processing_ms = processing_ms
        for shard in self._shards:
            shard.key_context.now_ms = processing_ms
        self._fire(TimeDomain.PROCESSING, processing_ms)

    def _fire(self, domain: TimeDomain, limit_ms: int) -> None:
        self._check_whole()
        self._failed = True
        due = ([(timer, shard) for timer in shard.due(domain, limit_ms)] for shard in self._shards)
        for timer, shard in heapq.merge(*due, key=lambda timer_and_shard: timer_and_shard[0].expiry_ms):
            self._output.extend(shard.fire(domain, timer))
        self._failed = False

    def take_output(self) -> list[Any]:
        """What the operator has given since this was last called."""
        output = self._output.copy()
        self._output.clear()
        return output

    def state(self, name: str) -> Mapping[Any, Any]:
        """The state of every key as it is now, for a look at it: by key, and by map key within a map.

        Keys and values are as the operator knows them; what has expired is left out.
        """
        found: dict[Any, Any] = {}
        for shard in self._shards:
            found |= shard.state(name)
        return found

    def close(self) -> None:
        """Free the state. Idempotent."""
        for shard in self._shards:
            shard.close()

    def _check_whole(self) -> None:
        if self._failed:
            raise OptionError(
                "the operator failed before, and its state may hold half of what the failing call did. Call rollback() "
                "to go back to the last checkpoint, or restore()."
            )

    @staticmethod
    def _check_forward(what: str, now_ms: int, wanted_ms: int) -> None:
        if wanted_ms < now_ms:
            raise OptionError(f"the {what} is {now_ms} ms and cannot go back to {wanted_ms} ms. Give a later time.")
