"""Runs a PySpark `StatefulProcessor` alone: no session, no JVM, milliseconds a test.

Batch by batch, as Spark would, through the very code that runs it on Spark: rows go to `ShardRun` as
Arrow, late rows are dropped and timers fire by its rules, and what a batch changed becomes a delta and
a manifest, which is all that `restart` has to begin again from. Only what Spark does is left out: there is
one shard with one key group, so keys come in the order of their first row.

Invariant: a batch counts whole or not at all. If the processor raises, its error comes out as it is,
the batch's changes are gone, and the next batch begins where this one did.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from millpond.errors import DataError, OptionError
from millpond.spark.forms.handles import arrow_schema, outward_of, row_inward_of
from millpond.spark.forms.rows import output_arrow_schema, row_maker
from millpond.spark.operator.declarations import declarations
from millpond.spark.operator.processors import check_processor
from millpond.spark.runtime.opened_shard import check_savepoint, filled_shard
from millpond.spark.runtime.shard_run import ShardRun
from millpond.spark.shuffle.pack import KEY_GROUP
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.lease import Attempt, Lease
from millpond.spark.spec.operator import BatchTime, OperatorSpec, StateConfig
from millpond.spark.testing.ddl import parse_ddl
from millpond.state.checkpoint import Manifest, Shard, ShardState, new_manifest, write_savepoint
from millpond.state.options.opening import open_backend
from millpond.state.options.operator import StateOptions
from millpond.state.types.rows import RowCodec
from millpond.state.types.times import checked_ms
from millpond.suggestions import did_you_mean

_TIME_MODES = ("None", "EventTime", "ProcessingTime")


@dataclass(frozen=True)
class ProcessorSnapshot:
    """The durable state of a processor after a batch: what Spark's state store would hold.

    Attributes:
        manifest: of the version.
        segments: by id.
    """

    manifest: Manifest
    segments: Mapping[int, bytes]


class ProcessorHarness:
    """One processor, its state and its time.

    The processor is copied for every batch, as on Spark: what it must remember belongs into state.

    Args:
        processor: as written for PySpark's `transformWithState`.
        rows: the schema of the rows, a StructType or its DDL text.
        key: the name of the key column, or names.
        output: the schema of what the processor yields, a StructType or its DDL text.
        time_mode: "None", "EventTime" or "ProcessingTime".
        event_time: in "EventTime", the timestamp column that has the watermark.
        late: "drop" or "keep": what becomes of rows that the watermark has passed.
        options: where state is held, as option strings: `{"state.backend.type": "rocksdb"}`.

    Raises:
        OptionError: an argument is not one of those above, or the processor declares a state that cannot be.

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
        processor: StatefulProcessor,
        *,
        rows: StructType | str,
        key: str | Sequence[str],
        output: StructType | str,
        time_mode: str = "None",
        event_time: str | None = None,
        late: str = "drop",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_processor("harness", processor)
        self._rows = _schema(rows)
        self._output = _schema(output)
        keys = (key,) if isinstance(key, str) else tuple(key)
        for name in (*keys, *(() if event_time is None else (event_time,))):
            if name not in self._rows.names:
                known = self._rows.names
                meant = did_you_mean(name, known) or "."
                raise OptionError(f"column {name!r} is not among the rows' columns {known}{meant}")
        _check(time_mode, event_time, late)
        self._pickled = cloudpickle.dumps(processor)
        self._declared = declarations(cloudpickle.loads(self._pickled), "rows", time_mode.lower(), parse_ddl, "harness")
        self._options = StateOptions.parse(options or {})
        self._key_schema = arrow_schema(StructType([self._rows[name] for name in keys]))
        self._key_positions = tuple(self._rows.names.index(name) for name in keys)
        self._time_mode = time_mode.lower()
        self._event_time = None if event_time is None else self._rows.names.index(event_time)
        self._keep_late = late == "keep"
        self._codec = RowCodec(arrow_schema(self._rows), "a row")
        self._inward = row_inward_of(self._rows)
        self._outward = outward_of(self._output)
        self._make_row = row_maker(self._output.names)
        self._time = BatchTime(0, -1 if self._time_mode != "eventtime" else 0)
        self._folder = Path(tempfile.mkdtemp(prefix="millpond-harness-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._opened = 0
        self._closed = False
        self.late_rows = 0
        """How many rows were dropped because the watermark had passed them."""
        self._durable = ProcessorSnapshot(new_manifest("harness", 0, 1, 1, self._key_schema), {})
        self._shard = self._restored()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def process(
        self, rows: Iterable[Any], *, watermark_ms: int | None = None, processing_ms: int | None = None
    ) -> list[Row]:
        """Run one batch and give its output.

        Args:
            rows: as tuples in the schema's order, dicts, or Rows. Times without a zone are local, as in Spark.
            watermark_ms: of this batch, from now on; timers up to it fire after the rows. Rows are late by the
                watermark of the batch *before*, as in Spark.
            processing_ms: of this batch, from now on; in "ProcessingTime" timers up to it fire after the rows.

        Raises:
            DataError: a row or what the processor yields does not fit its schema.
            OptionError: time would go back, or the harness is closed.
        """
        self._check_open()
        time = self._time_of_batch(watermark_ms, processing_ms)
        shard = self._shard
        table = self._table(rows)
        try:
            with Spool(lambda: self._folder) as spool:
                result = ShardRun(self._spec(), shard, time, Lease(Attempt("harness", 0))).run([table], spool)
                output = [row for blob in spool for row in self._rows_of(blob)]
            commit = shard.commit(f"batch {shard.manifest.version}", time.watermark_ms)
        except BaseException:
            shard.rollback()
            raise
        segments = {at: data for at, data in self._durable.segments.items() if at not in commit.dropped}
        self._durable = ProcessorSnapshot(commit.manifest, {**segments, **commit.segments})
        shard.begin_at(shard.manifest)
        self._time = time
        self.late_rows += result.late_rows
        return output

    def advance(self, *, watermark_ms: int | None = None, processing_ms: int | None = None) -> list[Row]:
        """Run one batch without rows, because time has passed; timers fire as in `process`."""
        return self.process((), watermark_ms=watermark_ms, processing_ms=processing_ms)

    def state(self, name: str) -> dict[tuple[Any, ...], Any]:
        """A state of every key as it is now, by key tuple: a tuple, a list of them, or a dict of them by map key.

        What has expired is left out.

        Raises:
            OptionError: there is no such state, or the harness is closed.
        """
        self._check_open()
        known = sorted(state.name for state in self._declared.states)
        if name not in known:
            raise OptionError(f"there is no state {name!r}; the processor declared {known}{did_you_mean(name, known)}")
        cells = self._shard.living_cells(name, 0)
        if cells.map_keys is None:
            return dict(zip(cells.keys, cells.values, strict=True))
        found: dict[tuple[Any, ...], Any] = {}
        for key, map_key, value in zip(cells.keys, cells.map_keys, cells.values, strict=True):
            found.setdefault(key, {})[map_key] = value
        return found

    def snapshot(self) -> ProcessorSnapshot:
        """The durable state after the last batch."""
        return self._durable

    def restore(self, snapshot: ProcessorSnapshot) -> None:
        """Go on from a snapshot, of this harness or of another one with the same key, at the snapshot's times."""
        if snapshot.manifest.key_schema != self._durable.manifest.key_schema:
            raise OptionError("the snapshot was made under another key. Give the harness the key it was made with.")
        self._durable, manifest = snapshot, snapshot.manifest
        self._time = BatchTime(
            self._time.processing_ms if manifest.processing_ms < 0 else manifest.processing_ms,
            max(0, manifest.watermark_ms) if self._time_mode == "eventtime" else self._time.watermark_ms,
        )
        self.restart()

    def savepoint(self, location: str) -> None:
        """Write the state of the last batch to an empty folder, a path or URI: a query can begin with it, or a harness.

        Raises:
            OptionError: the folder is not empty.
            UnavailableError: it could not be written.
        """
        self._check_open()
        shard = self._shard
        write_savepoint(location, [ShardState.of_snapshot(self._durable.manifest, shard.backend, shard.declared)])

    def restore_savepoint(self, location: str) -> None:
        """Go on with the state of a savepoint, of a query, of any number of shards, or of a harness.

        What is in memory is lost; the times stay as they are.

        Raises:
            OptionError: its keys or states are others than declared, or its timers wait for another kind of time.
            CorruptionError: it is torn, incomplete or altered; the file is named.
        """
        self._check_open()
        spec = replace(self._spec(), savepoint=location)
        check_savepoint(spec)
        shard = self._opened_shard(spec, new_manifest("harness", 0, 1, 1, self._key_schema), {})
        commit = shard.commit("savepoint", self._time.watermark_ms)
        self._shard.backend.close()
        self._shard, self._durable = shard, ProcessorSnapshot(commit.manifest, commit.segments)
        shard.begin_at(shard.manifest)

    def restart(self) -> None:
        """Lose what is in memory, as when a host is killed, and restore the state of the last batch."""
        self._check_open()
        self._shard.backend.close()
        self._shard = self._restored()

    def close(self) -> None:
        """Free the state. Idempotent."""
        self._closed = True
        self._shard.backend.close()
        self._remove_folder()

    def _check_open(self) -> None:
        if self._closed:
            raise OptionError("the harness is closed, and its state was freed. Make a new one.")

    def _restored(self) -> Shard:
        return self._opened_shard(self._spec(), self._durable.manifest, self._durable.segments)

    def _opened_shard(self, spec: OperatorSpec, manifest: Manifest, segments: Mapping[int, bytes]) -> Shard:
        self._opened += 1
        backend = open_backend(self._options, manifest.key_groups, self._folder / f"state-{self._opened}")
        return filled_shard(spec, manifest, segments, self._time, backend)

    def _spec(self) -> OperatorSpec:
        return OperatorSpec(
            application="harness",
            processor=cloudpickle.loads(self._pickled),
            key_schema=self._key_schema,
            key_positions=self._key_positions,
            row_names=tuple(self._rows.names),
            output_schema=output_arrow_schema(self._output),
            time_mode=self._time_mode,
            event_time=self._event_time,
            keep_late=self._keep_late,
            metrics=None,  # counted by the driver, which is not here
            hosts=1,
            config=StateConfig(),
            ddl=self._declared.ddl,
            states=self._declared.states,
            deleted=self._declared.deleted,
        )

    def _time_of_batch(self, watermark_ms: int | None, processing_ms: int | None) -> BatchTime:
        if watermark_ms is not None and self._time_mode != "eventtime":
            raise OptionError("watermark_ms needs time_mode 'EventTime'.")
        now = self._time
        time = BatchTime(
            now.processing_ms if processing_ms is None else checked_ms(processing_ms, "processing_ms"),
            now.watermark_ms if watermark_ms is None else checked_ms(watermark_ms, "watermark_ms"),
        )
        if time.watermark_ms < now.watermark_ms or time.processing_ms < now.processing_ms:
            raise OptionError(f"time cannot go back from {now} to {time}. Give later times.")
        return time

    def _table(self, rows: Iterable[Any]) -> pa.Table:
        checked = [self._codec.check(self._values(row)) for row in rows]
        table = pa.table(self._codec.columns(checked), schema=self._codec.schema)
        return table.append_column(KEY_GROUP, pa.array([0] * len(checked), type=pa.int16()))

    def _values(self, row: Any) -> tuple[Any, ...]:
        names = self._rows.names
        given = row.asDict() if isinstance(row, Row) and hasattr(row, "__fields__") else row
        if isinstance(given, dict):
            unknown = given.keys() - set(names)
            if unknown:
                raise DataError(f"a row has the fields {sorted(unknown)}, which are not among the columns {names}.")
            given = tuple(given.get(name) for name in names)
        values: tuple[Any, ...] = given if self._inward is None else self._inward(given)
        return values

    def _rows_of(self, blob: memoryview) -> list[Row]:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            table = reader.read_all()
        rows = RowCodec(table.schema, "output").rows([table.column(at) for at in range(table.num_columns)])
        return [self._make_row(row if self._outward is None else self._outward(row)) for row in rows]


def _schema(schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema)
    raise OptionError(f"a schema must be a StructType or its DDL text, got {schema!r}.")


def _check(time_mode: str, event_time: str | None, late: str) -> None:
    if time_mode.lower() not in [mode.lower() for mode in _TIME_MODES]:
        raise OptionError(f"time_mode={time_mode!r}: expected one of {', '.join(map(repr, _TIME_MODES))}.")
    if late not in {"drop", "keep"}:
        raise OptionError(f"late={late!r}: expected 'drop' or 'keep'.")
    if (event_time is not None) != (time_mode.lower() == "eventtime"):
        raise OptionError(
            f"time_mode={time_mode!r} and event_time={event_time!r}: 'EventTime', and only that, needs the column that "
            "has the watermark."
        )
