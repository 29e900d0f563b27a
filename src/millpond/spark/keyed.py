"""`keyed(df, "key")`: PySpark's stateful API over warm state.

What a user wrote for `df.groupBy("key").transformWithState(...)` runs unchanged after
`keyed(df, "key").transformWithState(...)`. Planned here, on the driver: the data is packed by shard,
goes through Spark's own stateful operator as a few blobs, and is unpacked again.

Delivery: exactly once into the state, at least once into the sink, as Spark's own. Freshness: the
micro-batch. Recovery: Spark's checkpoint; nothing else is written anywhere.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    TimestampType,
    VariantType,
    _parse_datatype_string,
)

from millpond.errors import DataError, OptionError
from millpond.spark.dead_letters import letter_schema, with_dead_letters
from millpond.spark.handles import ProcessorHandle, arrow_schema
from millpond.spark.operator_metrics import KeyedMetrics, MetricsParam
from millpond.spark.operator_spec import BatchTime, OperatorSpec, StateConfig
from millpond.spark.pack import PACKED_SCHEMA, pack, unpack
from millpond.spark.session import check_session, hosts_per_executor, is_connect
from millpond.spark.shard_processor import ShardProcessor
from millpond.spark.surroundings import copied_on_driver
from millpond.state import HeapBackend
from millpond.state.checkpoint import Shard, birth

_KEY = "__millpond_key_"
_HASH = "__millpond_hash"
_WATERMARK_MARK = "spark.watermarkDelayMs"


class KeyedData:
    """A DataFrame grouped by key columns. Made by `keyed`."""

    def __init__(self, df: DataFrame, keys: tuple[str | Column, ...]) -> None:
        if not keys:
            raise OptionError('keyed() needs at least one key column, as in keyed(df, "user").')
        self._df = df
        self._keys = keys
        self._metrics: list[Accumulator[KeyedMetrics]] = []

    @property
    def late_rows(self) -> int:
        """Rows dropped so far because the watermark had passed them. Batches that ran again count again."""
        return self.metrics().late_rows

    def metrics(self) -> KeyedMetrics:
        """What the operators made from this have done so far; of several, the sum. Batches that ran again count again.

        Raises:
            OptionError: the session is one of Spark Connect, whose driver is elsewhere.
        """
        if is_connect(self._df.sparkSession):
            raise OptionError(
                "metrics come back to the driver through Spark's accumulators, which Spark Connect does not have. "
                "Look at the query's lastProgress, or run it in a session of its own."
            )
        return sum((each.value for each in self._metrics), KeyedMetrics())

    def _counted(self) -> "Accumulator[KeyedMetrics] | None":
        """Where one more operator's metrics are added up."""
        session = self._df.sparkSession
        if is_connect(session):
            return None
        self._metrics.append(session.sparkContext.accumulator(KeyedMetrics(), MetricsParam()))
        return self._metrics[-1]

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
    ) -> DataFrame:
        """Run a PySpark `StatefulProcessor` over rows, key by key; PySpark's parameters, and three more.

        Args:
            statefulProcessor: as written for PySpark's `transformWithState`.
            outputStructType: what it yields, a StructType or DDL text.
            outputMode: "Append" or "Update".
            timeMode: "None", "EventTime" or "ProcessingTime".
            initialState: not supported; refused unless None.
            eventTimeColumnName: not supported; refused unless empty.
            late: "drop" or "keep": what becomes of rows later than the watermark in event time. They are
                dropped by Spark's own rule: by the watermark of the batch before.
            on_error: "fail" or "dead-letter": what becomes of a key's call of the processor that fails. It fails the
                batch; or its changes, timers and output are undone, and its rows go into a further column of the
                output, `dead_letter`, with the reason. See `split_dead_letters`.
            state: where the live state is held.

        Raises:
            OptionError: an argument is not one of those above, or the session lacks what state needs.
            DataError: a key column is missing or of a type that cannot be a key.
        """
        _check_choice("timeMode", timeMode, ("None", "EventTime", "ProcessingTime"))
        _check_choice("outputMode", outputMode, ("Append", "Update"))
        _check_choice("late", late, ("drop", "keep"))
        _check_choice("on_error", on_error, ("fail", "dead-letter"))
        if initialState is not None or eventTimeColumnName:
            raise OptionError(
                "keyed() supports neither initialState nor eventTimeColumnName; leave them out, or use PySpark's own "
                "df.groupBy(…).transformWithState for this query."
            )
        check_session(self._df.sparkSession)
        output = _parse_datatype_string(outputStructType) if isinstance(outputStructType, str) else outputStructType
        if not isinstance(output, StructType):
            raise OptionError(f"outputStructType must be a StructType or its DDL text, got {outputStructType!r}.")
        data, positions = self._data()
        config = state or StateConfig()
        key_schema = StructType([data.schema[at] for at in positions])
        letter = letter_schema(key_schema, self._df.schema) if on_error.lower() == "dead-letter" else None
        spec = OperatorSpec(
            application=str(self._df.sparkSession.conf.get("spark.app.id")),
            processor=statefulProcessor,
            key_schema=arrow_schema(key_schema),
            key_positions=positions,
            row_names=tuple(self._df.columns),
            output_schema=arrow_schema(output),
            time_mode=timeMode.lower(),
            event_time=_event_time(data, timeMode),
            keep_late=late == "keep",
            metrics=self._counted(),
            hosts=config.hosts or hosts_per_executor(self._df.sparkSession.conf),
            config=config,
            dead_letter=None if letter is None else pa.struct(list(arrow_schema(letter))),
            ddl=_declared_schemas(statefulProcessor, timeMode),
        )
        packed = _packed(data, positions)
        operated = packed.groupBy("shard").transformWithState(ShardProcessor(spec), "blob binary", outputMode, timeMode)
        return operated.mapInArrow(_unpack, output if letter is None else with_dead_letters(output, letter))

    def _data(self) -> tuple[DataFrame, tuple[int, ...]]:
        """The DataFrame with every key as one of its columns, and where they are."""
        df, names = self._df, []
        for at, key in enumerate(self._keys):
            if isinstance(key, Column):
                names.append(f"{_KEY}{at}")
                df = df.withColumn(names[-1], key)
            elif key in df.columns:
                names.append(key)
            else:
                raise DataError(f"key column {key!r} is not in the DataFrame; its columns are {df.columns}.")
        for name in names:
            kind = df.schema[name].dataType
            if isinstance(kind, ArrayType | MapType | StructType | VariantType):
                raise DataError(
                    f"key column {name!r} is {kind.simpleString()}; keys are atomic. Key by its parts, each a column."
                )
        return df, tuple(df.columns.index(name) for name in names)


