"""The operator as Spark sees it: a PySpark `StatefulProcessor` keyed by shard.

It runs in Spark's Python worker and keeps nothing from batch to batch. `ShardBatches` does the work of a batch.

Whenever a query starts, Spark also starts a process that declares this processor's states on the driver, and the first
batch waits for it. So what a batch needs (Arrow, the state) is imported and unpickled by the first batch only.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import BinaryType, LongType, StructType

from millpond.spark.environment.tracebacks import fold_own_frames
from millpond.spark.environment.worker_garbage import leave_modules_out

if TYPE_CHECKING:
    from millpond.spark.spec.operator import BatchTime, OperatorSpec

_OWN_STATES = ("head", "segments")
# Not as text: PySpark would have the JVM parse it, twice for each state in every batch.
_MANIFEST = StructType().add("head", BinaryType())
_SEGMENT_ID = StructType().add("id", LongType())
_SEGMENT = StructType().add("data", BinaryType())


class ShardProcessor(StatefulProcessor):  # type: ignore[misc]
    """Runs a keyed operator's batches, shard by shard.

    Spark calls a shard with its rows, and then once for each of the shard's own Spark timers that expired.
    The first call processes the rows and the user's due timers, and sets the shard's Spark timer anew. So the
    second kind of call only reaches shards without rows.
    """

    def __init__(self, spec: "OperatorSpec") -> None:
        self._spec: OperatorSpec | None = spec
        self._states = tuple(state.name for state in spec.states)
        self._time_mode = spec.time_mode
        self._has_initial = spec.initial is not None
        self._pickled = self._pickled_without_processor = b""
        self._initial: list[bytes] = []
        self._waiting: dict[int, list[bytes]] = {}
        self._firing_ms: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Replace the spec with bytes. Those with the processor are unpickled only by the process that runs it.

        It is pickled here, while Spark pickles the function that carries it, so that Spark sees its broadcasts.
        """
        assert self._spec is not None, "pickled on the driver, once planned"  # noqa: S101
        return {
            **vars(self),
            "_spec": None,
            "_pickled": cloudpickle.dumps(replace(self._spec, metrics=None)),
            "_pickled_without_processor": cloudpickle.dumps(replace(self._spec, processor=None)),
        }

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states of manifest and segments."""
        self._handle = handle
        self._stored_manifest = handle.getValueState("head", _MANIFEST)
        self._stored_segments = handle.getMapState("segments", _SEGMENT_ID, _SEGMENT)
        if TaskContext.get() is None:
            self._refuse_other_owners(handle)

    def _refuse_other_owners(self, handle: StatefulProcessorHandle) -> None:
        """Declare the user's states, so that Spark refuses a checkpoint of PySpark's own operator.

        On the driver Spark compares the declared states with those of the checkpoint, by name. It accepts names that
        the checkpoint does not have. Without this, a query that moved here from PySpark's own operator and kept its
        checkpoint would go on from its offsets without any state. No task ever makes these states.
        """
        for state in self._states:
            if state not in _OWN_STATES:
                handle.getValueState(state, _MANIFEST)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: TimerValues) -> None:
        """Keep a blob of initial state until the shard runs, later in this batch."""
        if not self._initial:
            # A shard without rows must run too, so that timers that are already due fire in this batch.
            self._come_back(timerValues)
        self._initial.append(bytes(initialState[1]))
        self._initial_of = key, timerValues

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Run one batch of one shard and yield its output as packed blobs.

        With an initial state, PySpark cuts a shard's rows into pieces of `maxRecordsPerBatch` and calls this once for
        each. They are still one batch: late rows are judged by the watermark of the previous batch, and timers fire
        after the last row. So the pieces wait until Spark calls the shard's timer, which it does last.
        """
        blobs = (bytes(row[1]) for row in rows)
        if not self._has_initial or self._time_mode == "none":
            return self._run(key[0], blobs, timerValues)
        if key[0] not in self._waiting:
            self._come_back(timerValues)
        self._waiting.setdefault(key[0], []).extend(chain(self._initial, blobs))
        self._initial = []
        return iter(())

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Row]:
        """Run a batch without rows because time has passed, or a batch whose rows waited for this call."""
        self._firing_ms = expiredTimerInfo.getExpiryTimeInMs()
        try:
            yield from self._run(key[0], iter(self._waiting.pop(key[0], ())), timerValues)
        finally:
            self._firing_ms = None

    def _come_back(self, timer_values: TimerValues) -> None:
        """Set a timer, so that Spark calls the shard once more in this batch, after all rows."""
        if self._time_mode == "none":
            return
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        is_event_time = self._time_mode == "eventtime"
        now_ms = (
            timer_values.getCurrentWatermarkInMs() if is_event_time else timer_values.getCurrentProcessingTimeInMs()
        )
        self._handle.registerTimer(now_ms)

    def close(self) -> None:
        """Process the initial state of a shard that has no rows and no timers. Such a batch has no output."""
        if self._initial:
            key, timer_values = self._initial_of
            # PySpark has cleared its current key before it calls close.
            self._handle._statefulProcessorApiClient.set_implicit_key(key)  # noqa: SLF001
            output = [row for row in self._run(key[0], iter(()), timer_values) if row.blob is not None]
            assert not output, "only rows and due timers make output"  # noqa: S101

    def _run(self, routing_key: int, rows: Iterator[bytes], timer_values: TimerValues) -> Iterator[Row]:
        from millpond.spark.operator.shard_batches import ShardBatches
        from millpond.spark.spec.operator import BatchTime

        rows, self._initial = chain(self._initial, rows), []
        time = BatchTime(timer_values.getCurrentProcessingTimeInMs(), timer_values.getCurrentWatermarkInMs())
        try:
            batches = ShardBatches(
                self._operator(), self._pickled, self._stored_manifest, self._stored_segments, self._set_shard_timer
            )
            yield from batches.run(routing_key, rows, time)
        except Exception as error:
            fold_own_frames(error)
            raise

    def _operator(self) -> "OperatorSpec":
        """Return the operator without its processor."""
        if self._spec is None:
            spec: OperatorSpec = cloudpickle.loads(self._pickled_without_processor)
            self._spec = spec
            leave_modules_out()
        return self._spec

    def _set_shard_timer(self, time: "BatchTime", next_timer_ms: int) -> None:
        """Set a timer, so that Spark calls this shard when time passes, even if no rows come for it.

        In event time every advance of the watermark matters, since the next batch's late rows are judged by
        it. In processing time only the user's next timer matters.
        """
        if self._time_mode == "none":
            return
        for timer in list(self._handle.listTimers()):
            # PySpark deletes the one that fires, and Spark's log has a warning if that is gone.
            if timer != self._firing_ms:
                self._handle.deleteTimer(timer)
        if self._time_mode == "eventtime":
            self._handle.registerTimer(time.watermark_ms + 1)
        elif next_timer_ms >= 0:
            self._handle.registerTimer(max(next_timer_ms, time.processing_ms + 1))
