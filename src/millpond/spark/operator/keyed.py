"""`keyed(df, "key")`: PySpark's stateful API with state in memory beside the user's code.

A processor written for `df.groupBy("key").transformWithState(...)` runs unchanged with
`keyed(df, "key").transformWithState(...)`. This module plans the operator on the driver: the data is packed
by shard, passes through Spark's own stateful operator as a few blobs, and is unpacked again.

Delivery: exactly once into the state, at least once into the sink, like Spark's own. Freshness: the
micro-batch. Recovery: Spark's checkpoint; nothing is written elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from millpond.errors import DataError, OptionError
from millpond.options import size_bytes
from millpond.spark.environment.session import check_session, hosts_per_executor, is_connect, setting
from millpond.spark.environment.task_environment import copied_on_driver
from millpond.spark.environment.versions import require_state_packages, start_state_stores
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.forms.arrow_combine import Combining
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.forms.dead_letters import letter_schema, with_dead_letters
from millpond.spark.forms.handles import arrow_schema
from millpond.spark.forms.rows import output_arrow_schema
from millpond.spark.operator.declarations import Declarations, declarations
from millpond.spark.operator.event_time import event_time_position, marked_output
from millpond.spark.operator.initial_state import initial_columns, initial_rows
from millpond.spark.operator.key_columns import KeyColumns, key_columns
from millpond.spark.operator.request import OperatorRequest
from millpond.spark.operator.shard_batches import OLDEST, packed_output_schema
from millpond.spark.operator.shard_processor import ShardProcessor
from millpond.spark.runtime.opened_shard import check_savepoint
from millpond.spark.shuffle.pack import PACKED_SCHEMA, SHARD, pack, unpack, with_key_hashes
from millpond.spark.spec.driver_counts import PlannedOperator, note_operator
from millpond.spark.spec.metrics import KeyedMetrics, MetricsParam
from millpond.spark.spec.observed_metrics import ObservedMetrics
from millpond.spark.spec.operator import OperatorSpec, PandasSettings, StateConfig

_HASH = "__millpond_hash"


class _Mapped(NamedTuple):
    """Rows to which a function over Arrow is applied by the worker that packs what it returns."""

    rows: DataFrame
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class KeyedData:
    """A DataFrame grouped by key columns. Made by `keyed`."""

    def __init__(self, df: DataFrame, keys: tuple[str | Column, ...], mapped: _Mapped | None = None) -> None:
        if not keys:
            raise OptionError('keyed() needs at least one key column, as in keyed(df, "user").')
        self._df = df
        self._keys = key_columns(df, keys)
        self._mapped = mapped
        self._metrics: list[Accumulator[KeyedMetrics]] = []
        self._observed: list[ObservedMetrics] = []

    @property
    def late_rows(self) -> int:
        """Rows dropped so far because the watermark had passed them: `metrics().late_rows`."""
        return self.metrics().late_rows

    def metrics(self, query: StreamingQuery | None = None) -> KeyedMetrics:
        """Return the metrics so far of the operators made from this, summed. Batches that ran again count again.

        Args:
            query: needed for a stream under Spark Connect: the query that runs it. A client only sees the progress of
                the newest batches, 100 unless `spark.sql.streaming.numRecentProgressUpdates` says otherwise. For a
                batch DataFrame under Spark Connect the metrics are those of its last run. Without Spark Connect the
                query is not needed.

        Raises:
            OptionError: the session is one of Spark Connect, this is a stream, and no query is given.
        """
        totals = [each.value for each in self._metrics] + [each.total(query) for each in self._observed]
        return sum(totals, KeyedMetrics())

    def _counted(self, processor: Any) -> "Accumulator[KeyedMetrics]":
        """Make the accumulator for one more operator's metrics, and register the operator with the driver."""
        context = self._df.sparkSession.sparkContext
        counted = context.accumulator(KeyedMetrics(), MetricsParam())
        self._metrics.append(counted)
        note_operator(PlannedOperator(context.applicationId, type(processor).__name__, lambda: counted.value))
        return counted

    def _observe(self, operated: DataFrame, operator: str) -> DataFrame:
        """Observe one more operator, so that Spark reports its metrics with the query's progress."""
        self._observed.append(ObservedMetrics(operator))
        return self._observed[-1].on(operated)

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        late: str = "drop",
        on_error: str = "fail",
        state: StateConfig | None = None,
        savepoint: str | None = None,
    ) -> DataFrame:
        """Run a PySpark `StatefulProcessor` over rows, key by key. The first six parameters are PySpark's.

        Args:
            statefulProcessor: as written for PySpark's `transformWithState`.
            outputStructType: the schema of what it yields, a StructType or DDL text.
            outputMode: "Append" or "Update".
            timeMode: "None", "EventTime" or "ProcessingTime".
            initialState: a grouped batch DataFrame, as in `initial.groupBy("user")`. Its rows go to
                `handleInitialState` in the first batch, each key's before that key's rows.
            eventTimeColumnName: the timestamp column of the output that carries the watermark on, to a
                stateful operator that follows.
            late: "drop" or "keep": what to do in event time with rows that are later than the watermark. Rows are
                late by Spark's own rule, which uses the watermark of the previous batch.
            on_error: what to do when a call of the processor for a key fails. "fail" fails the batch. "dead-letter"
                undoes the call's changes, timers and output, and puts its rows and the reason into an extra column
                of the output, `dead_letter`. See `split_dead_letters`.
            state: where the live state is held.
            savepoint: a path or URI that every executor can read. A new query begins with the state in it, with any
                number of shards. A query that has a checkpoint goes on from that and ignores the savepoint.

        Raises:
            OptionError: an argument is not one of those above, or the session lacks what state needs.
            DataError: a column is missing, or has a type that cannot serve its purpose.
            CorruptionError: the savepoint is damaged; the file is named.
        """
        return self._operated(
            OperatorRequest(
                form="rows",
                processor=statefulProcessor,
                output=outputStructType,
                output_mode=outputMode,
                time_mode=timeMode,
                initial=initialState,
                event_time_column=eventTimeColumnName,
                late=late,
                on_error=on_error,
                config=state,
                savepoint=savepoint,
            )
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        late: str = "drop",
        on_error: str = "fail",
        state: StateConfig | None = None,
        savepoint: str | None = None,
    ) -> DataFrame:
        """Run `transformWithState` with pandas DataFrames in and out, like PySpark's method of that name."""
        return self._operated(
            OperatorRequest(
                form="pandas",
                processor=statefulProcessor,
                output=outputStructType,
                output_mode=outputMode,
                time_mode=timeMode,
                initial=initialState,
                event_time_column=eventTimeColumnName,
                late=late,
                on_error=on_error,
                config=state,
                savepoint=savepoint,
            )
        )

    def transformWithStateInArrow(
        self,
        statefulProcessor: ArrowStatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        late: str = "drop",
        state: StateConfig | None = None,
        savepoint: str | None = None,
    ) -> DataFrame:
        """Run `transformWithState` for vectorised code: one call for each shard and batch, over Arrow tables.

        PySpark has no such form. State is the same as that of the other forms. If the processor has a `combine`,
        rows are combined before the shuffle.
        """
        return self._operated(
            OperatorRequest(
                form="arrow",
                processor=statefulProcessor,
                output=outputStructType,
                output_mode=outputMode,
                time_mode=timeMode,
                initial=initialState,
                event_time_column=eventTimeColumnName,
                late=late,
                config=state,
                savepoint=savepoint,
            )
        )

    def packed_output(self, asked: OperatorRequest) -> DataFrame:
        """Run an operator and leave its output packed: a column of blobs, which `shuffle.pack.unpack` reads.

        This is for Millpond's own functions over Arrow. One that unpacks the rows itself saves a Python worker in each
        task.
        """
        return self._packed_output(asked)[0]

    def _operated(self, asked: OperatorRequest) -> DataFrame:
        packed, output = self._packed_output(asked)
        return packed.mapInArrow(_unpack, output)

    def _packed_output(self, asked: OperatorRequest) -> tuple[DataFrame, StructType]:
        """Return the operator's output, packed, and the schema of its rows."""
        require_state_packages()
        check_session(self._df.sparkSession, streaming=self._df.isStreaming)
        start_state_stores(self._df.sparkSession)
        keys, conf = self._keys, self._df.sparkSession.conf
        output = asked.output_schema()
        given, output_event_time = output, None
        if asked.event_time_column:
            given, output_event_time = marked_output(self._df, output, asked.event_time_column)
        initial = None if asked.initial is None else initial_columns(asked.initial, keys.schema)
        declared = _declarations(asked)
        letter = letter_schema(keys.schema, self._df.schema) if asked.sets_aside else None
        if letter is not None:
            given = with_dead_letters(given, letter)
        config = asked.config or StateConfig()
        observed = is_connect(self._df.sparkSession)
        spec = OperatorSpec(
            application=str(conf.get("spark.app.id")),
            processor=asked.processor,
            key_schema=arrow_schema(keys.schema),
            key_positions=keys.positions,
            row_names=tuple(self._df.columns),
            output_schema=output_arrow_schema(output),
            time_mode=asked.time_mode.lower(),
            event_time=event_time_position(self._df) if asked.in_event_time else None,
            keep_late=asked.keeps_late,
            metrics=None if observed else self._counted(asked.processor),
            observed=observed,
            hosts=config.hosts or hosts_per_executor(conf),
            config=config,
            dead_letter=None if letter is None else pa.struct(list(arrow_schema(letter))),
            ddl=declared.ddl,
            states=declared.states,
            deleted=declared.deleted,
            savepoint=asked.savepoint,
            initial=None if initial is None else initial_rows(asked.initial, initial),
            streaming=self._df.isStreaming,
            output_event_time=output_event_time,
            form=asked.form,
            pandas=_pandas_settings(self._df),
        )
        check_savepoint(spec)
        combining = Combining.planned(spec, copied_on_driver(asked.processor), arrow_schema(keys.data.schema))
        if combining is not None:
            spec = combining.spec(spec)
        operated = (
            _packed(keys, combining=combining, mapped=self._mapped)
            .groupBy(SHARD)
            .transformWithState(
                ShardProcessor(spec),
                packed_output_schema(timed=output_event_time is not None, observed=observed),
                asked.output_mode,
                asked.time_mode,
                None if initial is None else _packed(initial, initial=True).groupBy(SHARD),
                "" if output_event_time is None else OLDEST,
            )
        )
        return (self._observe(operated, spec.name) if observed else operated), given


