"""What surrounds user code in a Python worker of Spark, taken along to a state host.

A state host is no worker: Spark has told it nothing of the task, of broadcasts or of files. So the
worker hands its own task environment over with every batch, and the host puts them around the thread that
runs the batch: `TaskContext.get()`, broadcast values, `SparkFiles.get(...)`, `sys.path`. What user code
adds to accumulators comes back the other way, and the worker adds it to its own, which Spark collects.

The processor is pickled once, on the driver, and goes through the worker unopened: a worker need not
import what it does not run. So it is the host that meets its broadcasts and accumulators. In a pickle
two functions of PySpark's stand for them; while the host unpickles, two others take their place, which
know the thread's task environment.

Invariant: several batches run in one host at a time, and none sees the task, the broadcasts or the
accumulators of another. `sys.path` and the files' folder are one for the process, as they are one for
the application.
"""

import importlib
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pyspark import Accumulator, AccumulatorParam, Broadcast, SparkContext, SparkFiles, TaskContext, cloudpickle
from pyspark.accumulators import _deserialize_accumulator
from pyspark.core.broadcast import _broadcastRegistry

from millpond.errors import UnavailableError


@dataclass(frozen=True)
class TaskEnvironment:
    """A task's own.

    Attributes:
        task: the fields of its TaskContext, or None where there is none.
        sys_path: where modules are found, those of `addPyFile` included.
        files: the folder of `addFile`.
        broadcast_files: by id, the file with the pickled value of each broadcast of the task.
        broadcast_values: by id, the value where there is no such file, because Spark encrypts what it writes.
    """

    task: dict[str, Any] | None = None
    sys_path: tuple[str, ...] = ()
    files: str | None = None
    broadcast_files: dict[int, str] = field(default_factory=dict)
    broadcast_values: dict[int, Any] = field(default_factory=dict)

    @staticmethod
    def of_worker() -> "TaskEnvironment":
        """Those of the task that this worker runs."""
        task = TaskContext.get()
        broadcasts: dict[int, Broadcast[Any]] = _broadcastRegistry
        return TaskEnvironment(
            task=None if task is None else dict(vars(task)),
            sys_path=tuple(sys.path),
            files=SparkFiles._root_directory,
            broadcast_files={at: each._path for at, each in broadcasts.items() if each._path is not None},
            broadcast_values={at: each.value for at, each in broadcasts.items() if each._path is None},
        )

    def encode(self) -> bytes:
        """As bytes, for the host."""
        data: bytes = cloudpickle.dumps(self)
        return data

    @contextmanager
    def entered(self) -> Iterator["Arrival"]:
        """Put them around this thread; the modules' path and the files' folder around the process."""
        _enter_process(self.sys_path, self.files)
        fields: dict[str, Any] = _TASKS.__dict__
        fields.update(self.task or {})
        try:
            yield Arrival(self._broadcast)
        finally:
            fields.clear()

    def _broadcast(self, number: int) -> "Broadcast[Any]":
        if number in self.broadcast_files:
            return _broadcast_in(self.broadcast_files[number])
        if number in self.broadcast_values:
            broadcast: Broadcast[Any] = Broadcast(path="")
            broadcast._value = self.broadcast_values[number]
            return broadcast
        raise UnavailableError(
            f"broadcast {number} is not at hand in this task. Spark sends those that the processor referred to when "
            "the query was planned: refer to it there, and do not destroy it while the query runs."
        )


class Arrival:
    """Unpickles what the driver pickled, and keeps what user code adds to its accumulators."""

    def __init__(self, broadcast: "Callable[[int], Broadcast[Any]]") -> None:
        self._broadcast = broadcast
        self._accumulators: dict[int, Accumulator[Any]] = {}

    def load(self, pickled: bytes) -> Any:
        """The object. Its accumulators begin at their zero, and are this arrival's alone."""
        return _Unpickler(io.BytesIO(pickled), self._broadcast, self._accumulator).load()

    def additions(self) -> bytes:
        """What was added to accumulators, for `add_to_accumulators`; empty where there are none."""
        if not self._accumulators:
            return b""
        added = [(each.aid, each.accum_param, each._value) for each in self._accumulators.values()]
        data: bytes = cloudpickle.dumps(added)
        return data

    def _accumulator(self, number: int, zero: Any, param: "AccumulatorParam[Any]") -> "Accumulator[Any]":
        if number not in self._accumulators:
            # Its constructor would put it into the registry that all threads of the process share.
            accumulator: Accumulator[Any] = object.__new__(Accumulator)
            accumulator.aid, accumulator.accum_param, accumulator._value = number, param, zero
            accumulator._deserialized = True
            self._accumulators[number] = accumulator
        return self._accumulators[number]


def add_to_accumulators(additions: bytes) -> None:
    """Add what user code added in a host to this worker's accumulators, which Spark takes when the task succeeds."""
    if additions:
        for number, param, value in cloudpickle.loads(additions):
            _deserialize_accumulator(number, param.zero(value), param).add(value)


def copied_on_driver(carried: Any) -> Any:
    """A copy of what is going to travel, for a try on the driver: what it adds to accumulators does not count."""
    context = SparkContext._active_spark_context
    pickled = cloudpickle.dumps(carried)
    if context is None:
        return cloudpickle.loads(pickled)
    # Pickling notes broadcasts for the function that is being made; none is.
    broadcasts = {each._jbroadcast.id(): each for each in context._pickled_broadcast_vars}
    context._pickled_broadcast_vars.clear()
    return Arrival(broadcasts.__getitem__).load(pickled)


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        data: io.BytesIO,
        broadcast: Callable[..., "Broadcast[Any]"],
        accumulator: Callable[..., "Accumulator[Any]"],
    ) -> None:
        super().__init__(data)
        self._instead = {
            ("pyspark.core.broadcast", "_from_id"): broadcast,
            ("pyspark.accumulators", "_deserialize_accumulator"): accumulator,
        }

    def find_class(self, module: str, name: str) -> Any:
        return self._instead.get((module, name)) or super().find_class(module, name)


class _ThreadsTask(TaskContext, threading.local):  # type: ignore[misc]
    """The task of whichever thread asks."""

    def __new__(cls) -> Self:
        # TaskContext's own would give, and keep, one for all.
        return threading.local.__new__(cls)


_TASKS = _ThreadsTask()
_PROCESS = threading.Lock()
_BROADCASTS: "dict[str, Broadcast[Any]]" = {}


def _enter_process(sys_path: tuple[str, ...], files: str | None) -> None:
    with _PROCESS:
        TaskContext._setTaskContext(_TASKS)
        SparkFiles._root_directory, SparkFiles._is_running_on_worker = files, True
        if sys_path and tuple(sys.path) != sys_path:
            sys.path[:] = [*sys_path, *(path for path in sys.path if path not in sys_path)]
            importlib.invalidate_caches()


def _broadcast_in(file: str) -> "Broadcast[Any]":
    """The broadcast of a file. Its value is read when first asked for, and stays while Spark keeps the file."""
    with _PROCESS:
        if file not in _BROADCASTS:
            for gone in [path for path in _BROADCASTS if not Path(path).exists()]:
                del _BROADCASTS[gone]
            _BROADCASTS[file] = Broadcast(path=file)
        return _BROADCASTS[file]
