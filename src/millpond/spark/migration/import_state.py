"""Convert the state of a PySpark operator to a savepoint, with which the same job can begin on Millpond.

Spark's tasks read the state, partition it by shard, sort it by key group, and write the savepoint's Parquet files.
The driver only sees the list of files, and writes the manifest last. So no process needs memory for the whole state.

There is a set of files for each partition of the old query. In a query with as many shards, each shard reads only
its own files. With another number of shards, each reads more files and takes its key groups from them.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from millpond.errors import OptionError, UnavailableError
from millpond.masking import masked
from millpond.spark.forms.handles import arrow_schema
from millpond.spark.migration.pyspark_operator import PySparkOperator, PySparkState
from millpond.spark.shuffle.partitioner import routing_keys
from millpond.state.checkpoint import Savepoint, new_manifest
from millpond.state.checkpoint.format.savepoint_manifest import SavepointFile
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.checkpoint.savepoint import check_empty, finish_savepoint, not_written, write_rows
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.key_groups import max_parallelism
from millpond.state.types.timer_states import TIMER_STATES, TIMERS
from millpond.state.types.ttl import LIFE_FIELD

_FILE_BYTES = 32 << 20
_KEY_GROUP = "key_group"
_ALIVE_SINCE = f"value.{LIFE_FIELD.name}"


def import_state(
    spark: SparkSession,
    checkpoint_location: str,
    location: str,
    *,
    operator: int | None = None,
    version: int | None = None,
    ttl_ms: Mapping[str, int] | None = None,
    group_state: str | None = None,
    time_mode: str | None = None,
    seal: Seal | bytes | None = None,
) -> Savepoint:
    """Convert the state of a PySpark query to a savepoint, for `keyed(...)` with the same keys and states.

    The operator is one of PySpark's `transformWithState`, `transformWithStateInPandas` and `applyInPandasWithState`.
    Values, lists, maps, times to live and timers are kept. The state of `applyInPandasWithState` becomes a value
    state. Its timeouts become timers one millisecond later, so they fire in the same batches: Spark fires a timeout
    once time has passed it, and a timer as soon as time has reached it. The old checkpoint is only read.

    Args:
        spark: a session that can read the query's state store.
        checkpoint_location: the query's checkpoint location. Stop the query first, so that no later batch is missed.
        location: a path or URI of an empty folder that the driver and every executor can write to.
        operator: the operator's id, needed if the query has several of these operators.
        version: the batch after which the state is taken. None: the last committed one.
        ttl_ms: the time to live in ms of each state that has one, as the processor declares it. Spark's checkpoint
            does not have it.
        group_state: the new name of the state of `applyInPandasWithState`; `"state"` by default.
        time_mode: for `applyInPandasWithState` with timeouts, `"EventTime"` or `"ProcessingTime"`. Spark's checkpoint
            does not have it.
        seal: the key that the savepoint is sealed with, for a query with the same `StateConfig(seal=...)`.

    Raises:
        OptionError: there is no such checkpoint, operator or version, an argument is missing or does not belong to the
            operator, or the folder is not empty.
        DataError: a key column has a type that `keyed` does not take, or the state is in Spark 2.3's format.
        CorruptionError: the checkpoint is incomplete.
        UnavailableError: the state could not be read, or the savepoint could not be written. The folder has no manifest
            then, and cannot be used as a savepoint.
    """
    found = PySparkOperator.open(spark, checkpoint_location, operator, version)
    states = found.states(ttl_ms or {}, group_state, time_mode)
    keys = found.key_schema(states[0].rows)
    folder, seal = Folder(location), Seal.of(seal)
    layout = _Layout(keys, found.operator.partitions, max_parallelism(found.operator.partitions))
    files: list[SavepointFile] = []
    try:
        check_empty(folder)
        for state in states:
            written = _written(state, layout, location, seal)
            files += [each.file for each in written]
            _check_ttl(found, state.descriptor, written, location)
        manifest = new_manifest(secrets.token_hex(8), 0, 1, layout.max_parallelism, arrow_schema(keys))
        manifest = msgspec.structs.replace(
            manifest,
            watermark_ms=found.watermark_ms if TIMERS in [state.descriptor for state in states] else -1,
            processing_ms=found.timestamp_ms,
        )
        return finish_savepoint(folder, [manifest], [state.descriptor for state in states], files, seal)
    except OSError as error:
        raise not_written(location, error) from error
    except PySparkException as error:
        reason = str(error).partition("\n")[0]
        raise UnavailableError(
            f"the state of {masked(checkpoint_location)} could not be written to the savepoint "
            f"{folder.location}: {reason} "
            "Mend that, and write it to a new folder."
        ) from error


@dataclass(frozen=True)
class _Layout:
    """The key columns, and the numbers of shards and key groups of the savepoint."""

    keys: StructType
    shards: int
    max_parallelism: int


class _Written(msgspec.Struct, frozen=True):
    """A task's record of a file that it wrote. `alive_since_ms` is the latest start of a time to live in it."""

    file: SavepointFile
    alive_since_ms: int | None