def keyed(df: DataFrame, *keys: str | Column) -> KeyedData:
    """Group a streaming or batch DataFrame by key columns, for warm keyed state.

    In place of `df.groupBy("user").transformWithState(Counter(), …)` write
    `keyed(df, "user").transformWithState(Counter(), …)`.

    Raises:
        DataError: a key column is missing, ambiguous, or of a type that cannot be a key; the nearest one is named.
        OptionError: there is no key.
    """
    return KeyedData(df, keys)


def keyed_map(
    df: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    *keys: str,
) -> KeyedData:
    """Group what a function over Arrow makes of a DataFrame: `keyed(df.mapInArrow(function, schema), *keys)`.

    This is for Millpond's own functions. The function and the packing share one Python worker in each task, and the
    rows between them do not pass through the JVM. Keys are hashed row by row, so there should be few rows.

    Args:
        df: a streaming or batch DataFrame.
        function: as for `mapInArrow`. It must return exactly the columns of `schema`, which nothing checks.
        schema: the columns that it returns.
        keys: names of columns of `schema`.
    """
    return KeyedData(df.mapInArrow(function, schema), keys, _Mapped(df, function))


def _packed(
    keys: KeyColumns, *, initial: bool = False, combining: Combining | None = None, mapped: _Mapped | None = None
) -> DataFrame:
    packed_schema = arrow_schema(keys.data.schema) if combining is None else combining.schema
    function, key_positions = mapped and mapped.function, keys.positions

    def pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        if function is not None:
            batches = with_key_hashes(function(batches), key_positions)
        if combining is not None:
            batches = combining.batches(batches)
        return pack(batches, packed_schema, initial=initial)

    if mapped is not None:
        return mapped.rows.mapInArrow(pack_batches, PACKED_SCHEMA)
    # Columns are named by position, since a name may come twice.
    names = [f"c{at}" for at in range(len(keys.data.columns))]
    hashed = keys.data.toDF(*names).withColumn(_HASH, F.xxhash64(*(names[at] for at in keys.positions)))
    return hashed.mapInArrow(pack_batches, PACKED_SCHEMA)


