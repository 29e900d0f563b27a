"""The handle that an unchanged PySpark `StatefulProcessor` gets: PySpark's names over Millpond's states.

The methods of a value state have the same names in both, so user code calls the backend directly. Lists and
maps differ only in names. States with timestamps or nested structs are converted here: PySpark gives user
code naive local datetimes and `Row`s, while `millpond.state` keeps aware UTC datetimes and tuples. Arrays and
maps are copied here, since PySpark makes new ones at every get: a change that user code makes to one has no
effect without an update.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType, TimestampType

from millpond.errors import DataError, OptionError
from millpond.spark.environment.versions import to_arrow_schema
from millpond.spark.forms.rows import row_maker
from millpond.state import ListState, MapState, ValueState
from millpond.state.checkpoint import Shard
from millpond.state.operator.ttl_handles import TtlList, TtlMap, TtlValue
from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.types.rows import Row as StateRow
from millpond.state.types.rows import is_bare
from millpond.state.types.times import LAST_MS
from millpond.state.types.ttl import Ttl

_Convert = Callable[..., Any]
_TIME_MODES = {"none": "None", "eventtime": "EventTime", "processingtime": "ProcessingTime"}


class ProcessorHandle:
    """Replaces PySpark's `StatefulProcessorHandle`, over one shard.

    Args:
        shard: holds the states.
        time_mode: "none", "eventtime" or "processingtime".
        parse: parses a schema's DDL text. Only a driver can call Spark's own parser, so in other processes it looks
            up the driver's result.
        deleted: the states that `init` declares and then deletes, as the driver found them.
    """

    def __init__(
        self,
        shard: Shard,
        time_mode: str,
        parse: Callable[[str], StructType],
        deleted: frozenset[str] = frozenset(),
    ) -> None:
        self._shard = shard
        self._time_mode = time_mode
        self._parse = parse
        self.deleted = deleted
        self._names: set[str] = set()
        self._declaring = True

    def end_of_init(self) -> None:
        """End the declaration of states. Declaring more is an error, as in PySpark."""
        self._declaring = False

    def getValueState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> Any:
        """Declare a value state, by PySpark's rules. It is of the current key."""
        state, _, spark_schema = self.value_state(stateName, schema, ttlDurationMs)
        if stateName in self.deleted:
            return DeletedState(stateName)
        outward = outward_of(spark_schema)
        return state if outward is None else _ConvertedValueState(state, row_inward_of(spark_schema), outward)

    def getListState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> "PySparkListState | DeletedState":
        """Declare a list state, by PySpark's rules. It is of the current key."""
        state, _, spark_schema = self.list_state(stateName, schema, ttlDurationMs)
        if stateName in self.deleted:
            return DeletedState(stateName, empty=("get",))
        return PySparkListState(stateName, state, row_inward_of(spark_schema), outward_of(spark_schema))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> "PySparkMapState | DeletedState":
        """Declare a map state, by PySpark's rules. It is of the current key."""
        state, _, spark_schema = self.map_state(stateName, userKeySchema, valueSchema, ttlDurationMs)
        if stateName in self.deleted:
            return DeletedState(stateName, empty=("iterator", "keys", "values"))
        return PySparkMapState(state, self._parsed(userKeySchema, stateName), spark_schema)

    def value_state(
        self, name: str, schema: StructType | str, ttl_ms: int | None
    ) -> tuple[ValueState, StateDescriptor, StructType]:
        """Declare a value state. Return its handle in `millpond.state`, its declaration, and its Spark schema."""
        spark_schema, descriptor = self._declare(StateKind.VALUE, name, schema, None, ttl_ms)
        backend, ttl = self._shard.backend, descriptor.ttl
        state = backend.value_state(descriptor) if ttl is None else TtlValue(backend, descriptor, ttl)
        return state, descriptor, spark_schema

    def list_state(
        self, name: str, schema: StructType | str, ttl_ms: int | None
    ) -> tuple[ListState, StateDescriptor, StructType]:
        """Declare a list state. Return its handle in `millpond.state`, its declaration, and its Spark schema."""
        spark_schema, descriptor = self._declare(StateKind.LIST, name, schema, None, ttl_ms)
        backend, ttl = self._shard.backend, descriptor.ttl
        state = backend.list_state(descriptor) if ttl is None else TtlList(backend, descriptor, ttl)
        return state, descriptor, spark_schema

    def map_state(
        self, name: str, map_key_schema: StructType | str, schema: StructType | str, ttl_ms: int | None
    ) -> tuple[MapState, StateDescriptor, StructType]:
        """Declare a map state. Return its handle in `millpond.state`, its declaration, and its values' Spark schema."""
        spark_schema, descriptor = self._declare(StateKind.MAP, name, schema, map_key_schema, ttl_ms)
        backend, ttl = self._shard.backend, descriptor.ttl
        state = backend.map_state(descriptor) if ttl is None else TtlMap(backend, descriptor, ttl)
        return state, descriptor, spark_schema

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the current key, in ms.

        As in Spark, a timer whose time has already come fires after the rows of this batch. If a timer's handler sets
        it, it fires in the next batch.
        """
        self._need_timers()
        self._shard.timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._need_timers()
        self._shard.timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the current key's timers, in ms."""
        self._need_timers()
        return self._shard.timers.of_key()

    def _need_timers(self) -> None:
        if self._time_mode == "none":
            raise OptionError("timers need timeMode 'EventTime' or 'ProcessingTime'; this operator runs with 'None'.")

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state for all keys, if the checkpoint has one of that name. Call it in `init`, as in PySpark.

        If `init` has declared the state before, calls of it raise an error afterwards.
        """
        self._need_init(stateName)
        if stateName in self._names:
            self.deleted |= {stateName}
        self._shard.delete_state(stateName)

    def _need_init(self, name: str) -> None:
        if not self._declaring:
            raise OptionError(f"state {name!r}: states are declared in init(), not in the calls made for a key.")

    def _declare(
        self,
        kind: StateKind,
        name: str,
        schema: StructType | str,
        map_key_schema: StructType | str | None,
        ttl_ms: int | None,
    ) -> tuple[StructType, StateDescriptor]:
        self._need_init(name)
        if isinstance(name, str) and name.startswith("$"):
            raise OptionError(f"state {name!r}: names that begin with $ are Millpond's own. Give it another one.")
        if name in self._names:
            raise OptionError(f"state {name!r}: the processor declares two states of that name. Rename one of them.")
        self._names.add(name)
        spark_schema = self._parsed(schema, name)
        descriptor = StateDescriptor(
            name=name,
            kind=kind,
            value_schema=arrow_schema(spark_schema),
            map_key_schema=None if map_key_schema is None else arrow_schema(self._parsed(map_key_schema, name)),
            ttl=self._ttl(name, ttl_ms),
        )
        self._shard.declare(descriptor)
        return spark_schema, descriptor

    def _ttl(self, name: str, duration_ms: int | None) -> Ttl | None:
        """Return the TTL by PySpark's rules: 0 means none, and a TTL needs processing time."""
        if duration_ms is None or (duration_ms == 0 and type(duration_ms) is int):
            return None
        if type(duration_ms) is not int or not 0 <= duration_ms <= LAST_MS:
            raise OptionError(
                f"state {name!r}: ttlDurationMs={duration_ms!r}; expected a whole number of ms greater than 0, "
                f"{LAST_MS} at most, or None for state that never expires."
            )
        if self._time_mode != "processingtime":
            raise OptionError(
                f"state {name!r}: ttlDurationMs={duration_ms} needs timeMode 'ProcessingTime', as in PySpark; this "
                f"operator runs with {_TIME_MODES[self._time_mode]!r}. Run it in processing time, or clear the state "
                "from a timer."
            )
        return Ttl(duration_ms)

    def _parsed(self, schema: StructType | str, name: str) -> StructType:
        parsed = self._parse(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, StructType):
            raise DataError(f"state {name!r}: its schema must be a StructType or its DDL text, got {schema!r}.")
        return parsed


