"""Python objects for those who read state without the classes it was made of.

Msgspec's bytes are MessagePack, which says of itself what it holds: numbers, texts, lists, maps. So
the columns of a state of such objects can be read by anybody. Pickles and the bytes of a user's own
functions stay bytes.
"""

from typing import Any

import msgspec
import pyarrow as pa

from millpond.state.descriptor import StateDescriptor, StateKind

JSON_COLUMN = "json"
"""The column that the Parquet files of a state of msgspec's objects have beside their bytes."""


def with_json(table: pa.Table, state: StateDescriptor) -> pa.Table:
    """The rows with msgspec's values as JSON beside them; null where JSON has no words for one."""
    values = _plain_values(table, state)
    return table if values is None else table.append_column(JSON_COLUMN, pa.array(map(_json, values), type=pa.string()))


def decoded(table: pa.Table, state: StateDescriptor) -> pa.Table:
    """The rows with plain columns in place of msgspec's bytes: numbers, texts, lists and structs, as Arrow infers them.

    Where Arrow finds no one type for them the column holds JSON.
    """
    values = _plain_values(table, state)
    if values is None:
        return table
    name = _column(state)
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        column = pa.array(map(_json, values), type=pa.string())
    return table.set_column(table.column_names.index(name), name, column)


def _column(state: StateDescriptor) -> str:
    return "value" if state.kind is StateKind.LIST else "value.value"


def _plain_values(table: pa.Table, state: StateDescriptor) -> list[Any] | None:
    """Each row's value as builtins; None where the state's values are not msgspec's."""
    if state.serializer is None or not state.serializer.text.startswith("msgspec "):
        return None
    stored = table[_column(state)].to_pylist()
    if state.kind is StateKind.LIST:
        return [[_plain(element["value"]) for element in elements] for elements in stored]
    return [_plain(data) for data in stored]


def _plain(data: bytes | None) -> Any:
    return None if data is None else msgspec.msgpack.decode(data)


def _json(value: Any) -> str | None:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.EncodeError):
        return None
