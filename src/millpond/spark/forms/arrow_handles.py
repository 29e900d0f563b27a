"""The handle that an `ArrowStatefulProcessor` sees: states of many keys at once, over Arrow.

The states are those of the other forms, declared by the same rules. Only the values are passed as columns. A
value state is read and written with a few calls for each key group. Everything else (lists, maps, timers,
time to live, King's caches) goes key by key underneath, with the same results and more slowly.

Invariant: keys are matched by their values. So any table with the key's columns will do: the one that
`handleInputTable` got, a part of it, or one that user code made.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from millpond.errors import DataError
from millpond.spark.forms.handles import DeletedState, ProcessorHandle
from millpond.state import ListState, MapState, ValueState
from millpond.state.backend.batch_access import ManyKeys, clear_many, each_key, get_many, update_many
from millpond.state.checkpoint import Shard
from millpond.state.types.key_groups import key_group_of
from millpond.state.types.rows import MISFITS, Row, RowCodec, grouping_values

Columns: TypeAlias = pa.Table | pa.RecordBatch | Mapping[str, Any]
"""Columns from user code: by name, as Arrow arrays or as values that Arrow can make arrays of."""


class KeysOfShard:
    """Converts tables of keys to the keys that state uses, with their key groups."""

    def __init__(self, shard: Shard) -> None:
        self._schema = shard.key_schema
        self._types = [field.type for field in shard.key_schema]
        self._manifest = shard.manifest
        self._table: pa.Table | None = None
        self._many = ManyKeys([], [])
        self._groups: dict[Row, int] = {}

    def begin(self, table: pa.Table, runs: Sequence[tuple[int, int, int]]) -> None:
        """Set the table of keys that user code gets in this call. `runs` are its key groups with their key ranges."""
        self._table, self._many, self._groups = table, ManyKeys(self._tuples(table), runs), {}

    def of(self, keys: Any) -> ManyKeys:
        """Return the keys in a table from user code. A DataError says what is wrong with it."""
        if keys is self._table:
            return self._many
        table = _as_table(keys, self._schema, "the keys")
        if not self._groups:
            for key_group, first, end in self._many.runs:
                self._groups.update(dict.fromkeys(self._many.keys[first:end], key_group))
        tuples = self._tuples(table)
        return ManyKeys.of(
            tuples, [self._groups.get(key, -1) if key in self._groups else self._group(key) for key in tuples]
        )

    def _group(self, key: Row) -> int:
        group = key_group_of(key, self._types, self._manifest.max_parallelism)
        if group not in self._manifest.key_groups:
            raise DataError(
                f"key {key!r} belongs to another shard than the one whose rows are being worked off, so its state is "
                "not here. Ask only for keys that handleInputTable was given."
            )
        return group

    def _tuples(self, table: pa.Table) -> list[Row]:
        return list(zip(*map(grouping_values, table.columns), strict=True))


class ArrowProcessorHandle:
    """Declares states, and sets timers, for an `ArrowStatefulProcessor`."""

    def __init__(self, handle: ProcessorHandle, shard: Shard) -> None:
        self._handle = handle
        self._shard = shard
        self.keys = KeysOfShard(shard)
        """Converts tables of keys. For the operator's own use."""

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> "ArrowValueState | DeletedState":
        """Declare a value state."""
        state, descriptor, _ = self._handle.value_state(stateName, schema, ttlDurationMs)
        if stateName in self._handle.deleted:
            return cast("ArrowValueState", DeletedState(stateName))
        return ArrowValueState(self._shard, self.keys, state, Values(stateName, descriptor.value_schema))

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> "ArrowListState | DeletedState":
        """Declare a list state."""
        state, descriptor, _ = self._handle.list_state(stateName, schema, ttlDurationMs)
        if stateName in self._handle.deleted:
            return cast("ArrowListState", DeletedState(stateName))
        return ArrowListState(self._shard, self.keys, state, Values(stateName, descriptor.value_schema))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> "ArrowMapState | DeletedState":
        """Declare a map state."""
        state, descriptor, _ = self._handle.map_state(stateName, userKeySchema, valueSchema, ttlDurationMs)
        if stateName in self._handle.deleted:
            return cast("ArrowMapState", DeletedState(stateName))
        values = Values(stateName, descriptor.value_schema)
        return ArrowMapState(self._shard, self.keys, state, Values(stateName, descriptor.map_key_schema), values)

    def registerTimers(self, keys: Any, expiryTimestampMs: Any) -> None:
        """Set a timer for each key, in ms. The time is one number for all keys, or an array with one for each."""
        for expiry_ms in self._each(keys, expiryTimestampMs):
            self._handle.registerTimer(expiry_ms)

    def deleteTimers(self, keys: Any, expiryTimestampMs: Any) -> None:
        """Delete a timer of each key."""
        for expiry_ms in self._each(keys, expiryTimestampMs):
            self._handle.deleteTimer(expiry_ms)

    def listTimers(self, keys: Any) -> pa.ListArray:
        """Return the timers of each key, in ms."""
        many = self.keys.of(keys)
        found = [list(self._handle.listTimers()) for _ in each_key(self._shard.backend, many)]
        return pa.array(found, type=pa.list_(pa.int64()))

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state for all keys, if the checkpoint has one of that name. Call it in `init`."""
        self._handle.deleteIfExists(stateName)

    def _each(self, keys: Any, expiry_ms: Any) -> Any:
        many = self.keys.of(keys)
        times = [expiry_ms] * len(many) if isinstance(expiry_ms, int) else pa.array(expiry_ms).to_pylist()
        if len(times) != len(many):
            raise DataError(f"there are {len(times)} times for {len(many)} keys; give one time, or one for each key.")
        return (times[at] for at in each_key(self._shard.backend, many))


class Values:
    """Converts one state's values between columns and the tuples that the state keeps."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.schema = schema
        self._name = name
        self._codec = RowCodec(schema, f"state {name!r}")
        self._nothing = (None,) * len(schema)

    def rows(self, columns: Columns, length: int) -> list[Row]:
        """Convert user code's columns to tuples of exactly the schema's types."""
        table = _as_table(columns, self.schema, f"state {self._name!r}")
        if table.num_rows != length:
            raise DataError(f"state {self._name!r}: there are {table.num_rows} values for {length} keys.")
        return list(self._codec.rows(table.columns))

    def table(self, rows: list[Any]) -> pa.Table:
        """Convert tuples to columns. A None becomes null in every column."""
        if not all(rows):
            rows = [self._nothing if row is None else row for row in rows]
        return pa.table(self._codec.columns(rows), schema=self.schema)

    def lists(self, found: list[list[Row]]) -> pa.ListArray:
        """Convert the tuples of each key to an array of lists of structs."""
        items = pa.StructArray.from_arrays(
            self._codec.columns([row for rows in found for row in rows]), fields=list(self.schema)
        )
        offsets = np.cumsum([0, *map(len, found)], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items)

    def rows_of_lists(self, given: Any, length: int) -> list[list[Row]]:
        """The inverse of `lists`, for an array of lists of structs or a value that Arrow can make one of."""
        kind = pa.list_(pa.struct(list(self.schema)))
        try:
            array = given.cast(kind) if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given, type=kind)
        except MISFITS as error:
            raise DataError(f"state {self._name!r}: expected {kind}, one list for each key: {error}") from error
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        if len(array) != length:
            raise DataError(f"state {self._name!r}: there are {len(array)} lists for {length} keys.")
        rows = list(self._codec.rows(array.flatten().flatten()))
        ends = np.cumsum([0 if size is None else size for size in array.value_lengths().to_pylist()], dtype=np.int64)
        return [rows[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)]


