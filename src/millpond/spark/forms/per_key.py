"""The part that is common to the forms that call user code key by key. They differ only in the objects they pass.

All rows that a key has in the batch reach the processor in one call. Key groups come one after the other, and
the keys of a key group in the order in which they first appear. The lease is checked before every call: if
another attempt has the shard, this one stops.
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
    """The objects in which one form passes rows to user code and takes its output."""

    expected: str
    """Text for errors: what a handler must return."""

    def grouped(self, rows: pa.Table) -> Iterator[tuple[Row, Any, Iterator[Any]]]:
        """Yield keys with all their rows, in the order in which the keys first appear.

        Each key comes twice: in the form that state uses, and in the form that user code gets.
        """
        ...

    def key(self, key: Row, /) -> Any:
        """Convert a key of the state to the form that user code gets with an expired timer."""
        ...

    def table(self, output: list[Any]) -> pa.Table:
        """Convert what user code yielded to a table. A DataError names what does not fit."""
        ...


class PerKey:
    """A `Form` that calls `handleInputRows` once for each key, and `handleExpiredTimer` once for each timer."""

    def __init__(self, batch: ShardBatch, objects: KeyObjects) -> None:
        self._batch = batch
        self._objects = objects

    def initial(self, key_groups: Iterable[tuple[int, pa.Table]]) -> None:
        """Call `handleInitialState` for each object of a key's rows: a `Row`, or a DataFrame of several rows."""
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
        """Yield a table of output for each key group."""
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
        """Yield one table of output for all timers."""
        yield self._objects.table(list(self._expired(due)))

    def _expired(self, due: Iterable[DueTimer]) -> Iterator[Any]:
        backend, processor, times = self._batch.shard.backend, self._batch.spec.processor, self._batch.times
        for timer in due:
            self._batch.check_lease()
            backend.enter(timer.key_group)
            backend.context.key = timer.key
            info = ExpiredTimerInfo(timer.expiry_ms)
            # Arguments are passed by keyword, as in PySpark: user code may declare them in any order.
            result = processor.handleExpiredTimer(
                key=self._objects.key(timer.key), timerValues=times, expiredTimerInfo=info
            )
            try:
                yield from result
            except TypeError as error:
                self._check_iterable("handleExpiredTimer", timer.key, result, error)
                raise
            # As in PySpark, a timer is deleted after its handler ran. A handler that sets its own time again loses it.
            self._batch.shard.timers.delete(timer.expiry_ms)

    def _check_iterable(self, handler: str, key: Row, result: Any, error: TypeError) -> None:
        """Raise a DataError if a handler returned something that is not iterable. Other errors are user code's own."""
        if not hasattr(result, "__iter__"):
            raise DataError(
                f"{type(self._batch.spec.processor).__name__}.{handler} returned {result!r} for key {key!r}; expected "
                f"{self._objects.expected}. Write it as a generator, or return iter([])."
            ) from error
