"""Read a stream's keyed state in a batch job, in the columns of Spark's own state data source."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from millpond.errors import OptionError
from millpond.spark.inspect.stored_operator import StoredOperator
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.checkpoint.restoring import Version, row_pieces
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.timer_states import TIMER_STATES, TIMERS
from millpond.state.types.ttl import LIFE_FIELD
from millpond.suggestions import did_you_mean

_BATCH_ROWS = 10_000
_MICROSECONDS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def read_state(
    spark: SparkSession,
    checkpoint_location: str,
    state: str | None = None,
    *,
    operator: int | None = None,
    version: int | None = None,
    since: int | None = None,
    timers: bool = False,
    seal: Seal | bytes | None = None,
) -> DataFrame:
    """Return a state of a keyed operator as a DataFrame. The query may be running or have ended.

    The columns are those of Spark's own state data source: `key` (a struct) and `partition_id`, with `value` for a
    value state, `list_element` for each element of a list, `user_map_key` and `user_map_value` for each entry of a
    map, `expiration_timestamp_ms` for each timer. If the state has a TTL, the values are structs of `value` and
    `ttlExpirationMs`. Expired values are included as long as they are stored.

    Args:
        spark: a session with the settings that the query has.
        checkpoint_location: the query's checkpoint location.
        state: the name of the state.
        operator: the operator's id, needed if the query has several keyed operators.
        version: the batch after which the state is read. None: the last committed one.
        since: an earlier batch. The rows are then the changes since that batch: `change_type` is `added`, `changed`
            or `removed`, and each value has two columns, with `old_` and `new_` before its name. Lists are whole.
        timers: read the keys' timers instead of a state.
        seal: the key of the query's `StateConfig(seal=...)`.

    Raises:
        OptionError: there is no such checkpoint, operator, version or state; or the seal's key is missing or wrong.
        CorruptionError: a manifest or segment is missing or altered; it is named. Segments are read with the DataFrame.
    """
    if timers == (state is not None):
        raise OptionError('read_state() reads one state or the timers: give state="…", or timers=True.')
    newest = StoredOperator.open(spark, checkpoint_location, operator, version, seal)
    if since is None:
        return _frame(newest, _descriptor(newest, state), flat=True)
    earlier = StoredOperator.open(spark, checkpoint_location, newest.operator, since, seal)
    if earlier.version >= newest.version:
        raise OptionError(f"since={since} must be an earlier batch than version {newest.version}.")
    descriptor = _descriptor(newest, state)
    before = {each.name: each for each in earlier.states}.get(descriptor.name)
    if before != descriptor:
        was = "did not exist" if before is None else f"was [{before.describe()}]"
        raise OptionError(
            f"state {descriptor.name!r} is [{descriptor.describe()}] in version {newest.version}, and {was} in version "
            f"{since}: compare versions of one declaration."
        )
    return _changes(_frame(earlier, before, flat=False), _frame(newest, descriptor, flat=False))


def _descriptor(stored: StoredOperator, state: str | None) -> StateDescriptor:
    known = {descriptor.name: descriptor for descriptor in stored.states}
    if state is None:
        return next((known[name] for name in TIMER_STATES if name in known), TIMERS)
    if state not in known or state in TIMER_STATES:
        names = sorted(known.keys() - set(TIMER_STATES))
        raise OptionError(
            f"{stored.location} has no state {state!r} in operator {stored.operator}, version {stored.version}; it has "
            f"{names}{did_you_mean(state, names) or '.'}"
        )
    return known[state]


def _frame(stored: StoredOperator, descriptor: StateDescriptor, *, flat: bool) -> DataFrame:
    shape = StateColumns(descriptor, flat)
    return stored.read([descriptor.name], partial(_batches, shape), shape.schema(stored.key_schema()))


def _batches(shape: "StateColumns", version: Version) -> Iterator[pa.RecordBatch]:
    """In a task: yield the rows of one shard, some key groups at a time, so that they need not fit into memory."""
    for rows in row_pieces(version, shape.descriptor):
        yield from shape.table(rows, version.manifest.shard).to_batches(max_chunksize=_BATCH_ROWS)


@dataclass(frozen=True)
class StateColumns:
    """The columns of one state in Spark's own state data source. `flat` gives each element of a list its own row."""

    descriptor: StateDescriptor
    flat: bool

    def schema(self, key_schema: pa.Schema) -> StructType:
        """Return the names and types of the columns."""
        empty = CellCodec(self.descriptor, key_schema).schema.empty_table()
        return from_arrow_schema(self.table(empty, 0).schema, prefer_timestamp_ntz=True)

    def table(self, rows: pa.Table, shard: int) -> pa.Table:
        """Convert rows from the form of checkpoints and savepoints to these columns."""
        columns = {"key": _struct(rows, "key")}
        kind = self.descriptor.kind
        if self.descriptor.name in TIMER_STATES:
            columns["expiration_timestamp_ms"] = rows["map_key.expiry_ms"]
        elif kind is StateKind.LIST:
            lists = rows["value"].combine_chunks()
            elements = self._living(lists.flatten())
            if self.flat:
                columns = {"key": columns["key"].take(pc.list_parent_indices(lists)), "list_element": elements}
            else:
                starts = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(pc.list_value_length(lists))])
                columns["list_value"] = pa.ListArray.from_arrays(starts.cast(pa.int32()), elements)
        else:
            values = self._living(_struct(rows, "value"))
            is_map = kind is StateKind.MAP
            columns |= (
                {"user_map_key": _struct(rows, "map_key"), "user_map_value": values} if is_map else {"value": values}
            )
        count = len(columns["key"])
        columns["partition_id"] = pa.repeat(pa.scalar(shard, pa.int32()), count)
        return pa.table(columns)

    def _living(self, values: pa.StructArray) -> pa.StructArray:
        """Return the values, with the time at which they expire if the state has a TTL."""
        if self.descriptor.ttl is None:
            return values
        fields = [field for field in values.type if field.name != LIFE_FIELD.name]
        bare = pa.StructArray.from_arrays([values.field(field.name) for field in fields], fields=fields)
        expires = pc.add(values.field(LIFE_FIELD.name), self.descriptor.ttl.duration_ms)
        return pa.StructArray.from_arrays([bare, expires], names=["value", "ttlExpirationMs"])


