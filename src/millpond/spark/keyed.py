"""`keyed(df, "key")`: PySpark's stateful API over warm state.

What a user wrote for `df.groupBy("key").transformWithState(...)` runs unchanged after
`keyed(df, "key").transformWithState(...)`. Planned here, on the driver: the data is packed by shard,
goes through Spark's own stateful operator as a few blobs, and is unpacked again.

Delivery: exactly once into the state, at least once into the sink, as Spark's own. Freshness: the
micro-batch. Recovery: Spark's checkpoint; nothing else is written anywhere.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import Accumulator, Broadcast, cloudpickle
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
from millpond.spark.declarations import Declarations, declarations
from millpond.spark.handles import arrow_schema
from millpond.spark.opened_shard import check_savepoint
from millpond.spark.operator_spec import OperatorSpec, StateConfig
from millpond.spark.pack import PACKED_SCHEMA, SHARD, pack, unpack
from millpond.spark.session import check_session
from millpond.spark.shard_processor import ShardProcessor

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
        self._late_rows: Accumulator[int] = df.sparkSession.sparkContext.accumulator(0)

    @property
    def late_rows(self) -> int:
        """Rows dropped so far because the watermark had passed them. Batches that ran again count again."""
        return int(self._late_rows.value)

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
        state: StateConfig | None = None,
        savepoint: str | None = None,
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
            state: where the live state is held.
            savepoint: a path or URI that every executor can read. A new query begins with the state in it, whatever
                the number of shards; one that has a checkpoint goes on from that, and does not look at it.

        Raises:
            OptionError: an argument is not one of those above, or the session lacks what state needs.
            DataError: a key column is missing or of a type that cannot be a key.
            CorruptionError: the savepoint is not as it was written; the file is named.
        """
        _check_choice("timeMode", timeMode, ("None", "EventTime", "ProcessingTime"))
        _check_choice("outputMode", outputMode, ("Append", "Update"))
        _check_choice("late", late, ("drop", "keep"))
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
        declared = _declarations(statefulProcessor, timeMode)
        spec = OperatorSpec(
            application=self._df.sparkSession.sparkContext.applicationId,
            processor=statefulProcessor,
            key_schema=arrow_schema(StructType([data.schema[at] for at in positions])),
            key_positions=positions,
            row_names=tuple(self._df.columns),
            output_schema=arrow_schema(output),
            time_mode=timeMode.lower(),
            event_time=_event_time(data, timeMode),
            keep_late=late == "keep",
            late_rows=self._late_rows,
            hosts=_hosts(self._df),
            config=state or StateConfig(),
            ddl=declared.ddl,
            states=declared.states,
            savepoint=savepoint,
        )
        check_savepoint(spec)
        packed = _packed(data, positions)
        operated = packed.groupBy(SHARD).transformWithState(ShardProcessor(spec), "blob binary", outputMode, timeMode)
        return operated.mapInArrow(_unpack, output)

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


class _ProcessorPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Refuses what a processor cannot take along to a state host, before the query starts."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Accumulator | Broadcast):
            raise OptionError(
                f"the processor refers to a {type(obj).__name__}, which keyed() does not carry to its state hosts: an "
                "accumulator's additions would be lost. Give the processor the plain value of a broadcast; yield what "
                "is to be counted, or use PySpark's own df.groupBy(…).transformWithState."
            )
        return super().reducer_override(obj)


def _declarations(processor: StatefulProcessor, time_mode: str) -> Declarations:
    """What the processor's init declares. The schemas that it gives as text only the driver can have Spark parse."""

    def parse(ddl: str) -> StructType:
        kind: DataType = _parse_datatype_string(ddl)
        if not isinstance(kind, StructType):
            raise DataError(f"the state schema {ddl!r} is not a list of fields, such as 'count long'.")
        return kind

    pickled = io.BytesIO()
    _ProcessorPickler(pickled).dump(processor)
    return declarations(cloudpickle.loads(pickled.getvalue()), time_mode.lower(), parse, "driver")


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


def _hosts(df: DataFrame) -> int:
    """State hosts per executor: one a core."""
    conf = df.sparkSession.conf
    master = str(conf.get("spark.master", "") or "")
    if master.startswith("local"):
        return int(df.sparkSession.sparkContext.defaultParallelism)
    return int(str(conf.get("spark.executor.cores", "1") or "1"))


def _check_choice(option: str, value: Any, known: tuple[str, ...]) -> None:
    if str(value).lower() not in [choice.lower() for choice in known]:
        raise OptionError(f"{option}={value!r}: expected one of {', '.join(map(repr, known))}.")
