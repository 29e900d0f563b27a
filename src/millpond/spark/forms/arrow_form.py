"""The Arrow form: one call for each shard and batch, with all rows as a table and the number of each row's key."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.errors import DataError
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle, cast_column
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.forms.form import ShardBatch
from millpond.spark.forms.grouping import keys_and_grouping, shown
from millpond.spark.forms.rows import refuse_nulls
from millpond.spark.shuffle.arrow_lots import one_table
from millpond.state.backend.timer_queue import DueTimer


class ArrowForm:
    """A `Form` over whole tables."""

    def __init__(self, batch: ShardBatch, handle: ArrowProcessorHandle) -> None:
        self._batch = batch
        self._keys = handle.keys
        self._processor: ArrowStatefulProcessor = batch.spec.processor
        self._key_schema = batch.shard.key_schema

    def initial(self, key_groups: Iterable[tuple[int, pa.Table]]) -> None:
        """Call `handleInitialTable` once."""
        given = self._begun(list(key_groups))
        if given is not None:
            self._processor.handleInitialTable(*given, self._batch.times)

    def rows(self, key_groups: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        """Call `handleInputTable` once."""
        given = self._begun(list(key_groups))
        if given is not None:
            result = self._processor.handleInputTable(*given, self._batch.times)
            yield from self._output("handleInputTable", result)

    def timers(self, due: Iterable[DueTimer]) -> Iterator[pa.Table]:
        """Call `handleExpiredTimers` once, if timers are due."""
        timers = list(due)
        if not timers:
            return
        self._batch.check_lease()
        columns = zip(*(timer.key for timer in timers), strict=True)
        keys = pa.table(
            [pa.array(column, type=field.type) for column, field in zip(columns, self._key_schema, strict=True)],
            schema=self._key_schema,
        )
        self._keys.begin(keys, [(timer.key_group, at, at + 1) for at, timer in enumerate(timers)])
        expiry_ms = pa.array([timer.expiry_ms for timer in timers], type=pa.int64())
        result = self._processor.handleExpiredTimers(keys, expiry_ms, self._batch.times)
        yield from self._output("handleExpiredTimers", result)
        # As in PySpark, a timer is deleted after its handler ran. A handler that sets its own time again loses it.
        backend = self._batch.shard.backend
        for timer in timers:
            backend.enter(timer.key_group)
            backend.context.key = timer.key
            self._batch.shard.timers.delete(timer.expiry_ms)

    def _begun(self, key_groups: list[tuple[int, pa.Table]]) -> tuple[pa.Table, pa.Table, pa.Array] | None:
        """Return keys, rows and key index for a call; None without rows."""
        if not key_groups:
            return None
        self._batch.check_lease()
        spec = self._batch.spec
        rows = one_table([rows for _, rows in key_groups])
        keys, grouping = keys_and_grouping(rows, spec.key_positions, self._key_schema)
        # A key is in one key group, and rows come key group by key group, so the keys do too.
        ends_of_rows = np.cumsum([len(table) for _, table in key_groups])
        ends = np.searchsorted(grouping.first, ends_of_rows).tolist()
        runs = [
            (key_group, first, end)
            for (key_group, _), first, end in zip(key_groups, [0, *ends[:-1]], ends, strict=True)
        ]
        self._keys.begin(keys, runs)
        return keys, shown(rows, spec.row_names), pa.array(grouping.index)

    def _output(self, handler: str, result: Any) -> Iterator[pa.Table]:
        who = f"{type(self._processor).__name__}.{handler}"
        if result is None:
            raise DataError(
                f"{who} returned None; expected an iterator of Arrow tables. Write it as a generator, or return "
                "iter([])."
            )
        schema = self._batch.spec.output_schema
        for table in result:
            if not isinstance(table, pa.Table | pa.RecordBatch):
                raise DataError(
                    f"{who} gave {type(table).__name__} {table!r}; expected a pyarrow.Table with the columns "
                    f"{schema.names}."
                )
            missing = [name for name in schema.names if name not in table.column_names]
            if missing:
                raise DataError(f"{who} gave a table with the columns {table.column_names}; {missing} are missing.")
            columns = [cast_column(table[field.name], field, f"output of {who}") for field in schema]
            for column, field in zip(columns, schema, strict=True):
                refuse_nulls(column, field)
            yield pa.table(columns, schema=schema)
