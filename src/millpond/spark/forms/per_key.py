"""The forms that call user code key by key: what they share, which is all but the objects that cross.

Every key's rows of the batch reach the processor in one call, one key group's keys after the other's,
in the order in which the keys appear. The lease is looked at before every call: when another attempt
has the shard, this one stops.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

from millpond.errors import DataError
from millpond.spark.forms.form import ShardBatch
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.types.rows import Row


class KeyObjects(Protocol):
    """The objects in which one form gives rows to user code and takes its output."""

    expected: str
    """What a handler must return, for errors."""

    def grouped(self, rows: pa.Table) -> Iterator[tuple[Row, Any, Iterator[Any]]]:
        """Keys with all their rows, in the order in which the keys appear.

        Each key comes twice: as state knows it, and as user code gets it.
        """
        ...

    def key(self, key: Row, /) -> Any:
        """A key of the state as user code gets it with an expired timer."""
        ...

    def table(self, output: list[Any]) -> pa.Table:
        """What user code yielded; a DataError names what does not fit."""
        ...


class PerKey:
    """A `Form` that calls `handleInputRows` and `handleExpiredTimer` once a key."""

    def __init__(self, batch: ShardBatch, objects: KeyObjects) -> None:
        self._batch = batch
        self._objects = objects

    def initial(self, key_groups: Iterable[tuple[int, pa.Table]]) -> None:
        """One call of `handleInitialState` for each object in which the form gives a key's rows."""
        backend, times = self._batch.shard.backend, self._batch.times
        handle = self._batch.spec.processor.handleInitialState
        for key_group, rows in key_groups:
            backend.enter(key_group)
            for key, users_key, group in self._objects.grouped(rows):
                self._batch.check_lease()
                backend.context.key = key
                for each in group:
                    handle(users_key, each, times)

    def rows(self, key_groups: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        """A table of output for each key group."""
        for key_group, rows in key_groups:
            yield self._objects.table(self._key_group(key_group, rows))

    def _key_group(self, key_group: int, rows: pa.Table) -> list[Any]:
        backend, lease, times = self._batch.shard.backend, self._batch.lease, self._batch.times
        backend.enter(key_group)
        context = backend.context
        handle = self._batch.spec.processor.handleInputRows
        output: list[Any] = []
        for key, users_key, group in self._objects.grouped(rows):
            if lease.superseded_by:
                lease.refuse()
            context.key = key
            result = handle(users_key, group, times)
            try:
                output.extend(result)
            except TypeError as error:
                self._check_iterable("handleInputRows", key, result, error)
                raise
        return output

    def timers(self, due: Iterable[DueTimer]) -> Iterator[pa.Table]:
        """One table of output."""
        yield self._objects.table(list(self._expired(due)))

    def _expired(self, due: Iterable[DueTimer]) -> Iterator[Any]:
        backend, processor, times = self._batch.shard.backend, self._batch.spec.processor, self._batch.times
        for timer in due:
            self._batch.check_lease()
            backend.enter(timer.key_group)
            backend.context.key = timer.key
            info = ExpiredTimerInfo(timer.expiry_ms)
            # By keyword, as PySpark calls it: user code may declare the arguments in any order.
            result = processor.handleExpiredTimer(
                key=self._objects.key(timer.key), timerValues=times, expiredTimerInfo=info
            )
            try:
                yield from result
            except TypeError as error:
                self._check_iterable("handleExpiredTimer", timer.key, result, error)
                raise
            # As in PySpark: a timer is deleted after its handler ran, so one set again at its own time is lost.
            self._batch.shard.timers.delete(timer.expiry_ms)

    def _check_iterable(self, handler: str, key: Row, result: Any, error: TypeError) -> None:
        """Name a handler that returned what cannot be gone through. Any other error is user code's own."""
        if not hasattr(result, "__iter__"):
            raise DataError(
                f"{type(self._batch.spec.processor).__name__}.{handler} returned {result!r} for key {key!r}; expected "
                f"{self._objects.expected}. Write it as a generator, or return iter([])."
            ) from error