class ArrowValueState:
    """A value state of many keys."""

    def __init__(self, shard: Shard, keys: KeysOfShard, state: ValueState, values: Values) -> None:
        self._backend = shard.backend
        self._keys = keys
        self._state = state
        self._values = values

    def get_many(self, keys: Any) -> pa.Table:
        """Return the value of each key, with a column for each field. Null where a key has none."""
        return self._values.table(get_many(self._backend, self._state, self._keys.of(keys)))

    def exists_many(self, keys: Any) -> pa.BooleanArray:
        """Return whether each key has a value."""
        return pa.array([value is not None for value in get_many(self._backend, self._state, self._keys.of(keys))])

    def update_many(self, keys: Any, values: Columns) -> None:
        """Set the value of each key. If a key is there twice, its last value counts."""
        many = self._keys.of(keys)
        update_many(self._backend, self._state, many, self._values.rows(values, len(many)))

    def clear_many(self, keys: Any) -> None:
        """Delete the value of each key."""
        clear_many(self._backend, self._state, self._keys.of(keys))


class ArrowListState:
    """A list state of many keys, as arrays of lists of structs. It goes key by key underneath."""

    def __init__(self, shard: Shard, keys: KeysOfShard, state: ListState, values: Values) -> None:
        self._backend = shard.backend
        self._keys = keys
        self._state = state
        self._values = values

    def get_many(self, keys: Any) -> pa.ListArray:
        """Return the list of each key, empty where it has none."""
        many = self._keys.of(keys)
        return self._values.lists([list(self._state.get()) for _ in each_key(self._backend, many)])

    def update_many(self, keys: Any, lists: Any) -> None:
        """Replace the list of each key. An empty list deletes it."""
        many = self._keys.of(keys)
        rows = self._values.rows_of_lists(lists, len(many))
        for at in each_key(self._backend, many):
            if rows[at]:
                self._state.put(rows[at])
            else:
                self._state.clear()

    def append_many(self, keys: Any, lists: Any) -> None:
        """Append elements to the list of each key."""
        many = self._keys.of(keys)
        rows = self._values.rows_of_lists(lists, len(many))
        for at in each_key(self._backend, many):
            self._state.extend(rows[at])

    def clear_many(self, keys: Any) -> None:
        """Delete the list of each key."""
        for _ in each_key(self._backend, self._keys.of(keys)):
            self._state.clear()


