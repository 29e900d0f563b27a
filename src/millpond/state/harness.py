"""A harness: drives one keyed operator record by record, for tests and benchmarks. No Spark.

It stands where a stream would: it gives records to the operator, key by key, moves both times, fires
timers, drops what is late, and makes state durable. All of it is done when the caller says so and
nothing behind its back, so a test says exactly what happens and when.

Times and lateness are those of a stream of micro-batches, where an advance of the watermark ends a
batch: what comes after it is late if its time is at or before that watermark; timers up to it fire
during the advance, in the order of time. A timer that a handler sets in the past fires in the next
advance, and one is deleted after its handler ran.

Delivery: each record once, in the order given. Freshness: a call returns when its output is there.
Recovery: from checkpoints, by `restore`; records since the last one are the caller's to give again.

Invariant: user code that raises leaves the harness unusable, since the state may hold half of what it
did. Then nothing is processed and nothing committed until `rollback` or `restore`; as on Spark, a
batch fails whole, and who runs it decides what comes next.
"""

import heapq
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millpond.errors import OptionError
from millpond.metrics import NO_METRICS, Recorder
from millpond.state.backend import KeyedStateBackend
from millpond.state.checkpoint import CheckpointStats, FileStorage
from millpond.state.checkpoint.savepoint import Savepoint, write_savepoint
from millpond.state.key_places import KeyPlaces
from millpond.state.key_types import key_schema
from millpond.state.keygroups import key_groups_of, max_parallelism
from millpond.state.operator import KeyedOperator, TimeDomain, Times
from millpond.state.operator_checkpoints import (
    BegunCheckpoint,
    OperatorCheckpoints,
    Restoration,
    StorageOfShard,
    restored,
    restored_from_savepoint,
    saved,
)
from millpond.state.operator_shard import OperatorShard
from millpond.state.options import StateOptions
from millpond.state.registry import open_backend

_MOST_KEY_GROUPS = 1 << 15


