"""The operator as Spark carries it: a shard processor that stays bytes until a task unpickles it.

At each start of a query Spark also begins a Python process on the driver. There the processor declares its states,
and the process ends. To load the shard processor in it, with numpy, Arrow and the backends, takes longer than all
else that it does, and the batch waits. So that process loads this module alone, which imports nothing but PySpark.
"""

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

_MANIFEST, _SEGMENTS = "head", "segments"


def own_states(handle: StatefulProcessorHandle) -> tuple[Any, Any]:
    """Declare and return the states in which Spark's store keeps a shard: its manifest and its segments."""
    return (
        handle.getValueState(_MANIFEST, "head binary"),
        handle.getMapState(_SEGMENTS, "id long", "data binary"),
    )


class DeferredProcessor(StatefulProcessor):  # type: ignore[misc]
    """Declares states on the driver, and hands each call in a task to the shard processor.

    Args:
        processor: the shard processor. Whoever unpickles this object has it from `init` in a task on.
        states: the names of the user's states.
    """

    _pickled: bytes

    def __init__(self, processor: StatefulProcessor, states: tuple[str, ...]) -> None:
        self._processor = processor
        self._states = states

    def __getstate__(self) -> dict[str, Any]:
        """Replace the processor with bytes. They are made while Spark pickles, so that Spark sees its broadcasts."""
        return {"_pickled": cloudpickle.dumps(self._processor), "_states": self._states}

    def init(self, handle: StatefulProcessorHandle) -> None:
        """On the driver, declare the states. In a task, unpickle the processor, which declares its own."""
        if TaskContext.get() is None:
            own_states(handle)
            self._refuse_other_owners(handle)
        else:
            self._processor = cloudpickle.loads(self._pickled)
            self._processor.init(handle)

    def _refuse_other_owners(self, handle: StatefulProcessorHandle) -> None:
        """Declare the user's states, so that Spark refuses a checkpoint of PySpark's own operator.

        On the driver Spark compares the declared states with those of the checkpoint, by name. It accepts names that
        the checkpoint does not have. Without this, a query that moved here from PySpark's own operator and kept its
        checkpoint would go on from its offsets without any state. No task ever makes these states.
        """
        for name in self._states:
            if name not in (_MANIFEST, _SEGMENTS):
                handle.getValueState(name, "head binary")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: TimerValues) -> None:
        """Hand a row of initial state on."""
        self._processor.handleInitialState(key, initialState, timerValues)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Hand a shard's rows on, and its output back."""
        return self._processor.handleInputRows(key, rows, timerValues)  # type: ignore[no-any-return]

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Hand a shard's expired timer on, and its output back."""
        return self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let the processor end."""
        self._processor.close()
