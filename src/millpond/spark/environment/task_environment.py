"""The environment of a Spark task, carried from the worker to a state host.

A state host is not a Spark worker: Spark does not tell it about the task, broadcasts or files. So the
worker sends its task environment with every batch. The host sets it up for the thread that runs the batch:
`TaskContext.get()`, broadcast values, `SparkFiles.get(...)`, `sys.path`. What user code adds to
accumulators is sent back, and the worker adds it to its own, which Spark collects.

The processor is pickled once, on the driver. The worker passes the pickle on, so it need not import the
user's modules. The host unpickles it, and so must resolve its broadcasts and accumulators. A pickle refers to
them by two functions of PySpark's. While the host unpickles, it replaces these two by functions that know
the thread's task environment.

Invariant: several batches may run in one host at a time, and none sees the task, the broadcasts or the
accumulators of another. `sys.path` and the files' folder are shared by the process, since they are the same
for the whole application.
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

from millpond.errors import OptionError, UnavailableError


@dataclass(frozen=True)
class TaskEnvironment:
    """The environment of one task.

    Attributes:
        task: the fields of its TaskContext, or None where there is none.
        sys_path: where modules are found, those of `addPyFile` included.
        files: the folder of `addFile`.
        broadcast_files: by id, the file with the pickled value of each broadcast of the task.
        broadcast_values: by id, the value of each broadcast without such a file, because Spark encrypts its files.
    """

    task: dict[str, Any] | None = None
    sys_path: tuple[str, ...] = ()
    files: str | None = None
    broadcast_files: dict[int, str] = field(default_factory=dict)
    broadcast_values: dict[int, Any] = field(default_factory=dict)

    @staticmethod
    def of_worker() -> "TaskEnvironment":
        """Return the environment of the task that this worker runs."""
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
        """Encode it as bytes, for the host."""
        data: bytes = cloudpickle.dumps(self)
        return data

    @contextmanager
    def entered(self) -> Iterator["Arrival"]:
        """Set the environment up for this thread. `sys.path` and the files' folder are set for the process."""
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
    """Unpickles what the driver pickled, and collects what user code adds to its accumulators."""

    def __init__(self, broadcast: "Callable[[int], Broadcast[Any]]") -> None:
        self._broadcast = broadcast
        self._accumulators: dict[int, Accumulator[Any]] = {}

    def load(self, pickled: bytes) -> Any:
        """Unpickle an object. Its accumulators begin at their zero, and belong to this arrival only."""
        return _Unpickler(io.BytesIO(pickled), self._broadcast, self._accumulator).load()

    def additions(self) -> bytes:
        """Return what was added to accumulators, encoded for `add_to_accumulators`; empty without accumulators."""
        if not self._accumulators:
            return b""
        added = [(each.aid, each.accum_param, each._value) for each in self._accumulators.values()]
        data: bytes = cloudpickle.dumps(added)
        return data

    def _accumulator(self, number: int, zero: Any, param: "AccumulatorParam[Any]") -> "Accumulator[Any]":
        if number not in self._accumulators:
            # The constructor would put it into the registry that all threads of the process share.
            accumulator: Accumulator[Any] = object.__new__(Accumulator)
            accumulator.aid, accumulator.accum_param, accumulator._value = number, param, zero
            accumulator._deserialized = True
            self._accumulators[number] = accumulator
        return self._accumulators[number]


def add_to_accumulators(additions: bytes) -> None:
    """Add what user code added in a host to this worker's accumulators. Spark collects them if the task succeeds."""
    if additions:
        for number, param, value in cloudpickle.loads(additions):
            _deserialize_accumulator(number, param.zero(value), param).add(value)


def copied_on_driver(carried: Any) -> Any:
    """Copy an object by pickling, for a trial run on the driver. What it adds to accumulators does not count.

    Raises:
        OptionError: the object cannot be pickled.
    """
    context = SparkContext._active_spark_context
    try:
        pickled = cloudpickle.dumps(carried)
    except (TypeError, pickle.PicklingError) as error:
        raise OptionError(_not_picklable(carried, error)) from error
    if context is None:
        return cloudpickle.loads(pickled)
    # Pickling records broadcasts for the function that Spark is sending. Here it sends none, so clear them.
    broadcasts = {each._jbroadcast.id(): each for each in context._pickled_broadcast_vars}
    context._pickled_broadcast_vars.clear()
    return Arrival(broadcasts.__getitem__).load(pickled)


def _not_picklable(carried: Any, error: Exception) -> str:
    blamed = [f"self.{name}" for name, value in getattr(carried, "__dict__", {}).items() if not _is_picklable(value)]
    what = f"; it holds {', '.join(blamed)}" if blamed else ""
    return (
        f"{type(carried).__name__} cannot be sent to Spark's workers: {error}{what}. "
        "Make connections, locks and open files in init(), which runs where the state is."
    )


def _is_picklable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except (TypeError, pickle.PicklingError):
        return False
    return True


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
    """A TaskContext with the fields of the calling thread's task."""

    def __new__(cls) -> Self:
        # TaskContext's own makes one object and returns it to all threads.
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
    """Return the broadcast of a file. Its value is read at first use and cached while Spark keeps the file."""
    with _PROCESS:
        if file not in _BROADCASTS:
            for gone in [path for path in _BROADCASTS if not Path(path).exists()]:
                del _BROADCASTS[gone]
            _BROADCASTS[file] = Broadcast(path=file)
        return _BROADCASTS[file]