def _struct(rows: pa.Table, prefix: str) -> pa.StructArray:
    names = [name for name in rows.column_names if name.startswith(f"{prefix}.")]
    arrays = [rows[name].combine_chunks() for name in names]
    fields = [pa.field(name.removeprefix(f"{prefix}."), array.type) for name, array in zip(names, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _changes(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the differences between two versions of a state, one row for each cell."""
    cell = [name for name in after.columns if name in ("key", "user_map_key", "expiration_timestamp_ms")]
    values = [name for name in after.columns if name not in (*cell, "partition_id")]
    old = before.select(*(F.col(name).alias(f"old_{name}") for name in before.columns), F.lit(1).alias("was"))
    new = after.select(*(F.col(name).alias(f"new_{name}") for name in after.columns), F.lit(1).alias("is"))
    same_cell = [F.col(f"old_{name}").eqNullSafe(F.col(f"new_{name}")) for name in cell]
    joined = old.join(new, same_cell, "full_outer")
    changed = F.expr("false")
    for name in values:
        changed |= ~_same(F.col(f"old_{name}"), F.col(f"new_{name}"), after.schema[name].dataType)
    change = F.when(F.col("was").isNull(), "added").when(F.col("is").isNull(), "removed").when(changed, "changed")
    columns = [F.coalesce(f"new_{name}", f"old_{name}").alias(name) for name in (*cell, "partition_id")]
    both = [f"{when}_{name}" for name in values for when in ("old", "new")]
    return joined.select(change.alias("change_type"), *columns, *both).where(F.col("change_type").isNotNull())


def _same(old: Column, new: Column, kind: DataType) -> Column:
    """Whether two values are equal. Spark cannot compare maps, so values with maps are compared as JSON."""
    if _has_map(kind):
        old, new = F.to_json(old, _MICROSECONDS), F.to_json(new, _MICROSECONDS)
    return old.eqNullSafe(new)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))
