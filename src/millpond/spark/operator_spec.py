"""What one keyed operator is: everything that a task or a state host must know of it, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from millpond.errors import OptionError
from millpond.spark.operator_metrics import KeyedMetrics
from millpond.state.options import StateOptions

DEAD_LETTER = "dead_letter"
"""The column of the output in which dead letters are."""

_BACKEND = "state.backend.type"


@dataclass(frozen=True)
class StateConfig:
    """Where a keyed operator holds its live state.

    Attributes:
        backend: "heap", Python objects in memory; "rocksdb", on local disk; or the name of a registered backend.
            None: what `options` say, else "heap".
        host: "process", long-lived state hosts beside the workers; or "inline", inside the workers
            themselves: slower, since a worker is no home, but `print` and `breakpoint()` work.
        hosts: how many state hosts an executor has at most. None: one a core.
        options: option strings, such as `{"state.backend.cache.max-entries-num": "1000"}`.

    >>> StateConfig(backend="rocksdb", host="inline").backend
    'rocksdb'
    >>> StateConfig(backend="rockdb")
    Traceback (most recent call last):
    millpond.errors.OptionError: state options:
    - 'state.backend.type': expected a registered backend, one of heap, rocksdb (did you mean 'rocksdb'?), got 'rockdb'
    """

    backend: str | None = None
    host: str = "process"
    hosts: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    parsed: StateOptions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _one_of("host", self.host, ("process", "inline"))
        if self.hosts is not None and self.hosts < 1:
            raise OptionError(f"StateConfig(hosts={self.hosts!r}): expected 1 or more, or None for one a core.")
        named = {} if self.backend is None else {_BACKEND: self.backend}
        given = [value for name, value in self.options.items() if name.strip().lower() == _BACKEND]
        if named and given:
            raise OptionError(
                f"StateConfig(backend={self.backend!r}) and its option {_BACKEND!r} ({given[0]!r}) name the backend "
                "twice; keep one."
            )
        parsed = StateOptions.parse({**self.options, **named})
        if parsed.checkpoint_storage is not None:
            raise OptionError(
                "'state.checkpoint-storage' has no effect in a Spark query: checkpoints go through Spark's own state "
                "store, in the query's checkpointLocation; remove it."
            )
        object.__setattr__(self, "backend", parsed.backend)
        object.__setattr__(self, "parsed", parsed)


@dataclass(frozen=True)
class BatchTime:
    """The times of one micro-batch, in ms; -1 where the time mode has none."""

    processing_ms: int = -1
    watermark_ms: int = -1


@dataclass(frozen=True)
class OperatorSpec:
    """One keyed operator, as the driver planned it.

    Attributes:
        application: the id of the Spark application that planned it.
        processor: the user's own object. It travels as an object, so that what it refers to is
            pickled with the function that carries it.
        key_schema: of the grouping key.
        key_positions: where the key's columns are in the packed rows.
        row_names: the columns that user code sees; packed rows may end with more.
        output_schema: of what the processor yields.
        time_mode: "none", "eventtime" or "processingtime".
        event_time: the position of the column with the watermark, or None.
        keep_late: whether rows later than the watermark are kept.
        dead_letter: the type of a dead letter, or None where a call that fails fails the batch.
        ddl: schemas that the processor gives as text, parsed by the driver.
        metrics: adds up what the operator counts, on the driver; None where a driver cannot, as under Connect.
        hosts: how many state hosts an executor has; 0: one for each processor of its machine.
        config: where the live state is held.
    """

    application: str
    processor: StatefulProcessor
    key_schema: pa.Schema
    key_positions: tuple[int, ...]
    row_names: tuple[str, ...]
    output_schema: pa.Schema
    time_mode: str
    event_time: int | None
    keep_late: bool
    metrics: "Accumulator[KeyedMetrics] | None"
    hosts: int
    config: StateConfig
    dead_letter: pa.DataType | None = None
    ddl: Mapping[str, StructType] = field(default_factory=dict)


def _one_of(option: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"StateConfig({option}={value!r}): expected one of {', '.join(map(repr, known))}.")