class DeletedStateError(PySparkRuntimeError, OptionError):  # type: ignore[misc]
    """A call of a state that `init` deleted; PySpark raises its own error of this kind."""


class DeletedState:
    """A state that `init` declared and then deleted. As in PySpark, its calls fail, and its iterators are empty."""

    def __init__(self, name: str, empty: tuple[str, ...] = ()) -> None:
        self._name = name
        self._empty = empty

    def __getattr__(self, call: str) -> _Convert:
        if call.startswith("_"):
            raise AttributeError(call)
        return self._nothing if call in self._empty else self._refuse

    def _nothing(self) -> Iterator[StateRow]:
        return iter(())

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise DeletedStateError(
            f"state {self._name!r}: init() declared it and then deleted it with deleteIfExists, so it is not there. "
            "Delete only what is not used any more, or before it is declared: then it is empty in every batch."
        )


class PySparkListState:
    """PySpark's names for a list state."""

    def __init__(self, name: str, state: ListState, inward: _Convert | None, outward: _Convert | None) -> None:
        self._name = name
        self._state = state
        self._inward = inward
        self._outward = outward
        self.exists = state.exists
        self.clear = state.clear
        self.appendValue = state.append if inward is None else lambda value: state.append(inward(value))

    def put(self, newState: Iterable[StateRow]) -> None:
        """Replace the whole list. An empty list is an error, as in PySpark."""
        self._state.put(self._some(newState))

    def appendList(self, newState: Iterable[StateRow]) -> None:
        """Append several elements. An empty list is an error, as in PySpark."""
        self._state.extend(self._some(newState))

    def _some(self, values: Iterable[StateRow]) -> list[StateRow]:
        if isinstance(values, str | bytes | dict):
            raise DataError(
                f"state {self._name!r}: expected a list of elements, got {type(values).__name__} {values!r}. A list of "
                "one is written [value]."
            )
        found = list(values) if self._inward is None else list(map(self._inward, values))
        if not found:
            raise DataError(
                f"state {self._name!r}: an empty list was put or appended, which PySpark refuses too. Call clear() to "
                "have no list, or do nothing."
            )
        return found

    def get(self) -> Iterator[StateRow]:
        """Return the elements."""
        return self._state.get() if self._outward is None else map(self._outward, self._state.get())