def _written(state: PySparkState, layout: _Layout, location: str, seal: Seal | None) -> list[_Written]:
    """Write the files of one state, in one task for each shard."""
    cells = _cells(state, layout)
    columns = cells.columns
    shard = F.floor(F.col(_KEY_GROUP) * F.lit(layout.shards) / F.lit(layout.max_parallelism)).cast("int")
    partition = F.element_at(F.lit(list(routing_keys(layout.shards))), shard + 1)
    spread = cells.repartition(layout.shards, partition).sortWithinPartitions(_KEY_GROUP)
    schema = CellCodec(state.descriptor, arrow_schema(layout.keys)).schema
    schema = schema.remove(schema.get_field_index("deleted"))
    # Columns are named by position, since Spark reads names with dots as paths.
    renamed = spread.toDF(*(f"c{at}" for at in range(len(columns))))
    write = partial(_write_files, location, seal, state.descriptor, columns, schema)
    rows = renamed.mapInArrow(write, "written binary").collect()
    written = [msgspec.msgpack.decode(row.written, type=_Written) for row in rows]
    return sorted(written, key=lambda each: each.file.name)


def _cells(state: PySparkState, layout: _Layout) -> DataFrame:
    """Return one row for each cell, with the columns of a savepoint's files."""
    keys = {f"key.{field.name}": _key(field.name, field.dataType) for field in layout.keys}
    group = F.pmod(F.xxhash64(*keys.values()), F.lit(layout.max_parallelism)).cast("int")
    columns = {_KEY_GROUP: group, **keys}
    descriptor = state.descriptor
    if descriptor.name in TIMER_STATES:
        columns |= {"map_key.expiry_ms": F.col("expiration_timestamp_ms"), "value.set": F.lit(True)}
    elif descriptor.kind is StateKind.LIST:
        fields = partial(_value_fields, descriptor)
        columns["value"] = F.transform(
            "list_value", lambda item: F.struct(*(column.alias(name) for name, column in fields(item).items()))
        )
    else:
        is_map = descriptor.kind is StateKind.MAP
        for name in descriptor.map_key_schema.names if descriptor.map_key_schema is not None else ():
            columns[f"map_key.{name}"] = F.col("user_map_key").getField(name)
        values = _value_fields(descriptor, F.col("user_map_value" if is_map else "value"))
        columns |= {f"value.{name}": column for name, column in values.items()}
    return state.rows.select(*(column.alias(name) for name, column in columns.items()))


def _key(name: str, kind: object) -> Column:
    column = F.col("key").getField(name)
    # Adding 0.0 turns -0.0 into 0.0, the only zero that keyed() uses as a key.
    return (column + F.lit(0.0)).cast(kind) if isinstance(kind, FloatType | DoubleType) else column


def _value_fields(descriptor: StateDescriptor, value: Column) -> dict[str, Column]:
    """Return the fields of one value, with the start of its time to live if it has one."""
    ttl = descriptor.ttl
    bare = value if ttl is None else value.getField("value")
    fields = {name: bare.getField(name) for name in descriptor.value_schema.names}
    if ttl is not None:
        fields[LIFE_FIELD.name] = value.getField("ttlExpirationMs") - F.lit(ttl.duration_ms)
    return fields


def _write_files(
    location: str,
    seal: Seal | None,
    state: StateDescriptor,
    columns: list[str],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: write one shard's rows of a state, in files of bounded size."""
    folder, task = Folder(location), TaskContext.get()
    part = f"shard-{task.partitionId() if task else 0:05d}"
    attempt = secrets.token_hex(4)
    for piece, table in enumerate(_pieces(batches, columns, schema)):
        for file in write_rows(folder, state, f"{part}-{piece:04d}-{attempt}", [table], seal):
            written = msgspec.msgpack.encode(_Written(file, _newest_life(table)))
            yield pa.record_batch([pa.array([written], pa.binary())], names=["written"])


def _pieces(batches: Iterable[pa.RecordBatch], columns: list[str], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for batch in batches:
        waiting.append(pa.Table.from_batches([batch]).rename_columns(columns).cast(schema))
        if sum(table.nbytes for table in waiting) >= _FILE_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _newest_life(table: pa.Table) -> int | None:
    """Return the latest start of a time to live among the values, in ms; None if they have no TTL."""
    lives = None
    if _ALIVE_SINCE in table.column_names:
        lives = table[_ALIVE_SINCE]
    elif "value" in table.column_names and LIFE_FIELD.name in table["value"].type.value_type.names:
        lives = pc.struct_field(table["value"].combine_chunks().values, LIFE_FIELD.name)
    newest: int | None = None if lives is None else pc.max(lives).as_py()
    return newest


def _check_ttl(found: PySparkOperator, state: StateDescriptor, written: list[_Written], location: str) -> None:
    """Raise an error if the given TTL is shorter than the query's: a value's life would begin after the last batch."""
    lives = [each.alive_since_ms for each in written if each.alive_since_ms is not None]
    if state.ttl is not None and lives and max(lives) > found.timestamp_ms:
        shortest = state.ttl.duration_ms + max(lives) - found.timestamp_ms
        raise OptionError(
            f"ttl_ms={{{state.name!r}: {state.ttl.duration_ms}}}: values of this state expire up to {shortest} ms "
            f"after the last batch of {found.location}, so it lives longer. Say what the processor declares, and "
            f"give a new folder in place of {masked(location)}."
        )
