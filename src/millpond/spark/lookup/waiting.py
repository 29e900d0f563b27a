"""A keyed operator for lookup joins in which events wait for missing rows.

It joins a stream whose dimension rows may arrive later than its events. All events pass through this operator, which
runs in the state hosts, next to the cache. An event that finds its row, or has no key, leaves at once. Any other event
waits in keyed state. A timer in processing time looks it up again after a delay, at most `max_attempts` times; then it
leaves without a row. Nothing sleeps, and no task waits for a row.

The invariant: **an event is in the state or has left, never both**. Spark commits state and output of a batch together,
so this also holds across restarts.

The waiting events of a batch are stored together, as blobs of Arrow IPC. A blob is stored under the key of some event
and the time at which its events are due. So one access to state serves thousands of events. Any key will do, since
every shard can look up every event. A blob has a schema, by which events of another stream are rejected.

A retry is never answered by a cached absence: the cache drops a key that it holds as missing, and the source is asked.
Rows that are in the cache by then are used.

Source: FLIP-234, delayed retry of lookups. Flink's operator waits in its own thread, or keeps the event in memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Accumulator
from pyspark.sql.streaming.stateful_processor import TimerValues

from millpond.errors import DataError
from millpond.lookup import LookupStats
from millpond.options import Known, count, duration_ms, named, parsed, refuse_problems
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.lookup.counts import Counted
from millpond.spark.lookup.hosted import HOST_IDLE_MS, matched
from millpond.spark.lookup.letters import failed_events
from millpond.spark.lookup.rows import Matches, Positions, distinct_keys
from millpond.spark.lookup.worker import JoinPlan, joined, opened_here

ROWS_AT_ONCE = 10_000
"""The number of events to look up at once: that of an Arrow batch of Spark."""

BLOB_BYTES = 1 << 18
"""The target for the largest size of a blob of waiting events. A segment of state has four times as much."""

_LOOKUPS = "lookups"
"""The column that counts how often an event was looked up so far."""


@dataclass(frozen=True)
class MissingRetries:
    """When and how often an event whose row is missing is looked up again.

    >>> MissingRetries.parse("retry_missing", {"fixed-delay": "10 s", "max-attempts": 3})
    MissingRetries(delay_ms=10000, max_attempts=3)
    """

    delay_ms: int
    max_attempts: int

    @classmethod
    def parse(cls, where: str, options: Mapping[str, Any]) -> "MissingRetries":
        """Parse both options, which have the names of Flink's `LOOKUP` hint. One `OptionError` lists every mistake."""
        problems: list[str] = []
        given = named(options, _OPTIONS, problems)
        values = parsed(given, _OPTIONS, problems)
        problems += [f"{name!r} is missing" for name in _OPTIONS if name not in given]
        refuse_problems(where, problems)
        return cls(**values)


def _attempts(value: Any) -> int:
    number = count(value)
    if number < 1:
        raise ValueError("a whole number of 1 or more")
    return number


_OPTIONS: Known = {"fixed-delay": ("delay_ms", duration_ms), "max-attempts": ("max_attempts", _attempts)}


