"""A harness: runs one keyed operator record by record, for tests and benchmarks. No Spark.

It takes the place of a stream. It gives records to the operator, key by key, advances both times, fires timers, drops
late records, and makes state durable. It does each of these only when the caller says so. So a test determines exactly
what happens and when.

Times and lateness are those of a stream of micro-batches, where an advance of the watermark ends a batch. A later
record is late if its time is at or before that watermark. Timers up to the watermark fire during the advance, in the
order of time. A timer that a handler sets in the past fires in the next advance, and a timer is deleted after its
handler ran.

Delivery: each record once, in the order given. Freshness: a call returns when its output is there. Recovery: from
checkpoints, by `restore`; the caller gives the records since the last one again.

Invariant: an operator that raises leaves the harness unusable, since the state may hold half of what the call did. Then
nothing is processed and nothing committed until `rollback` or `restore`. As on Spark, a batch fails whole, and its
caller decides what comes next. A record without a usable key or time is rejected before the operator sees it, so the
harness can go on without that record.
"""

import heapq
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import repeat
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.metrics import NO_METRICS, Recorder
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint import CheckpointStats
from millpond.state.operator.operator import KeyedOperator, TimeDomain, Times, check_makes_operators
from millpond.state.options.operator import StateOptions
from millpond.state.testing.checkpoints import BegunCheckpoint, Restoration, StorageOfShard
from millpond.state.testing.sharded_operator import ShardedOperator
from millpond.state.types.key_types import key_schema
from millpond.state.types.times import checked_ms

T = TypeVar("T")


class _Condition(Enum):
    """What can be done with the state. The value is the message for a call that is not possible."""

    USABLE = ""
    FAILED = (
        "the operator failed before, and its state may hold half of what the failing call did. Call rollback() to go "
        "back to the last checkpoint, or restore()."
    )
    LOST = "the operator's state was lost. Call restore() to go on from a checkpoint."
    CLOSED = "the harness is closed, and its state was freed. Make a new one; restore() gives it a checkpoint's state."


class _Committed(NamedTuple):
    """What a rollback goes back to, beside the state."""

    watermark_ms: int
    processing_ms: int
    output: int
    late_records: int