def _unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    leave_modules_out()
    return unpack(batches)


def _declarations(asked: OperatorRequest) -> Declarations:
    """Return what the processor's init declares. Only the driver can have Spark parse a schema given as text."""

    def parse(ddl: str) -> StructType:
        kind: DataType = _parse_datatype_string(ddl)
        if not isinstance(kind, StructType):
            raise DataError(f"the state schema {ddl!r} is not a list of fields, such as 'count long'.")
        return kind

    return declarations(copied_on_driver(asked.processor), asked.form, asked.time_mode.lower(), parse, "driver")


def _pandas_settings(df: DataFrame) -> PandasSettings:
    conf = df.sparkSession.conf

    def is_on(name: str) -> bool:
        return setting(conf, name).lower() == "true"

    return PandasSettings(
        timezone=setting(conf, "spark.sql.session.timeZone"),
        max_rows=int(setting(conf, "spark.sql.execution.arrow.maxRecordsPerBatch")),
        max_bytes=_bytes(setting(conf, "spark.sql.execution.arrow.maxBytesPerBatch")),
        columns_by_name=is_on("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"),
        safe=is_on("spark.sql.execution.pandas.convertToArrowArraySafely"),
        int_to_decimal=is_on("spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
        nullable_integers=is_on("spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"),
    )


def _bytes(size: str) -> int:
    """Parse a size as Spark writes it. Its units may lack their b, as in 64m.

    >>> _bytes("64m"), _bytes("67108864b"), _bytes("100")
    (67108864, 67108864, 100)
    """
    return size_bytes()(f"{size}b" if size[-1] in "kKmMgGtT" else size)
