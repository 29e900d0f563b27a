"""The specification of one keyed operator: everything that a task or a state host must know of it, as data."""

import secrets
from collections.abc import Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql.types import StructType

from millpond.errors import OptionError
from millpond.spark.spec.metrics import KeyedMetrics
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.options.operator import StateOptions
from millpond.state.spillable.options import SpillableSettings
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.timer_states import PROCESSING_TIMERS, TIMERS
from millpond.state.wrappers.choice import CacheHooks

DEAD_LETTER = "dead_letter"
"""The output column that holds dead letters."""

_OPTION_OF = {
    "backend": "state.backend.type",
    "cache": "state.backend.cache",
    "max_entries": "state.backend.cache.max-entries-num",
    "max_bytes": "state.backend.cache.max-bytes",
    "max_size": "state.backend.cache.max-size",
    "max_size_l2": "state.backend.cache.max-size-l2",
}


HOST_TIMEOUT = timedelta(hours=1)
"""How long a worker waits for a state host by default. It is longer than any batch should take."""


@dataclass(frozen=True)
class StateConfig:
    """Where a keyed operator holds its live state, and which cache is in front of it.

    Attributes:
        backend: "heap", Python objects in memory; "rocksdb", on local disk; "spillable", in memory, with cold key
            groups on disk when memory runs short; or the name of a registered backend. None: what `options` say, else
            "heap".
        host: "process": long-lived state hosts beside the workers. "inline": inside the workers themselves. That is
            slower, since a shard's next batch may run in another worker and restore, but `print` and `breakpoint()`
            work.
        hosts: how many state hosts an executor has at most. None: one for each core.
        options: option strings, such as `{"state.backend.cache.max-entries-num": "1000"}`.
        cache: "none"; "lru", in front of the backend; "write-back" or "two-layer", in front of each value state.
            None: what `options` say, else "lru" where `max_entries` or `max_bytes` is given, else "none".
        max_entries: how many entries "lru" keeps for each shard, over all its states.
        max_bytes: how many bytes "lru" keeps, a number or a size such as "64mb".
        max_size: how many keys "write-back" keeps, and "two-layer" in L1, for each value state and shard.
        max_size_l2: how many more keys "two-layer" keeps in L2.
        hooks: objects that "write-back" and "two-layer" call. They are pickled to the process that holds the state,
            and stay there.
        on_lost_state: what to do with a shard whose manifest or segments are missing or altered. "fail" raises an
            error. "reset" starts the shard without state, or with the state of the query's savepoint. The query then
            goes on from its current offsets.
        host_timeout: how long a worker waits for a sign of life of its state host, which gives one at the latest when
            a batch of a shard is done. A host that gives none hangs: it is killed, the task fails with an error that
            says so, and the next task starts another host. None: for ever.
        seal: a key of 16 to 64 random bytes, such as `secrets.token_bytes(32)`. What the query stores is then sealed
            with a keyed MAC. A checkpoint or savepoint that is not sealed with this key is refused. Use it where
            others can write to the checkpoint. None: checksums, which find accidents only. The key is never shown or
            stored.

    With any cache, a batch's changes are written before the batch is durable. So the next start may choose another
    cache, size or backend.

    >>> StateConfig(backend="rocksdb", cache="two-layer", max_size=1000, max_size_l2=100_000).backend
    'rocksdb'
    >>> StateConfig(backend="rockdb")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    millpond.errors.OptionError: state options:
    - 'state.backend.type': expected a registered backend, one of heap, ... (did you mean 'rocksdb'?), got 'rockdb'
    """

    backend: str | None = None
    host: str = "process"
    hosts: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    cache: str | None = None
    max_entries: int | None = None
    max_bytes: int | str | None = None
    max_size: int | None = None
    max_size_l2: int | None = None
    hooks: CacheHooks | None = field(default=None, compare=False)
    on_lost_state: str = "fail"
    host_timeout: timedelta | None = HOST_TIMEOUT
    seal: Seal | bytes | None = None
    parsed: StateOptions = field(init=False, repr=False, compare=False)
    opened_with: tuple[StateOptions, str] = field(init=False, repr=False, compare=False)
    """Identifies how a backend was opened. One in memory is reused only if this is equal.

    Hooks cannot be compared, so a config with hooks gets a random token.
    """

    def __post_init__(self) -> None:
        _one_of("host", self.host, ("process", "inline"))
        _one_of("on_lost_state", self.on_lost_state, ("fail", "reset"))
        if self.host_timeout is not None and self.host_timeout <= timedelta(0):
            raise OptionError(
                f"StateConfig(host_timeout={self.host_timeout!r}): expected a timedelta above 0, or None for no limit."
            )
        object.__setattr__(self, "seal", Seal.of(self.seal))
        if self.hosts is not None and self.hosts < 1:
            raise OptionError(f"StateConfig(hosts={self.hosts!r}): expected 1 or more, or None for one a core.")
        named = {option: getattr(self, name) for name, option in _OPTION_OF.items() if getattr(self, name) is not None}
        given = {name.strip().lower(): value for name, value in self.options.items()}
        for name, option in _OPTION_OF.items():
            if option in named and option in given:
                raise OptionError(
                    f"StateConfig({name}={named[option]!r}) and its option {option!r} ({given[option]!r}) say the same "
                    "twice; keep one."
                )
        parsed = StateOptions.parse({**self.options, **named}, hooks=self.hooks)
        if parsed.checkpoint_storage is not None:
            raise OptionError(
                "'state.checkpoint-storage' has no effect in a Spark query: checkpoints go through Spark's own state "
                "store, in the query's checkpointLocation; remove it."
            )
        object.__setattr__(self, "backend", parsed.backend)
        object.__setattr__(self, "parsed", parsed)
        object.__setattr__(self, "opened_with", (parsed, "" if self.hooks is None else secrets.token_hex(8)))

    def shared_by(self, hosts: int) -> "StateConfig":
        """Return the config for each of an executor's hosts: a memory limit is the executor's, and is divided."""
        settings = self.parsed.settings
        if not isinstance(settings, SpillableSettings):
            return self
        shared = copy(self)
        parsed = replace(self.parsed, settings=replace(settings, hosts=hosts))
        object.__setattr__(shared, "parsed", parsed)
        object.__setattr__(shared, "opened_with", (parsed, self.opened_with[1]))
        return shared


