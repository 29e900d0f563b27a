"""`on_error="dead-letter"`: undo a call of user code that fails, and put its rows with the reason into a dead letter.

The unit is the call for a key: of `handleInputRows` with all the key's rows of the batch, or of
`handleExpiredTimer`. A call fails if it raises, if it yields something that does not fit the output's schema,
or if it writes something that does not fit a state's. Its state changes, timers and output are undone. A timer
whose handler failed is deleted. What user code did elsewhere (accumulators, requests to servers) is not undone.

If state or its host fails, and not user code, the batch fails, and there is no dead letter.

Dead letters are part of the output, in a separate column that is null in every other row. So they have the
same delivery guarantee as the output: a batch that Spark runs again yields them again, and not twice. And there
are no files beside the query that anyone must find or delete.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

from millpond.errors import CorruptionError, DataError, UnavailableError
from millpond.spark.environment.tracebacks import folded_texts
from millpond.spark.forms.form import ShardBatch
from millpond.spark.forms.per_key import KeyObjects, PerKey
from millpond.spark.spec.operator import DEAD_LETTER
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.types.rows import Row, grouping_values
from millpond.state.wrappers.undo import Call, UndoableBackend

_NOT_USER_CODES = (CorruptionError, UnavailableError, MemoryError)
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True)
class _Letter:
    """A call that failed."""

    key: Row
    error: Exception
    timer_ms: int | None = None


class SetAside:
    """A `Form` that calls user code key by key and lets a call fail alone."""

    def __init__(self, batch: ShardBatch, objects: KeyObjects, backend: UndoableBackend) -> None:
        self._batch = batch
        self._objects = objects
        self._backend = backend
        letter = batch.spec.dead_letter
        assert letter is not None, "chosen by the spec"  # noqa: S101
        self._letter_type = letter
        self._schema = batch.spec.output_schema.append(pa.field(DEAD_LETTER, letter))

    def initial(self, key_groups: Iterable[tuple[int, pa.Table]]) -> None:
        """Process the initial state. A failure here fails the batch: without it every later batch would be wrong."""
        PerKey(self._batch, self._objects).initial(key_groups)

    def rows(self, key_groups: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        """Yield tables of output and of dead letters, for each key group."""
        for key_group, rows in key_groups:
            outputs, letters = self._key_group(key_group, rows)
            yield self._as_output(outputs)
            if letters:
                yield self._as_letters(letters, rows)

    def _key_group(self, key_group: int, rows: pa.Table) -> tuple[pa.Table, list[_Letter]]:
        self._backend.enter(key_group)
        handle = self._batch.spec.processor.handleInputRows
        done: list[tuple[Row, Call, list[Any]]] = []
        letters: list[_Letter] = []
        for key, users_key, group in self._objects.grouped(rows):
            self._batch.check_lease()
            self._backend.context.key = key
            call = self._backend.begin_call()
            try:
                done.append((key, call, self._taken(handle(users_key, group, self._batch.times), "handleInputRows")))
            except _NOT_USER_CODES:
                raise
            except Exception as error:  # noqa: BLE001 - whatever user code raises
                call.undo()
                letters.append(_Letter(key, error))
        self._backend.end_call()
        return self._fitting(done, letters), letters

    def _fitting(self, done: list[tuple[Row, Call, list[Any]]], letters: list[_Letter]) -> pa.Table:
        """Convert the output of all calls to a table. A call whose output does not fit becomes a dead letter."""
        try:
            return self._objects.table([each for _, _, output in done for each in output])
        except _NOT_USER_CODES:
            raise
        except Exception:  # noqa: BLE001 - some errors of conversion are Spark's own
            tables = [self._objects.table([])]
            for key, call, output in done:
                try:
                    tables.append(self._objects.table(output))
                except Exception as error:  # noqa: BLE001 - as above
                    call.undo()
                    letters.append(_Letter(key, error))
            return pa.concat_tables(tables)

    def timers(self, due: Iterable[DueTimer]) -> Iterator[pa.Table]:
        """Yield a table of output for each timer, and one of dead letters.

        A key may have several timers, and a call cannot be undone after the key's next one. So each output is converted
        before the next call.
        """
        letters: list[_Letter] = []
        for timer in due:
            self._batch.check_lease()
            self._backend.enter(timer.key_group)
            self._backend.context.key = timer.key
            call = self._backend.begin_call()
            output = self._objects.table([])
            try:
                output = self._objects.table(self._expired(timer))
            except _NOT_USER_CODES:
                raise
            except Exception as error:  # noqa: BLE001 - whatever user code raises
                call.undo()
                letters.append(_Letter(timer.key, error, timer.expiry_ms))
            self._backend.end_call()
            # PySpark too deletes a timer after its handler ran. A failed timer is deleted, or it would fail for ever.
            self._batch.shard.timers.delete(timer.expiry_ms)
            yield self._as_output(output)
        if letters:
            yield self._as_letters(letters, None)

    def _expired(self, timer: DueTimer) -> list[Any]:
        given = self._batch.spec.processor.handleExpiredTimer(
            key=self._objects.key(timer.key),
            timerValues=self._batch.times,
            expiredTimerInfo=ExpiredTimerInfo(timer.expiry_ms),
        )
        return self._taken(given, "handleExpiredTimer")

    def _taken(self, given: Any, handler: str) -> list[Any]:
        if given is None:
            raise DataError(
                f"{type(self._batch.spec.processor).__name__}.{handler} returned None; expected "
                f"{self._objects.expected}. Write it as a generator, or return iter([])."
            )
        return list(given)

    def _as_output(self, table: pa.Table) -> pa.Table:
        return table.append_column(self._schema.field(DEAD_LETTER), pa.nulls(table.num_rows, self._letter_type))

    def _as_letters(self, letters: list[_Letter], rows: pa.Table | None) -> pa.Table:
        """Make rows that have a dead letter and nulls. `rows` are those of the key group, None for timers."""
        self._batch.tally.dead_letters += len(letters)
        task = TaskContext.get()
        batch_id = task and task.getLocalProperty(_BATCH_PROPERTY)
        texts = [folded_texts(letter.error) for letter in letters]
        columns = {
            "key": self._keys(letters),
            "rows": self._rows_of(letters, rows),
            "timer_ms": [letter.timer_ms for letter in letters],
            "error": [text for text, _ in texts],
            "traceback": [text for _, text in texts],
            "batch_id": [int(batch_id) if batch_id else None] * len(letters),
        }
        parts = [
            values if isinstance(values, pa.Array) else pa.array(values, type=self._letter_type.field(name).type)
            for name, values in columns.items()
        ]
        letter = pa.StructArray.from_arrays(parts, fields=list(self._letter_type))
        nothing = [pa.nulls(len(letters), field.type) for field in self._batch.spec.output_schema]
        return pa.table([*nothing, letter], schema=self._schema)

    def _keys(self, letters: list[_Letter]) -> pa.Array:
        fields = list(self._letter_type.field("key").type)
        columns = zip(*(letter.key for letter in letters), strict=True)
        arrays = [pa.array(values, type=field.type) for values, field in zip(columns, fields, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields)

    def _rows_of(self, letters: list[_Letter], rows: pa.Table | None) -> pa.Array:
        """Return the rows of each letter's key, as the processor was given them."""
        kind = self._letter_type.field("rows").type
        if rows is None:
            return pa.array([[]] * len(letters), type=kind)
        places: dict[Row, list[int]] = {letter.key: [] for letter in letters}
        keys = zip(*(grouping_values(rows.column(at)) for at in self._batch.spec.key_positions), strict=True)
        for place, key in enumerate(keys):
            if key in places:
                places[key].append(place)
        chosen = rows.take(list(chain.from_iterable(places[letter.key] for letter in letters)))
        columns = [chosen.column(at).cast(field.type).combine_chunks() for at, field in enumerate(kind.value_type)]
        offsets = list(accumulate((len(places[letter.key]) for letter in letters), initial=0))
        records = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), records, type=kind)