class LookUpAgain(ArrowStatefulProcessor):
    """The lookup join as a keyed operator; for the time mode ``ProcessingTime``.

    Args:
        plan: the join, whose source is opened in the process that runs this.
        retries: when and how often an event is looked up again.
        events: the columns that are stored: those of the event, and cast keys.
        counted: the accumulator of the counters.
        idle_ms: how long the process that runs this lives when idle.
    """

    def __init__(
        self,
        plan: JoinPlan,
        retries: MissingRetries,
        events: pa.Schema,
        counted: "Accumulator[Counted]",
        idle_ms: int = HOST_IDLE_MS,
    ) -> None:
        self._plan, self._retries, self._counted, self._idle_ms = plan, retries, counted, idle_ms
        self._schema = pa.schema([*((field.name, field.type) for field in events), (_LOOKUPS, pa.int32())])

    def init(self, handle: ArrowProcessorHandle) -> None:
        """Open the state: blobs of events by the time at which they are due."""
        self._handle = handle
        self._waiting = handle.getMapState("waiting", "due_ms bigint", "events binary")

    def handleInputTable(  # noqa: N802
        self,
        keys: pa.Table,
        rows: pa.Table,
        key_index: pa.Array,  # noqa: ARG002 - events are looked up by the table's key
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pa.RecordBatch]:
        """Look up the events of a batch."""
        given = rows.select(range(len(self._schema) - 1))
        lookups = pa.array(np.zeros(rows.num_rows, np.int32))
        # Cast to the declared types, because Spark's Arrow types depend on the session's settings.
        events = pa.table([*given.columns, lookups], names=self._schema.names).cast(self._schema)
        yield from self._look_up(events, keys, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimers(  # noqa: N802
        self,
        keys: pa.Table,
        expiry_ms: pa.Array,
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pa.RecordBatch]:
        """Look up the events that are due again."""
        due = {"due_ms": expiry_ms}
        blobs = self._waiting.get_many(keys, due)["events"].drop_null()
        self._waiting.remove_many(keys, due)
        if len(blobs):
            events = pa.concat_tables(self._decoded(blob.as_buffer()) for blob in blobs)
            yield from self._look_up(events, keys, timerValues.getCurrentProcessingTimeInMs())

    def _look_up(self, events: pa.Table, homes: pa.Table, now_ms: int) -> Iterator[pa.RecordBatch]:
        """Yield the events that leave. Store the others under some of the keys in `homes`."""
        missing: list[pa.RecordBatch] = []
        with closing(opened_here(self._plan, self._idle_ms)) as rows:
            for batch in events.combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE):
                numbers, keys = distinct_keys([batch.column(place) for place in self._plan.key_places])
                before = batch.column(_LOOKUPS).to_numpy()
                if before[0]:
                    # All events of a call are new, or all have waited.
                    rows.forget_missing(keys)
                matches = matched(self._plan.wanted, rows, keys)
                absent = _absent(numbers, matches)
                waits = absent & (before < self._retries.max_attempts)
                self._counted.add(matches.counted + _counted(numbers, matches, absent, waits, again=bool(before[0])))
                yield from joined(self._plan, batch.filter(pa.array(~waits)), numbers[~waits], matches)
                if waits.any():
                    missing.append(_looked_up_once_more(batch.filter(pa.array(waits))))
        if missing:
            self._keep(pa.Table.from_batches(missing), homes, now_ms + self._retries.delay_ms)

    def _keep(self, events: pa.Table, homes: pa.Table, due_ms: int) -> None:
        """Store events as blobs, which are spread over the keys in `homes`."""
        rows = max(1, min(ROWS_AT_ONCE, BLOB_BYTES * events.num_rows // max(1, events.nbytes)))
        parts = [events.slice(start, rows) for start in range(0, events.num_rows, rows)]
        used = homes.column(0).combine_chunks().unique().slice(0, len(parts))
        keys, due = pa.table([used], schema=homes.schema), {"due_ms": pa.array([due_ms] * len(used))}
        blobs = []
        for home, blob in enumerate(self._waiting.get_many(keys, due)["events"]):
            # If the clock went back, other events may be due at the same time.
            there = [self._decoded(blob.as_buffer())] if blob.is_valid else []
            blobs.append(_encoded(pa.concat_tables([*there, *parts[home :: len(used)]])))
        self._waiting.update_many(keys, due, {"events": pa.array(blobs, pa.binary())})
        self._handle.registerTimers(keys, due_ms)

    def _decoded(self, blob: pa.Buffer) -> pa.Table:
        """Return the events of a blob.

        Raises:
            DataError: the blob was written by a stream with other columns.
        """
        with pa.ipc.open_stream(blob) as reader:
            there: pa.Schema = reader.schema
            if not there.equals(self._schema):
                raise DataError(
                    f"lookup_join with {self._plan.wanted.name!r}, retry_missing: events that wait for their row in "
                    f"this checkpoint have the columns {_described(there)}; the stream now has "
                    f"{_described(self._schema)}. Start it with the columns as they were until these events have left, "
                    "or begin a new checkpoint"
                )
            return reader.read_all()


def _absent(numbers: Positions, matches: Matches) -> npt.NDArray[np.bool_]:
    """Return which events have a key without rows, whose lookup did not fail."""
    absent = (numbers >= 0) & ~failed_events(numbers, matches.failures)
    absent[absent] = matches.counts[numbers[absent]] == 0
    return absent


def _counted(
    numbers: Positions,
    matches: Matches,
    absent: npt.NDArray[np.bool_],
    waits: npt.NDArray[np.bool_],
    *,
    again: bool,
) -> Counted:
    keyed = numbers[numbers >= 0]
    repeats = len(keyed) - len(np.unique(keyed))
    if not again:
        return Counted(LookupStats(event_hit_count=repeats))
    return Counted(
        LookupStats(
            event_hit_count=repeats,
            missing_retry_count=len(numbers),
            missing_found_count=int(np.count_nonzero(matches.counts[numbers])),
            missing_given_up_count=int(np.count_nonzero(absent & ~waits)),
        )
    )


def _encoded(events: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, events.schema) as writer:
        writer.write_table(events)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _looked_up_once_more(events: pa.RecordBatch) -> pa.RecordBatch:
    lookups = pc.add(events.column(_LOOKUPS), pa.scalar(1, pa.int32()))
    return pa.RecordBatch.from_arrays([*events.columns[:-1], lookups], schema=events.schema)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in list(schema)[:-1])