class Harness:
    """One keyed operator, its state and its time.

    Args:
        operator: makes the operator; called once a shard, and again at every restore.
        key: the key of a record.
        key_type: of what `key` gives: a Python type, a tuple of them, or an Arrow schema.
        time: the event time of a record, in ms; without it a record has one only if `process` is told.
        shards: how many shards the operator runs as.
        max_parallelism: how many key groups there are, fixed for ever; at least 128 unless given.
        options: where state is held and checkpoints go, as option strings: `{"state.backend.type": "rocksdb"}`.
        backend: makes the backend of a range of key groups, instead of what the options say.
        storage: where checkpoints go: a path or URI, or what opens the storage of a shard; the options' unless
            given, and without either a temporary folder that goes when the harness is closed.
        recorder: hears of the hits of the cache that the options ask for.

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
        self._operator = operator
        self._key = key
        self._key_schema = key_schema(key_type, "key_type")
        self._time = time
        self._max_parallelism = _parallelism(shards, max_parallelism)
        self._options = StateOptions.parse(options or {})
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-harness-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._backend = backend or self._open_backend
        self._recorder = recorder
        self._opened = 0
        place = storage or self._options.checkpoint_storage
        self._storage_of = _storage_of(place or f"{self._folder}/checkpoints")
        self._checkpoints: OperatorCheckpoints | None = None
        self._moved = False
        self._times = Times()
        self._committed_times = (self._times.watermark_ms, self._times.processing_ms)
        self._output: list[Any] = []
        self._committed_output = 0
        self._unusable = ""
        self.late_records = 0
        """How many records were dropped because the watermark had passed them."""
        self._use(self._open_shards(shards, self._max_parallelism))

    def _open_backend(self, key_groups: range) -> KeyedStateBackend:
        self._opened += 1
        # With `state.backend.rocksdb.local-dir` only the name is taken, so it is nobody else's.
        folder = self._folder / f"{self._folder.name}-{self._opened}"
        return open_backend(self._options, key_groups, folder, self._recorder)

    def _open_shards(self, shards: int, max_parallelism: int) -> list[OperatorShard]:
        opened: list[OperatorShard] = []
        try:
            for number in range(shards):
                groups = key_groups_of(number, shards, max_parallelism)
                opened.append(OperatorShard(self._operator, self._backend(groups), groups, self._times))
        except BaseException:
            for shard in opened:
                shard.close()
            raise
        return opened

    def _use(self, shards: Sequence[OperatorShard]) -> None:
        self._shards = shards
        self._places = KeyPlaces(self._key_schema, list(shards), self._max_parallelism)
        self._set_now()
        self._unusable = ""

    def _set_now(self) -> None:
        for shard in self._shards:
            shard.key_context.now_ms = self._times.processing_ms

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
    def max_parallelism(self) -> int:
        """How many key groups there are."""
        return self._max_parallelism

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
        self._check_usable()
        if self._time is not None and not timed:
            records = self._in_time(records, self._time)
        # The hot path: everything is at hand, a known key costs one look-up, a key group is entered when it changes.
        key_of, places, find, collect = self._key, self._places.remembered, self._places.find, self._output.extend
        self._unusable = _FAILED
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
        self._unusable = ""
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
        self._set_now()
        self._fire(TimeDomain.PROCESSING, processing_ms)

    def _fire(self, domain: TimeDomain, limit_ms: int) -> None:
        self._check_usable()
        self._unusable = _FAILED
        self._times.at_ms = None
        due = ([(timer, shard) for timer in shard.due(domain, limit_ms)] for shard in self._shards)
        for timer, shard in heapq.merge(*due, key=lambda timer_and_shard: timer_and_shard[0].expiry_ms):
            self._output.extend(shard.fire(domain, timer))
        self._unusable = ""

    def take_output(self) -> list[Any]:
        """What the operator has given since this was last called."""
        output = self._output.copy()
        self._output.clear()
        self._committed_output = 0
        return output

    def state(self, name: str) -> Mapping[Any, Any]:
        """The state of every key as it is now, for a look at it: by key, and by map key within a map.

        Keys and values are as the operator knows them; what has expired is left out.
        """
        found: dict[Any, Any] = {}
        for shard in self._shards:
            found |= shard.state(name)
        return found

    def checkpoint(self, *, full: bool = False) -> list[CheckpointStats]:
        """Make the state durable; what it cost, by shard. `full` writes all of it, not only what changed."""
        return self.begin_checkpoint(full=full).write()

    def begin_checkpoint(self, *, full: bool = False) -> BegunCheckpoint:
        """The blocking part of a checkpoint. Its `write` may run in another thread while records flow."""
        self._check_usable()
        if self._checkpoints is None:
            self._checkpoints = OperatorCheckpoints.born(
                self._shards, self._storage_of, self._max_parallelism, self._key_schema, moved=self._moved
            )
        # What cannot be written is said while all shards still stand in one version, so that it can be tried again.
        for shard in self._shards:
            shard.backend.write_dirty()
        self._unusable = _CRASHED
        begun = self._checkpoints.begin(self._times.watermark_ms, full=full)
        self._unusable = ""
        for shard in self._shards:
            shard.committed()
        self._committed_times = (self._times.watermark_ms, self._times.processing_ms)
        self._committed_output = len(self._output)
        self._checkpoints.remove_expired(begun)
        return begun

    def rollback(self) -> None:
        """Go back to where the last checkpoint was begun: state, timers, both times, output not taken since.

        Before the first checkpoint that is where the harness was opened, restored or rescaled.
        """
        if self._unusable == _CRASHED:
            self._check_usable()
        for shard in self._shards:
            shard.backend.rollback()
            shard.undone()
        self._times.watermark_ms, self._times.processing_ms = self._committed_times
        self._times.at_ms = None
        self._set_now()
        del self._output[self._committed_output :]
        self._unusable = ""

    def crash(self) -> None:
        """Lose what is in memory, as a kill would: state, untaken output, checkpoints that are not written yet."""
        if self._checkpoints is not None:
            self._checkpoints.abort_all()
        for shard in self._shards:
            shard.close()
        self._output.clear()
        self._committed_output = 0
        self._unusable = _CRASHED

    def restore(self, version: int | None = None, *, fall_back: bool = False) -> Restoration:
        """Go on from a stored checkpoint, the newest unless another is asked for. What is in memory is lost.

        The watermark is the checkpoint's. The processing time is in no checkpoint and goes on, in a new harness from
        0: until it is advanced to where it was, nothing expires and no timer of that time fires, neither of them
        early. Where a ttl was added lives begin at the restore, so advance it before.

        Raises:
            OptionError: there is no such checkpoint, or its keys, shards or states are others than declared.
            CorruptionError: it is damaged. With `fall_back` the newest whole one is taken, and the result says so.
        """
        self.crash()
        shards = len(self._shards)
        storages = [self._storage_of(number) for number in range(shards)]
        opened, self._checkpoints, done = restored(
            lambda: self._open_shards(shards, self._max_parallelism),
            storages,
            self._key_schema,
            version,
            fall_back=fall_back,
            now_ms=self._times.processing_ms,
        )
        self._times.watermark_ms = done.watermark_ms
        self._committed_times = (done.watermark_ms, self._times.processing_ms)
        self._use(opened)
        return done

    def rescale(self, shards: int, *, storage: str | StorageOfShard | None = None) -> None:
        """Go on with another number of shards; every key's state and timers follow its key group.

        Checkpoints of the old shards are of no use to the new ones: new ones go to `storage`, a place that is
        empty, or to a temporary folder. The first holds everything.
        """
        self._check_usable()
        _parallelism(shards, self._max_parallelism)
        opened = self._open_shards(shards, self._max_parallelism)
        try:
            for shard in self._shards:
                shard.move_state(opened)
        except BaseException:
            for shard in opened:
                shard.close()
            raise
        output = self._output.copy()
        self.crash()
        self._output.extend(output)
        self._begin_anew(opened, storage)

    def _begin_anew(self, opened: Sequence[OperatorShard], storage: str | StorageOfShard | None) -> None:
        """Go on with shards into which state was moved."""
        self._committed_output = len(self._output)
        self._committed_times = (self._times.watermark_ms, self._times.processing_ms)
        self._opened += 1
        self._storage_of = _storage_of(storage or f"{self._folder}/checkpoints-{self._opened}")
        self._checkpoints, self._moved = None, True
        self._use(opened)

    def savepoint(self, location: str) -> None:
        """Write all state, as it is now, to an empty folder: a path or URI. It is read by any number of shards."""
        self._check_usable()
        write_savepoint(
            location,
            saved(self._shards, self._max_parallelism, self._key_schema, self._times.watermark_ms),
        )

    def restore_savepoint(
        self, location: str, *, shards: int | None = None, storage: str | StorageOfShard | None = None
    ) -> None:
        """Go on from a savepoint, with as many shards as now or another number. What is in memory is lost.

        Watermark and maximum parallelism are the savepoint's; the processing time goes on, as in `restore`.
        Checkpoints go to `storage`, a place that is empty, or to a temporary folder.

        Raises:
            OptionError: its keys or states are others than declared.
            CorruptionError: it is torn, incomplete or altered; the file is named.
        """
        found = Savepoint.open(location)
        opened = restored_from_savepoint(
            found, self._key_schema, shards or len(self._shards), self._open_shards, now_ms=self._times.processing_ms
        )
        self.crash()
        self._max_parallelism = found.manifest.max_parallelism
        self._times.watermark_ms = found.manifest.watermark_ms
        self._begin_anew(opened, storage)

    def close(self) -> None:
        """Free the state, and remove what is temporary. Idempotent."""
        self.crash()
        self._remove_folder()

    def _check_usable(self) -> None:
        if self._unusable:
            raise OptionError(self._unusable)

    @staticmethod
    def _check_forward(what: str, now_ms: int, wanted_ms: int) -> None:
        if wanted_ms < now_ms:
            raise OptionError(f"the {what} is {now_ms} ms and cannot go back to {wanted_ms} ms. Give a later time.")


_FAILED = (
    "the operator failed before, and its state may hold half of what the failing call did. Call rollback() to go back "
    "to the last checkpoint, or restore()."
)
_CRASHED = "the operator's state was lost, or the harness was closed. Call restore() to go on from a checkpoint."


def _parallelism(shards: int, wanted: int | None) -> int:
    least = max_parallelism(shards)
    if wanted is None:
        return least
    if not shards <= wanted <= _MOST_KEY_GROUPS:
        raise OptionError(
            f"max_parallelism is {wanted} with {shards} shards; expected {shards} to {_MOST_KEY_GROUPS}: every shard "
            "needs a key group."
        )
    return wanted


def _storage_of(storage: str | StorageOfShard) -> StorageOfShard:
    return (lambda number: FileStorage(storage, number)) if isinstance(storage, str) else storage