def keyed(df: DataFrame, *keys: str | Column) -> KeyedData:
    """Group a streaming or batch DataFrame by key columns, for warm keyed state.

    In place of `df.groupBy("user").transformWithState(Counter(), …)` write
    `keyed(df, "user").transformWithState(Counter(), …)`.
    """
    return KeyedData(df, keys)


def _packed(data: DataFrame, positions: tuple[int, ...]) -> DataFrame:
    packed_schema = arrow_schema(data.schema)

    def pack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack(batches, packed_schema)

    hashed = data.withColumn(_HASH, F.xxhash64(*(_column(data.columns[at]) for at in positions)))
    return hashed.mapInArrow(pack_batches, PACKED_SCHEMA)


def _column(name: str) -> Column:
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return unpack(batches)


def _declared_schemas(processor: StatefulProcessor, time_mode: str) -> dict[str, StructType]:
    """Every schema that the processor's init gives as text, parsed: only the driver can ask Spark's parser.

    A copy of the processor is initialised, as PySpark does it too, so that a state that cannot be
    declared is refused here, before the query starts.
    """
    parsed: dict[str, StructType] = {}

    def parse(ddl: str) -> StructType:
        kind: DataType = _parse_datatype_string(ddl)
        if not isinstance(kind, StructType):
            raise DataError(f"the state schema {ddl!r} is not a list of fields, such as 'count long'.")
        return parsed.setdefault(ddl, kind)

    head = birth("driver", 0, 1, 1, pa.schema([("key", pa.string())]))
    copy: StatefulProcessor = copied_on_driver(processor)
    copy.init(ProcessorHandle(Shard(head, HeapBackend(head.key_groups)), time_mode.lower(), BatchTime(), parse))
    copy.close()
    return parsed


def _event_time(df: DataFrame, time_mode: str) -> int | None:
    """Where the column with the watermark is; Spark marks it in the schema."""
    if time_mode.lower() != "eventtime":
        return None
    for position, column in enumerate(df.schema):
        if _WATERMARK_MARK in column.metadata and isinstance(column.dataType, TimestampType):
            return position
    if not df.isStreaming:
        raise OptionError("timeMode 'EventTime' needs a stream: a batch DataFrame has no watermark. Use 'None'.")
    raise OptionError(
        "timeMode 'EventTime' needs a watermark on a timestamp column, as in "
        f'df.withWatermark("at", "10 minutes"); the columns are {df.columns}.'
    )


def _check_choice(option: str, value: Any, known: tuple[str, ...]) -> None:
    if str(value).lower() not in [choice.lower() for choice in known]:
        raise OptionError(f"{option}={value!r}: expected one of {', '.join(map(repr, known))}.")