class ArrowMapState:
    """A map state of many keys, with one row for each entry. It goes key by key underneath."""

    def __init__(self, shard: Shard, keys: KeysOfShard, state: MapState, map_keys: Values, values: Values) -> None:
        self._backend = shard.backend
        self._keys = keys
        self._state = state
        self._map_keys = map_keys
        self._values = values

    def get_many(self, keys: Any, map_keys: Columns) -> pa.Table:
        """Return one entry of each key, with a column for each field. Null where there is none."""
        many = self._keys.of(keys)
        entries = self._map_keys.rows(map_keys, len(many))
        return self._values.table([self._state.get(entries[at]) for at in each_key(self._backend, many)])

    def items_many(self, keys: Any) -> tuple[pa.Array, pa.Table, pa.Table]:
        """Return every entry of the keys: the number of its key in `keys`, its map key, and its value."""
        many = self._keys.of(keys)
        numbers, map_keys, values = [], [], []
        for at in each_key(self._backend, many):
            for map_key, value in self._state.items():
                numbers.append(at)
                map_keys.append(map_key)
                values.append(value)
        return pa.array(numbers, type=pa.int64()), self._map_keys.table(map_keys), self._values.table(values)

    def update_many(self, keys: Any, map_keys: Columns, values: Columns) -> None:
        """Set one entry of each key."""
        many = self._keys.of(keys)
        entries, rows = self._map_keys.rows(map_keys, len(many)), self._values.rows(values, len(many))
        for at in each_key(self._backend, many):
            self._state.put(entries[at], rows[at])

    def remove_many(self, keys: Any, map_keys: Columns) -> None:
        """Delete one entry of each key."""
        many = self._keys.of(keys)
        entries = self._map_keys.rows(map_keys, len(many))
        for at in each_key(self._backend, many):
            self._state.remove(entries[at])

    def clear_many(self, keys: Any) -> None:
        """Delete every entry of each key."""
        for _ in each_key(self._backend, self._keys.of(keys)):
            self._state.clear()


def _as_table(columns: Any, schema: pa.Schema, what: str) -> pa.Table:
    """Convert user code's columns to exactly this schema. A DataError names a column that is missing or unfit."""
    if isinstance(columns, pa.Array | pa.ChunkedArray) and len(schema) == 1:
        columns = {schema.names[0]: columns}
    if not isinstance(columns, pa.Table | pa.RecordBatch | Mapping):
        raise DataError(
            f"{what}: expected a pyarrow.Table, or a dict of arrays, with the columns {schema.names}; got "
            f"{type(columns).__name__}."
        )
    names = list(columns) if isinstance(columns, Mapping) else columns.column_names
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise DataError(f"{what}: the columns are {names}; {missing} of {schema.names} are missing.")
    return pa.table([cast_column(columns[field.name], field, what) for field in schema], schema=schema)


def cast_column(values: Any, field: pa.Field, what: str) -> Any:
    """Convert one column to exactly a field's type. A DataError names the column if that would lose anything."""
    try:
        # Convert in two steps: with the type given at once, Arrow would silently cut off fractions.
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        return array if array.type == field.type else array.cast(field.type)
    except MISFITS as error:
        kind = values.type if isinstance(values, pa.Array | pa.ChunkedArray) else type(values).__name__
        raise DataError(
            f"{what}: column {field.name!r} is {field.type}, got {kind}: {error}. Convert it, or declare the column "
            "with a type that holds it."
        ) from error