@dataclass(frozen=True)
class BatchTime:
    """The times of one micro-batch, in ms; -1 where the time mode has none."""

    processing_ms: int = -1
    watermark_ms: int = -1


@dataclass(frozen=True)
class InitialRows:
    """The layout of an initial state's rows.

    Attributes:
        key_positions: the positions of the key's columns.
        row_names: the columns that user code sees. Packed rows may have more at their end.
    """

    key_positions: tuple[int, ...]
    row_names: tuple[str, ...]


@dataclass(frozen=True)
class PandasSettings:
    """The session's settings for PySpark's conversions to and from pandas.

    Attributes:
        timezone: the zone in which pandas shows times: `spark.sql.session.timeZone`.
        max_rows: most rows of one DataFrame: `spark.sql.execution.arrow.maxRecordsPerBatch`; 0 or less is no limit.
        max_bytes: most bytes of one DataFrame as Arrow, by the mean size of its rows:
            `spark.sql.execution.arrow.maxBytesPerBatch`.
        columns_by_name: whether yielded columns are found by name:
            `spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName`.
        safe: whether a conversion that loses something is refused:
            `spark.sql.execution.pandas.convertToArrowArraySafely`.
        int_to_decimal: whether a decimal column accepts integers:
            `spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled`.
        nullable_integers: whether integers come as pandas' own nullable types:
            `spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype`.
    """

    timezone: str = "UTC"
    max_rows: int = 10_000
    max_bytes: int = 2**31 - 1
    columns_by_name: bool = True
    safe: bool = False
    int_to_decimal: bool = False
    nullable_integers: bool = False


@dataclass(frozen=True)
class OperatorSpec:
    """One keyed operator, as the driver planned it.

    Attributes:
        application: the id of the Spark application that planned it.
        processor: the user's own object, of the form's class. It is kept as an object, so that what it refers to is
            pickled with the function that carries it.
        key_schema: the schema of the grouping key.
        key_positions: the positions of the key's columns in the packed rows.
        row_names: the columns that user code sees. Packed rows may have more at their end.
        output_schema: the schema of what the processor yields. A column that is not nullable takes no nulls.
        time_mode: "none", "eventtime" or "processingtime".
        event_time: the position of the column with the watermark, or None.
        keep_late: whether rows later than the watermark are kept.
        dead_letter: the type of a dead letter, or None where a call that fails fails the batch.
        ddl: schemas that the processor gives as text, parsed by the driver.
        states: the states that the processor declares, as the driver found them.
        deleted: the names of states that the processor declares and then deletes.
        savepoint: where the state of a new query comes from, or None.
        form: how user code gets rows: "rows", "pandas" or "arrow".
        pandas: how the pandas form converts.
        metrics: sums the operator's metrics on the driver. None without accumulators, as under Connect.
        observed: whether the output has a row with the metrics of each batch of a shard, as under Connect.
        hosts: how many state hosts an executor has. 0: one for each processor of its machine.
        config: where the live state is held.
        initial: the layout of the initial state's rows, or None without an initial state.
        streaming: whether the operator is part of a stream. The shards of a batch job run once.
        output_event_time: the position of the output column that carries the watermark on, or None.
        name: the operator's name in errors: the class name of its processor. It is here because not every process
            that raises errors has the processor.
    """

    application: str
    processor: Any
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
    states: tuple[StateDescriptor, ...] = ()
    deleted: frozenset[str] = frozenset()
    savepoint: str | None = None
    initial: InitialRows | None = None
    streaming: bool = True
    output_event_time: int | None = None
    observed: bool = False
    form: str = "rows"
    pandas: PandasSettings = PandasSettings()
    name: str = ""

    @property
    def timers(self) -> StateDescriptor:
        """The state that holds the timers of all keys."""
        return PROCESSING_TIMERS if self.time_mode == "processingtime" else TIMERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.shared_by(self.hosts))
        object.__setattr__(self, "name", self.name or type(self.processor).__name__)


def _one_of(option: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"StateConfig({option}={value!r}): expected one of {', '.join(map(repr, known))}.")
