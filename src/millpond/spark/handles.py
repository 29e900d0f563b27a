"""The handle that an unchanged PySpark `StatefulProcessor` sees: PySpark's names over Millpond's states.

A value state needs no translation: its methods have the same names, and so user code calls the
backend directly. Lists and maps differ in names alone. States with timestamps or nested structs are
converted at this seam, since PySpark hands user code naive local datetimes and `Row`s, while the
state room keeps aware UTC datetimes and tuples. Arrays and maps are copied here, since PySpark makes
them anew with every get: what user code does to one is never seen again without an update.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType, TimestampType

from millpond.errors import DataError, OptionError
from millpond.spark.operator_spec import BatchTime
from millpond.state import ListState, MapState, StateDescriptor, StateKind, ValueState
from millpond.state.checkpoint import Shard
from millpond.state.rows import Row as StateRow

_Convert = Callable[..., Any]


class ProcessorHandle:
    """Stands for PySpark's `StatefulProcessorHandle`, over one shard.

    `parse` turns a schema's DDL text into a StructType: only a driver can ask Spark's own parser, so
    elsewhere it looks up what the driver found.
    """

    def __init__(self, shard: Shard, time_mode: str, time: BatchTime, parse: Callable[[str], StructType]) -> None:
        self._shard = shard
        self._time_mode = time_mode
        self._time = time
        self._parse = parse
        self._names: set[str] = set()

    def getValueState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> Any:
        """A value state of the current key, under PySpark's rules."""
        spark_schema, descriptor = self._declare(StateKind.VALUE, stateName, schema, None, ttlDurationMs)
        state = self._shard.backend.value_state(descriptor)
        outward = outward_of(spark_schema)
        return state if outward is None else _ConvertedValueState(state, inward_of(spark_schema), outward)

    def getListState(
        self,
        stateName: str,
        schema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> "PySparkListState":
        """A list state of the current key, under PySpark's rules."""
        spark_schema, descriptor = self._declare(StateKind.LIST, stateName, schema, None, ttlDurationMs)
        state = self._shard.backend.list_state(descriptor)
        return PySparkListState(state, inward_of(spark_schema), outward_of(spark_schema))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> "PySparkMapState":
        """A map state of the current key, under PySpark's rules."""
        spark_schema, descriptor = self._declare(StateKind.MAP, stateName, valueSchema, userKeySchema, ttlDurationMs)
        state = self._shard.backend.map_state(descriptor)
        return PySparkMapState(state, self._parsed(userKeySchema, stateName), spark_schema)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the current key, in ms. In event time it must lie after the watermark, as in PySpark."""
        self._need_timers()
        if self._time_mode == "eventtime" and expiryTimestampMs <= self._time.watermark_ms:
            raise OptionError(
                f"cannot register a timer at {expiryTimestampMs} ms, which is not later than the current watermark "
                f"{self._time.watermark_ms} ms. Register it later, or act at once."
            )
        self._shard.timers.register(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Forget a timer of the current key."""
        self._need_timers()
        self._shard.timers.delete(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """The current key's timers, in ms."""
        self._need_timers()
        return self._shard.timers.of_key()

    def _need_timers(self) -> None:
        if self._time_mode == "none":
            raise OptionError("timers need timeMode 'EventTime' or 'ProcessingTime'; this operator runs with 'None'.")

    def _declare(
        self,
        kind: StateKind,
        name: str,
        schema: StructType | str,
        map_key_schema: StructType | str | None,
        ttl_ms: int | None,
    ) -> tuple[StructType, StateDescriptor]:
        if ttl_ms is not None:
            raise OptionError(
                f"state {name!r}: ttlDurationMs={ttl_ms} is not supported by keyed(). Leave it out, and clear the "
                "state from a timer."
            )
        if name.startswith("$"):
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
        )
        self._shard.declare(descriptor)
        return spark_schema, descriptor

    def _parsed(self, schema: StructType | str, name: str) -> StructType:
        parsed = self._parse(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, StructType):
            raise DataError(f"state {name!r}: its schema must be a StructType or its DDL text, got {schema!r}.")
        return parsed


class PySparkListState:
    """PySpark's names for a list state."""

    def __init__(self, state: ListState, inward: _Convert | None, outward: _Convert | None) -> None:
        self._state = state
        self._outward = outward
        self.exists = state.exists
        self.clear = state.clear
        if inward is None:
            self.put, self.appendValue, self.appendList = state.put, state.append, state.extend
        else:
            self.put = lambda values: state.put(map(inward, values))
            self.appendValue = lambda value: state.append(inward(value))
            self.appendList = lambda values: state.extend(map(inward, values))

    def get(self) -> Iterator[StateRow]:
        """The elements."""
        return self._state.get() if self._outward is None else map(self._outward, self._state.get())


class PySparkMapState:
    """PySpark's names for a map state."""

    def __init__(self, state: MapState, key_schema: StructType, schema: StructType) -> None:
        self._state = state
        self._key_outward = outward_of(key_schema) or _as_is
        self._outward = outward_of(schema) or _as_is
        self.exists = state.exists
        self.clear = state.clear
        to_key, to_value = inward_of(key_schema) or _as_is, inward_of(schema) or _as_is
        self._key_inward = to_key
        self.containsKey: _Convert = state.contains
        self.updateValue: _Convert = state.put
        self.removeKey: _Convert = state.remove
        if to_key is not _as_is or to_value is not _as_is:
            self.containsKey = lambda key: state.contains(to_key(key))
            self.updateValue = lambda key, value: state.put(to_key(key), to_value(value))
            self.removeKey = lambda key: state.remove(to_key(key))

    def getValue(self, key: StateRow) -> StateRow | None:
        """The value of one entry, or None."""
        found = self._state.get(self._key_inward(key))
        return None if found is None else self._outward(found)

    def iterator(self) -> Iterator[tuple[StateRow, StateRow]]:
        """The entries."""
        return ((self._key_outward(key), self._outward(value)) for key, value in self._state.items())

    def keys(self) -> Iterator[StateRow]:
        """The keys of the entries."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[StateRow]:
        """The values of the entries."""
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
    """A Spark schema as the state room knows it: Arrow, times in UTC, no metadata."""
    return pa.schema([pa.field(field.name, field.type) for field in to_arrow_schema(schema, timezone="UTC")])


def outward_of(kind: DataType) -> _Convert | None:
    """A conversion to what PySpark hands to user code, or None where nothing differs and nothing can be changed."""
    return _converter(kind, top=True)


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
    """A conversion of what PySpark's users give to what the state room keeps, or None where nothing differs.

    Only times differ: one without a zone is local. What does not have the form of its type goes on as it
    is, to be refused by name.
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


def _aware(value: Any) -> Any:
    naive = isinstance(value, dt.datetime) and value.tzinfo is None
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