class Harness:
    """One keyed operator, its state and its time.

    Args:
        operator: makes the operator. Called once per shard, and again at every restore.
        key: returns the key of a record.
        key_type: the type of that key: a Python type, a tuple of types, or an Arrow schema.
        time: returns the event time of a record, in ms. Without it a record has one only if `process` is given it.
        shards: how many shards the operator runs as.
        max_parallelism: how many key groups there are. It never changes; at least 128 unless given.
        options: where state is held and checkpoints go, as option strings: `{"state.backend.type": "rocksdb"}`.
        backend: makes the backend of a range of key groups, in place of the options' backend.
        storage: where checkpoints go: a path or URI, or a function that opens the storage of a shard. By default the
            options' storage, else a temporary folder that is removed when the harness is closed.
        recorder: counts the hits of the cache that the options ask for.

    Raises:
        OptionError: an argument is wrong, such as an operator instance in place of its class, or one without a method.

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
        max_parallelism: int | None = None,
        options: Mapping[str, Any] | StateOptions | None = None,
        backend: Callable[[range], KeyedStateBackend] | None = None,
        storage: str | StorageOfShard | None = None,
        recorder: Recorder = NO_METRICS,
    ) -> None:
        check_makes_operators(operator)
        self._key = key
        self._time = time
        self._times = Times()
        self._shards = ShardedOperator(
            operator,
            key_schema(key_type, "key_type"),
            self._times,
            shards=shards,
            max_parallelism=max_parallelism,
            options=StateOptions.parse(options or {}),
            backend=backend,
            storage=storage,
            recorder=recorder,
        )
        self._output: list[Any] = []
        self.late_records = 0
        """How many records were dropped because the watermark had passed them. Undone records do not count."""
        self._committed = self._now()
        self._condition = _Condition.USABLE

    def _now(self) -> _Committed:
        times = self._times
        return _Committed(times.watermark_ms, times.processing_ms, len(self._output), self.late_records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def watermark_ms(self) -> int:
        """The watermark; -1 before the first one."""
        return self._times.watermark_ms

    @property
    def max_parallelism(self) -> int:
        """How many key groups there are."""
        return self._shards.max_parallelism

    @property
    def processing_ms(self) -> int:
        """The processing time."""
        return self._times.processing_ms

    def process(self, record: Any, at_ms: int | None = None) -> None:
        """Give the operator one record, unless it is late. `at_ms` is its event time, if `time` does not give it.

        Raises:
            DataError: the record has no usable key or time. The harness goes on without it.
        """
        if at_ms is None:
            self._run((record,))
        elif at_ms <= self._times.watermark_ms:
            self.late_records += 1
        else:
            self._times.at_ms = at_ms
            self._run((record,), timed=True)

    def process_many(self, records: Iterable[Any]) -> None:
        """Give the operator records one by one, except those that are late.

        Raises:
            DataError: a record has no usable key or time. Those before it were processed. Give those after it again, or
                use an iterator, which is then at the next record.
        """
        self._run(records)

    def _run(self, records: Iterable[Any], *, timed: bool = False) -> None:
        self._check_usable()
        if self._time is not None and not timed:
            records = self._in_time(records, self._time)
        # The hot path: only local variables; a known key costs one look-up; a key group is entered when it changes.
        key_of, places, collect = self._key, self._shards.places, self._output.extend
        remembered, find = places.remembered, places.find
        self._condition = _Condition.FAILED
        for record in records:
            try:
                given = key_of(record)
            except Exception as error:
                raise self._refused(record, "the key function", error) from error
            try:
                shard, key_group, key, given = remembered[given]
            except (KeyError, TypeError):
                shard, key_group, key, given = self._found(find, given, record)
            if shard.entered != key_group:
                shard.enter(key_group)
            shard.key_context.key = key
            output = shard.process(given, record, shard.context)
            if output is not None:
                collect(output)
        self._condition = _Condition.USABLE
        self._times.at_ms = None

    def _found(self, find: Callable[[Any], T], given: Any, record: Any) -> T:
        try:
            return find(given)
        except DataError as error:
            self._spare_record()
            raise DataError(f"{error} The record is {reprlib.repr(record)}.") from error

    def _refused(self, record: Any, function: str, error: Exception) -> DataError:
        """Return the error for a record whose key or time cannot be determined."""
        self._spare_record()
        return DataError(
            f"record {reprlib.repr(record)}: {function} of the harness raised {type(error).__name__}: {error}. The "
            "record was not processed, and the harness can go on."
        )

    def _spare_record(self) -> None:
        """Keep the harness usable: the operator has not seen this record, so the state is whole."""
        self._condition = _Condition.USABLE
        self._times.at_ms = None

    def _in_time(self, records: Iterable[Any], time: Callable[[Any], int | None]) -> Iterator[Any]:
        times = self._times
        for record in records:
            try:
                at_ms = times.at_ms = time(record)
            except Exception as error:
                raise self._refused(record, "the time function", error) from error
            # A record without an event time is never late, as in Spark.
            if at_ms is None or at_ms > times.watermark_ms:
                yield record
            else:
                self.late_records += 1

    def advance_watermark(self, watermark_ms: int) -> None:
        """Declare that no record of this event time or before is to come, and fire the timers due by then."""
        watermark_ms = self._moved("watermark", self._times.watermark_ms, watermark_ms)
        self._times.watermark_ms = watermark_ms
        self._fire(TimeDomain.EVENT, watermark_ms)

    def advance_processing_time(self, processing_ms: int) -> None:
        """Advance the processing time, by which values with a TTL expire, and fire the timers due by then."""
        processing_ms = self._moved("processing time", self._times.processing_ms, processing_ms)
        self._times.processing_ms = processing_ms
        self._shards.set_now()
        self._fire(TimeDomain.PROCESSING, processing_ms)

    def _fire(self, domain: TimeDomain, limit_ms: int) -> None:
        self._check_usable()
        self._condition = _Condition.FAILED
        self._times.at_ms = None
        # Each shard determines what is due now, and gives it one by one: together it may not fit into memory.
        due = [zip(shard.due(domain, limit_ms), repeat(shard)) for shard in self._shards.shards]
        for timer, shard in heapq.merge(*due, key=lambda timer_and_shard: timer_and_shard[0].expiry_ms):
            self._output.extend(shard.fire(domain, timer))
        self._condition = _Condition.USABLE

    def take_output(self) -> list[Any]:
        """Return the operator's output since the last call."""
        output = self._output.copy()
        self._output.clear()
        self._committed = self._committed._replace(output=0)
        return output

    def state(self, name: str) -> Mapping[Any, Any]:
        """Return the state of every key as it is now, for inspection: by key, and by map key in a map.

        Keys and values are as the operator knows them, without expired values.

        Raises:
            OptionError: there is no such state, the state was lost, or the harness is closed.
        """
        self._check_held()
        return self._shards.state(name)

    def temperatures(self) -> pa.Table:
        """Return where each key group's states are, how large and how busy: a map for a heap that spills.

        There is one row per key group and state: `key_group`, `state`, `place` ("heap" or "disk"), `path` (of its spill
        file), `bytes` and `rate` (requests, each of which counts half after a minute).

        Raises:
            OptionError: the backend is not `spillable`.
        """
        self._check_held()
        return self._shards.temperatures()

    def checkpoint(self, *, full: bool = False) -> list[CheckpointStats]:
        """Make the state durable. Return the cost by shard. `full` writes all of it, not only what changed."""
        return self.begin_checkpoint(full=full).write()

    def begin_checkpoint(self, *, full: bool = False) -> BegunCheckpoint:
        """Do the blocking part of a checkpoint. Its `write` may run in another thread while records flow."""
        self._check_usable()
        checkpoints = self._shards.prepared_checkpoints()
        self._condition = _Condition.LOST
        begun = checkpoints.begin(self._times.watermark_ms, full=full)
        self._condition = _Condition.USABLE
        for shard in self._shards.shards:
            shard.committed()
        self._committed = self._now()
        checkpoints.remove_expired(begun)
        return begun

    def rollback(self) -> None:
        """Go back to where the last checkpoint began: state, timers, both times, late records, untaken output.

        Before the first checkpoint, go back to where the harness was opened, restored or rescaled.
        """
        self._check_held()
        self._shards.rollback()
        self._times.watermark_ms, self._times.processing_ms, output, self.late_records = self._committed
        self._times.at_ms = None
        self._shards.set_now()
        del self._output[output:]
        self._condition = _Condition.USABLE

    def crash(self) -> None:
        """Lose what is in memory, as a kill would: state, untaken output, checkpoints that are not written yet."""
        self._check_open()
        self._condition = _Condition.LOST
        self._shards.drop()
        self._output.clear()

    def restore(self, version: int | None = None, *, fall_back: bool = False) -> Restoration:
        """Go on from a stored checkpoint, by default the newest.

        What is in memory is lost, unless there is no such checkpoint. The count of late records starts at 0.

        Watermark and processing time are the checkpoint's. Advance the processing time to the present: then values that
        expired since are gone, and timers that came due since fire. If a TTL was added, lives begin at the checkpoint's
        time. A checkpoint that is too old to have a processing time leaves the harness's unchanged.

        Raises:
            OptionError: there is no such checkpoint, or its keys, shards or states differ from the declared ones.
            CorruptionError: it is damaged. With `fall_back` the newest whole one is taken, and the result says so.
        """
        self._check_open()
        self._shards.look_for(version)
        self.crash()
        done = self._shards.restore(version, fall_back=fall_back)
        self.late_records = 0
        self._go_on()
        return done

    def _go_on(self) -> None:
        """Go on with new shards: their state is what a rollback goes back to."""
        self._committed = self._now()
        self._condition = _Condition.USABLE

    def rescale(self, shards: int, *, storage: str | StorageOfShard | None = None) -> None:
        """Go on with another number of shards. Every key's state and timers follow its key group.

        Checkpoints of the old shards cannot be used by the new ones. New checkpoints go to `storage`, which must be
        empty, or to a temporary folder. The first one holds everything.
        """
        self._check_usable()
        self._shards.rescale(shards, storage)
        self._go_on()

    def savepoint(self, location: str) -> None:
        """Write all state, as it is now, to an empty folder: a path or URI. Any number of shards can read it."""
        self._check_usable()
        self._shards.savepoint(location)

    def restore_savepoint(
        self, location: str, *, shards: int | None = None, storage: str | StorageOfShard | None = None
    ) -> None:
        """Go on from a savepoint, with the present number of shards or another. What is in memory is lost.

        Watermark, processing time and maximum parallelism are the savepoint's. Checkpoints go to `storage`, which must
        be empty, or to a temporary folder.

        Raises:
            OptionError: its keys or states differ from the declared ones.
            CorruptionError: it is torn, incomplete or altered. The message names the file.
        """
        self._check_open()
        self._shards.restore_savepoint(location, shards, storage)
        self._output.clear()
        self.late_records = 0
        self._go_on()

    def close(self) -> None:
        """Free the state, and remove temporary files. Idempotent."""
        self._condition = _Condition.CLOSED
        self._output.clear()
        self._shards.close()

    def _check_usable(self) -> None:
        self._refuse(_Condition.FAILED, _Condition.LOST, _Condition.CLOSED)

    def _check_held(self) -> None:
        """Raise an OptionError unless there is state, even if it holds half of what a failing call did."""
        self._refuse(_Condition.LOST, _Condition.CLOSED)

    def _check_open(self) -> None:
        self._refuse(_Condition.CLOSED)

    def _refuse(self, *conditions: _Condition) -> None:
        if self._condition in conditions:
            raise OptionError(self._condition.value)

    @staticmethod
    def _moved(what: str, now_ms: int, wanted_ms: int) -> int:
        wanted_ms = checked_ms(wanted_ms, f"the {what}")
        if wanted_ms < now_ms:
            raise OptionError(f"the {what} is {now_ms} ms and cannot go back to {wanted_ms} ms. Give a later time.")
        return wanted_ms