class PySparkMapState:
    """PySpark's names for a map state."""

    def __init__(self, state: MapState, key_schema: StructType, schema: StructType) -> None:
        self._state = state
        self._key_outward = outward_of(key_schema) or _as_is
        self._outward = outward_of(schema) or _as_is
        self._make_row = row_maker(schema.names)
        self.exists = state.exists
        self.clear = state.clear
        to_key, to_value = row_inward_of(key_schema) or _as_is, row_inward_of(schema) or _as_is
        self._key_inward = to_key
        self.containsKey: _Convert = state.contains
        self.updateValue: _Convert = state.put
        self.removeKey: _Convert = state.remove
        if to_key is not _as_is or to_value is not _as_is:
            self.containsKey = lambda key: state.contains(to_key(key))
            self.updateValue = lambda key, value: state.put(to_key(key), to_value(value))
            self.removeKey = lambda key: state.remove(to_key(key))

    def getValue(self, key: StateRow) -> Row | None:
        """Return the value of one entry as a `Row` with the names of its fields, or None."""
        found = self._state.get(self._key_inward(key))
        return None if found is None else self._make_row(self._outward(found))

    def iterator(self) -> Iterator[tuple[StateRow, StateRow]]:
        """Return the entries."""
        return ((self._key_outward(key), self._outward(value)) for key, value in self._state.items())

    def keys(self) -> Iterator[StateRow]:
        """Return the keys of the entries."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[StateRow]:
        """Return the values of the entries."""
        return (value for _, value in self.iterator())


class _ConvertedValueState:
    def __init__(self, state: ValueState, inward: _Convert | None, outward: _Convert) -> None:
        self._state = state
        self._outward = outward
        self.exists = state.exists
        self.update = state.update if inward is None else lambda value: state.update(inward(value))
        self.clear = state.clear

    def get(self) -> StateRow | None:
        found = self._state.get()
        return None if found is None else self._outward(found)


def _tuple_of(*fields: Any) -> StateRow:
    return fields


def _as_is(value: Any) -> Any:
    return value


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to the form that `millpond.state` uses: Arrow, times in UTC, no metadata."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(schema)])


def outward_of(kind: DataType) -> _Convert | None:
    """Return a function that converts state values to what PySpark gives user code.

    None where both are equal and user code cannot change the value.
    """
    return _converter(kind, top=True)


def key_row_maker(schema: pa.Schema) -> Callable[[tuple[Any, ...]], Row]:
    """Return a function that converts a key of the state to the key that PySpark gives to `handleExpiredTimer`.

    Only there the key is a `Row` with the key's names, with naive local times.
    """
    make, outward = row_maker(schema.names), outward_of(from_arrow_schema(schema, prefer_timestamp_ntz=True))
    return make if outward is None else lambda key: make(outward(key))


def _converter(kind: DataType, *, top: bool = False) -> _Convert | None:
    if isinstance(kind, TimestampType):
        return _naive_local
    if isinstance(kind, ArrayType):
        return partial(_convert_list, _converter(kind.elementType) or _as_is)
    if isinstance(kind, MapType):
        return partial(_convert_map, _converter(kind.valueType) or _as_is)
    if isinstance(kind, StructType):
        converters = [_converter(field.dataType) for field in kind]
        if top and not any(converters):
            return None
        each = [converter or _as_is for converter in converters]
        return partial(_convert_row, each, _tuple_of if top else Row(*kind.names))
    return None


def _convert_list(element: _Convert, values: list[Any] | None) -> list[Any] | None:
    return None if values is None else [element(value) for value in values]


def _convert_map(entry: _Convert, entries: dict[Any, Any] | None) -> dict[Any, Any] | None:
    return None if entries is None else {at: entry(value) for at, value in entries.items()}


def _convert_row(each: list[_Convert], make: _Convert, row: StateRow | None) -> StateRow | None:
    return None if row is None else make(*(convert(value) for convert, value in zip(each, row, strict=True)))


def _naive_local(value: dt.datetime | None) -> dt.datetime | None:
    return None if value is None else value.astimezone().replace(tzinfo=None)


def inward_of(kind: DataType) -> _Convert | None:
    """Return a function that converts values of user code to what `millpond.state` keeps; None where both are equal.

    Only times differ: one without a zone is local. A value that does not have the form of its type is passed
    on unchanged, and a later check names it in an error.
    """
    if isinstance(kind, TimestampType):
        return _aware
    if isinstance(kind, ArrayType):
        element = inward_of(kind.elementType)
        return None if element is None else partial(_aware_items, element)
    if isinstance(kind, MapType):
        entry = inward_of(kind.valueType)
        return None if entry is None else partial(_aware_entries, entry)
    if isinstance(kind, StructType):
        converters = {field.name: inward_of(field.dataType) or _as_is for field in kind}
        if all(converter is _as_is for converter in converters.values()):
            return None
        return partial(_aware_fields, converters)
    return None


def row_inward_of(schema: StructType) -> _Convert | None:
    """Return `inward_of` for whole rows. A bare value stands for a row of one field."""
    inward = inward_of(schema)
    if inward is None or len(schema) != 1:
        return inward
    return lambda row: inward((row,) if is_bare(row) else row)


def _aware(value: Any) -> Any:
    if hasattr(value, "to_pydatetime"):
        # A pandas timestamp. NaT, its missing time, is the only one that is not equal to itself.
        value = value.to_pydatetime() if value == value else None  # noqa: PLR0124
    naive = type(value) is dt.datetime and value.tzinfo is None
    return value.astimezone() if naive else value


def _aware_items(element: _Convert, values: Any) -> Any:
    return [element(value) for value in values] if isinstance(values, list | tuple) else values


def _aware_entries(entry: _Convert, entries: Any) -> Any:
    return {at: entry(value) for at, value in entries.items()} if isinstance(entries, dict) else entries


def _aware_fields(converters: dict[str, _Convert], row: Any) -> Any:
    if isinstance(row, dict):
        return {name: converters[name](value) if name in converters else value for name, value in row.items()}
    if isinstance(row, list | tuple) and len(row) == len(converters):
        return tuple(convert(value) for convert, value in zip(converters.values(), row, strict=True))
    return row
