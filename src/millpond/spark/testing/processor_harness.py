"""Run a PySpark `StatefulProcessor` alone: without a session or a JVM, in milliseconds a test.

It runs batch by batch, as Spark would, through the same code as a state host. The shard begins at the manifest of the
last batch. Late rows are dropped, the other rows reach the processor in its form, timers fire, and calls that fail
become dead letters. The batch's changes become a delta and a manifest, from which `restart` begins again. Spark's own
work is left out. There is one shard with one key group, so keys come in the order of their first row.

Invariant: a batch counts whole or not at all. If the processor raises, its error is raised unchanged, the batch's
changes are undone, and the next batch begins where this one did.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from millpond.errors import OptionError
from millpond.spark.environment.folders import user_folder
from millpond.spark.forms.arrow_combine import Combining
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.forms.dead_letters import letter_schema, with_dead_letters
from millpond.spark.forms.handles import arrow_schema
from millpond.spark.forms.rows import output_arrow_schema
from millpond.spark.operator.declarations import declarations
from millpond.spark.operator.processors import HARNESS, check_processor
from millpond.spark.operator.request import check_choice
from millpond.spark.runtime.held_shard import HeldShard, reverting, standing_at
from millpond.spark.runtime.opened_shard import check_savepoint
from millpond.spark.runtime.slots import Slot
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.lease import Attempt, Lease
from millpond.spark.spec.operator import DEAD_LETTER, BatchTime, OperatorSpec, StateConfig
from millpond.spark.testing.ddl import parse_ddl
from millpond.spark.testing.row_tables import CombinedTables, InputTables, rows_maker, schema_of
from millpond.state.checkpoint import Commit, Manifest, ShardState, new_manifest, write_savepoint
from millpond.state.types.times import checked_ms
from millpond.suggestions import did_you_mean

_TIME_MODES = ("None", "EventTime", "ProcessingTime")
_FORMS = ("rows", "pandas", "arrow")
_LEASE = Lease(Attempt("harness", 0))


@dataclass(frozen=True)
class ProcessorSnapshot:
    """The durable state of a processor after a batch: what Spark's state store would hold.

    Attributes:
        manifest: the manifest of the version.
        segments: its segments, by id.
    """

    manifest: Manifest
    segments: Mapping[int, bytes]


class ProcessorHarness:
    """Runs one processor over batches of rows, with its state and its time.

    The processor is copied for every batch, as on Spark, so only its state is remembered.

    Args:
        processor: as written for PySpark's `transformWithState`, or for the given form.
        rows: the schema of the rows, a StructType or its DDL text.
        key: the name of the key column, or several names.
        output: the schema of what the processor yields, a StructType or its DDL text.
        time_mode: "None", "EventTime" or "ProcessingTime".
        event_time: in "EventTime", the timestamp column that has the watermark.
        late: "drop" or "keep": what to do with rows that the watermark has passed.
        options: where state is held, as option strings: `{"state.backend.type": "rocksdb"}`.
        form: how the processor gets rows: "rows", "pandas" (times are in UTC) or "arrow". The harness itself takes and
            returns Rows with all of them.
        on_error: "fail" or "dead-letter": what to do when a call of the processor fails. See `dead_letters`.

    Raises:
        OptionError: an argument is not one of those above, or the processor declares a state that is not allowed.

    >>> class Visits(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.seen = handle.getValueState("seen", "count long")
    ...
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         before = self.seen.get() if self.seen.exists() else (0,)
    ...         self.seen.update((before[0] + len(list(rows)),))
    ...         yield Row(user=key[0], visits=self.seen.get()[0])
    ...
    ...     def close(self):
    ...         pass
    >>> harness = ProcessorHarness(Visits(), rows="user string", key="user", output="user string, visits long")
    >>> harness.process([("ada",), ("bob",), ("ada",)])
    [Row(user='ada', visits=2), Row(user='bob', visits=1)]
    >>> harness.process([("ada",)])
    [Row(user='ada', visits=3)]
    """

    def __init__(
        self,
        processor: StatefulProcessor | ArrowStatefulProcessor,
        *,
        rows: StructType | str,
        key: str | Sequence[str],
        output: StructType | str,
        time_mode: str = "None",
        event_time: str | None = None,
        late: str = "drop",
        options: Mapping[str, Any] | None = None,
        form: str = "rows",
        on_error: str = "fail",
    ) -> None:
        check_choice("form", form, _FORMS)
        check_choice("on_error", on_error, ("fail", "dead-letter"))
        form, on_error = form.lower(), on_error.lower()
        if form == "arrow" and on_error == "dead-letter":
            raise OptionError(
                "on_error='dead-letter' sets the calls of single keys aside, and form='arrow' has one call for all "
                "keys. Leave on_error out."
            )
        check_processor(form, processor, HARNESS)
        self._rows = schema_of(rows)
        self._output = schema_of(output)
        keys = (key,) if isinstance(key, str) else tuple(key)
        for name in (*keys, *(() if event_time is None else (event_time,))):
            if name not in self._rows.names:
                known = self._rows.names
                meant = did_you_mean(name, known) or "."
                raise OptionError(f"column {name!r} is not among the rows' columns {known}{meant}")
        _check(time_mode, event_time, late)
        self._pickled = cloudpickle.dumps(processor)
        declared = declarations(cloudpickle.loads(self._pickled), form, time_mode.lower(), parse_ddl, "harness")
        key_struct = StructType([self._rows[name] for name in keys])
        self._letter = letter_schema(key_struct, self._rows) if on_error == "dead-letter" else None
        self._spec = OperatorSpec(
            application="harness",
            processor=processor,
            key_schema=arrow_schema(key_struct),
            key_positions=tuple(self._rows.names.index(name) for name in keys),
            row_names=tuple(self._rows.names),
            output_schema=output_arrow_schema(self._output),
            time_mode=time_mode.lower(),
            event_time=None if event_time is None else self._rows.names.index(event_time),
            keep_late=late.lower() == "keep",
            metrics=None,  # there is no driver to sum them
            hosts=1,
            config=StateConfig(options=options or {}),
            dead_letter=None if self._letter is None else pa.struct(list(arrow_schema(self._letter))),
            ddl=declared.ddl,
            states=declared.states,
            deleted=declared.deleted,
            form=form,
        )
        self._input = InputTables(self._rows)
        combining = Combining.planned(self._spec, cloudpickle.loads(self._pickled), arrow_schema(self._rows))
        if combining is not None:
            self._input = CombinedTables(self._rows, combining)
            self._spec = combining.spec(self._spec)
        self._make_output = rows_maker(self._output)
        if self._letter is not None:
            with_dead_letters(self._output, self._letter)
            self._make_letter = rows_maker(self._letter)
        self._time = BatchTime(0, -1 if self._spec.time_mode != "eventtime" else 0)
        self._closed = False
        self.late_rows = 0
        """How many rows were dropped because the watermark had passed them."""
        self.dead_letters: list[Row] = []
        """The dead letters so far, as Rows whose fields `millpond.spark.split_dead_letters` explains.

        Their `batch_id` is None.
        """
        self._durable = ProcessorSnapshot(new_manifest("harness", 0, 1, 1, self._spec.key_schema), {})
        self._slot: Slot[HeldShard] = Slot(monotonic)
        self._standing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def process(
        self, rows: Iterable[Any], *, watermark_ms: int | None = None, processing_ms: int | None = None
    ) -> list[Row]:
        """Run one batch and return its output.

        Args:
            rows: tuples in the schema's order, dicts, or Rows. Times without a zone are local, as in Spark.
            watermark_ms: the watermark of this batch and those after it. Timers up to it fire after the rows. Rows are
                late by the watermark of the *previous* batch, as in Spark.
            processing_ms: the processing time of this batch and those after it. In "ProcessingTime" timers up to it
                fire after the rows.

        Raises:
            DataError: a row or what the processor yields does not fit its schema.
            OptionError: time would go back, or the harness is closed.
        """
        self._check_open()
        time = self._time_of_batch(watermark_ms, processing_ms)
        table, held = self._input.table(rows), self._standing()
        spec = replace(self._spec, processor=cloudpickle.loads(self._pickled))
        with Spool(user_folder) as spool:
            token = f"batch {held.shard.manifest.version}"
            with reverting(self._slot):
                done, commit = held.run(spec, time, _LEASE, [table], spool, token)
            output = [row for blob in spool for row in self._rows_of(blob)]
        self._keep(commit)
        self._time = time
        self.late_rows += done.metrics.late_rows
        return output

    def advance(self, *, watermark_ms: int | None = None, processing_ms: int | None = None) -> list[Row]:
        """Run one batch without rows, because time has passed. Timers fire as in `process`."""
        return self.process((), watermark_ms=watermark_ms, processing_ms=processing_ms)

    def state(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Return a state of all keys as a dict from key tuple to value.

        The value is a tuple, a list of tuples, or a dict of tuples by map key. Expired values are left out.

        Raises:
            OptionError: there is no such state, or the harness is closed.
        """
        self._check_open()
        known = sorted(state.name for state in self._spec.states)
        if name not in known:
            raise OptionError(f"there is no state {name!r}; the processor declared {known}{did_you_mean(name, known)}")
        cells = self._standing().shard.living_cells(name, 0)
        if cells.map_keys is None:
            return dict(zip(cells.keys, cells.values, strict=True))
        found: dict[tuple[Any, ...], Any] = {}
        for key, map_key, value in zip(cells.keys, cells.map_keys, cells.values, strict=True):
            found.setdefault(key, {})[map_key] = value
        return found

    def snapshot(self) -> ProcessorSnapshot:
        """Return the durable state after the last batch."""
        return self._durable

    def restore(self, snapshot: ProcessorSnapshot) -> None:
        """Go on from a snapshot of this harness, or of another one with the same key, at the snapshot's times."""
        if snapshot.manifest.key_schema != self._durable.manifest.key_schema:
            raise OptionError("the snapshot was made under another key. Give the harness the key it was made with.")
        self._durable, manifest = snapshot, snapshot.manifest
        self._time = BatchTime(
            self._time.processing_ms if manifest.processing_ms < 0 else manifest.processing_ms,
            max(0, manifest.watermark_ms) if self._spec.time_mode == "eventtime" else self._time.watermark_ms,
        )
        self.restart()

    def savepoint(self, location: str) -> None:
        """Write the state of the last batch to an empty folder, a path or URI. A query or a harness can begin with it.

        Raises:
            OptionError: the folder is not empty.
            UnavailableError: it could not be written.
        """
        self._check_open()
        shard = self._standing().shard
        write_savepoint(location, [ShardState.of_snapshot(self._durable.manifest, shard.backend, shard.declared)])

    def restore_savepoint(self, location: str) -> None:
        """Go on with the state of a savepoint, of a harness or of a query with any number of shards.

        The state in memory is lost. The times stay as they are.

        Raises:
            OptionError: its keys or states are not those declared, or its timers need another time mode.
            CorruptionError: it is torn, incomplete or altered; the file is named.
        """
        self._check_open()
        spec = replace(self._spec, savepoint=location)
        check_savepoint(spec)
        held = HeldShard(spec, new_manifest("harness", 0, 1, 1, self._spec.key_schema), {}, self._time)
        self._slot.drop()
        self._slot.shard = held
        self._keep(held.shard.commit("savepoint", self._time.watermark_ms))

    def restart(self) -> None:
        """Drop the state in memory, as when a host is killed, and restore the state of the last batch."""
        self._check_open()
        self._slot.drop()
        self._standing()

    def close(self) -> None:
        """Free the state. Idempotent."""
        self._closed = True
        self._slot.drop()

    def _check_open(self) -> None:
        if self._closed:
            raise OptionError("the harness is closed, and its state was freed. Make a new one.")

    def _standing(self) -> HeldShard:
        """Return the shard as it was after the last batch."""
        return standing_at(self._slot, self._spec, self._durable.manifest, self._time, lambda: self._durable.segments)

    def _keep(self, commit: Commit) -> None:
        """Store a version, as Spark's state store does."""
        segments = {at: data for at, data in self._durable.segments.items() if at not in commit.dropped}
        self._durable = ProcessorSnapshot(commit.manifest, {**segments, **commit.segments})

    def _time_of_batch(self, watermark_ms: int | None, processing_ms: int | None) -> BatchTime:
        if watermark_ms is not None and self._spec.time_mode != "eventtime":
            raise OptionError("watermark_ms needs time_mode 'EventTime'.")
        now = self._time
        time = BatchTime(
            now.processing_ms if processing_ms is None else checked_ms(processing_ms, "processing_ms"),
            now.watermark_ms if watermark_ms is None else checked_ms(watermark_ms, "watermark_ms"),
        )
        if time.watermark_ms < now.watermark_ms or time.processing_ms < now.processing_ms:
            raise OptionError(f"time cannot go back from {now} to {time}. Give later times.")
        return time

    def _rows_of(self, blob: memoryview) -> list[Row]:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            table = reader.read_all()
        if self._letter is None:
            return self._make_output(table)
        letters = table.column(DEAD_LETTER).drop_null().combine_chunks()
        self.dead_letters += self._make_letter(pa.Table.from_struct_array(letters))
        return self._make_output(table.filter(table.column(DEAD_LETTER).is_null()).drop_columns([DEAD_LETTER]))


def _check(time_mode: str, event_time: str | None, late: str) -> None:
    check_choice("time_mode", time_mode, _TIME_MODES)
    check_choice("late", late, ("drop", "keep"))
    if (event_time is not None) != (time_mode.lower() == "eventtime"):
        raise OptionError(
            f"time_mode={time_mode!r} and event_time={event_time!r}: 'EventTime', and only that, needs the column that "
            "has the watermark."
        )
