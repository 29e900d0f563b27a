"""Python objects as plain columns, for readers without the objects' classes.

Msgspec's bytes are MessagePack, which describes its own content: numbers, strings, lists, maps. So anybody can read the
columns of a state of such objects. Pickles and the bytes of a user's own functions stay bytes.

MessagePack encodes an object of a class and a dict alike. The declared type tells them apart
(`millpond.state.types.object_shapes`): a class becomes a struct with its fields; a dict becomes a map, because its keys
are data and no columns. Types that the declaration leaves open (the values of a plain `dict`, say) are inferred from
the values.

Arrow has one type per column. If the values of a dict, a list or a field have several types, that dict, list or field
is JSON; and if JSON cannot express one of the values, MessagePack.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec
import pyarrow as pa

from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.object_shapes import ANY_DICT, ANY_ITEMS, Entries, Items, Leaf, Record, Shape, shape_of

JSON_COLUMN = "json"
"""The column that Parquet files of msgspec's objects have beside the objects' bytes."""

TAG = "type"
"""The field in which msgspec writes an object's class, unless configured otherwise."""

_EMPTY = {
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "float": pa.float64(),
    "int": pa.int64(),
    "str": pa.string(),
}
"""The types of columns that have no value to infer the type from."""

_SILENT = ("", "any")
"""The names of types that say nothing about their values."""

_DICTS: frozenset[type] = frozenset({dict})
_LISTS: frozenset[type] = frozenset({list, tuple})
"""Lists, and tuples, which stand for lists in the keys of a dict."""


class _SeveralTypesError(Exception):
    """These values have no single Arrow type."""


def with_json(table: pa.Table, state: StateDescriptor) -> pa.Table:
    """Return the rows with a column of msgspec's values as JSON; null for a value that JSON cannot express."""
    values = _plain_values(table, state)
    return table if values is None else table.append_column(JSON_COLUMN, pa.array(map(_json, values), type=pa.string()))


def decoded(table: pa.Table, state: StateDescriptor) -> pa.Table:
    """Return the rows with plain columns in place of msgspec's bytes."""
    values = _plain_values(table, state)
    if values is None or state.serializer is None:
        return table
    name, shape = _column(state), shape_of(state.serializer.text.removeprefix(_MSGSPEC))
    column = _array_or_text(values, Items(shape) if state.kind is StateKind.LIST else shape)
    return table.set_column(table.column_names.index(name), name, column)


_MSGSPEC = "msgspec "


def _column(state: StateDescriptor) -> str:
    return "value" if state.kind is StateKind.LIST else "value.value"


def _plain_values(table: pa.Table, state: StateDescriptor) -> list[Any] | None:
    """Return each row's value as builtins; None if the state's values are not msgspec's."""
    if state.serializer is None or not state.serializer.text.startswith(_MSGSPEC):
        return None
    stored = table[_column(state)].to_pylist()
    if state.kind is StateKind.LIST:
        return [[_plain(element["value"]) for element in elements] for elements in stored]
    return [_plain(data) for data in stored]


def _plain(data: bytes | None) -> Any:
    return None if data is None else msgspec.msgpack.decode(data)


def _json(value: Any) -> str | None:
    if _is_blurred(value):
        return None
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.EncodeError):
        return None


def _is_blurred(value: Any) -> bool:
    """Return whether a dict in it has keys that JSON, whose keys are strings, would make equal: 3 and "3"."""
    if isinstance(value, dict):
        return len(set(map(str, value))) < len(value) or any(map(_is_blurred, value.values()))
    return isinstance(value, list | tuple) and any(map(_is_blurred, value))


def _array_or_text(values: Sequence[Any], shape: Shape) -> pa.Array:
    try:
        return _array(values, shape)
    except _SeveralTypesError:
        return _text(values)


def _text(values: Sequence[Any]) -> pa.Array:
    """Return values of several types as JSON, or as MessagePack if JSON cannot express one of them."""
    texts = [None if value is None else _json(value) for value in values]
    if any(text is None and value is not None for text, value in zip(texts, values, strict=True)):
        return pa.array([None if value is None else msgspec.msgpack.encode(value) for value in values], pa.binary())
    return pa.array(texts, pa.string())


def _array(values: Sequence[Any], shape: Shape) -> pa.Array:
    """Return values as a column. Raises _SeveralTypesError if they have no single type: their holder becomes text."""
    if isinstance(shape, Leaf):
        shape = _seen(values, shape)
    if isinstance(shape, Record):
        return _structs(values, shape)
    if isinstance(shape, Entries):
        return _cut(values, _DICTS, lambda present: _maps(present, shape))
    if isinstance(shape, Items):
        return _cut(values, _LISTS, lambda present: _lists(present, shape))
    return _inferred(values, shape)


def _seen(values: Sequence[Any], shape: Leaf) -> Shape:
    """Return the shape that the values themselves have, if their type leaves it open."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds & {dict, *_LISTS}:
        return shape
    # Objects of a class nested in itself: structs as deep as the deepest would again make columns depend on data.
    if shape.kind not in _SILENT:
        raise _SeveralTypesError
    if kinds == {dict}:
        return ANY_DICT
    return ANY_ITEMS if kinds <= _LISTS else shape


def _inferred(values: Sequence[Any], shape: Leaf) -> pa.Array:
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise _SeveralTypesError from error
    if pa.types.is_null(column.type) and shape.kind in _EMPTY:
        return pa.nulls(len(values), _EMPTY[shape.kind])
    return column


def _cut(values: Sequence[Any], kinds: frozenset[type], make: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """Return the column that `make` makes of the values, with a null for each None; text if they have several types."""
    present = [value for value in values if value is not None]
    if not kinds.issuperset(map(type, present)):
        raise _SeveralTypesError
    try:
        column = make(present)
    except _SeveralTypesError:
        column = _text(present)
    return column if len(present) == len(values) else _spread(column, values)


def _spread(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    """Return one element of the column for each value other than None, and a null for each None."""
    found = iter(range(len(values)))
    return column.take(pa.array([None if value is None else next(found) for value in values], pa.int32()))


def _maps(values: list[dict[Any, Any]], shape: Entries) -> pa.Array:
    keys, items = list(chain.from_iterable(values)), list(chain.from_iterable(each.values() for each in values))
    if None in keys:
        raise _SeveralTypesError
    return pa.MapArray.from_arrays(_offsets(values), _array(keys, shape.key), _array(items, shape.value))


def _lists(values: list[list[Any]], shape: Items) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(values), _array(list(chain.from_iterable(values)), shape.item))


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())


def _structs(values: Sequence[Any], shape: Record) -> pa.Array:
    """Return objects of classes as structs. Objects that are written without field names are read by position."""
    names = [*([TAG] if shape.tagged else []), *(name for name, _ in shape.fields)]
    if shape.ordered:
        rows = [dict(zip(names, value, strict=False)) if type(value) in _LISTS else value for value in values]
    else:
        rows = list(values)
    if not all(type(row) is dict or row is None for row in rows):
        raise _SeveralTypesError
    shapes: dict[str, Shape] = dict(shape.fields)
    if shape.tagged:
        tags = dict.fromkeys(chain.from_iterable(row for row in rows if row is not None))
        shapes = {**{name: Leaf() for name in tags if name not in shapes}, **shapes}
    if not shapes:
        return pa.array([None if row is None else {} for row in rows], pa.struct([]))
    columns = [
        _array_or_text([None if row is None else row.get(name) for row in rows], each) for name, each in shapes.items()
    ]
    return pa.StructArray.from_arrays(
        columns, names=list(shapes), mask=pa.array([row is None for row in rows], pa.bool_())
    )
