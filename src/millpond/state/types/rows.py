"""Tuples under an Arrow schema: checked when they enter the state, converted to columns when they leave it.

State values, state keys and map keys are plain tuples, one element per field. `RowCodec` is created once per schema and
gives two things: `check`, and the conversion of many tuples to and from Arrow columns. Every update runs `check`. So it
is code generated for that schema, one expression without a loop. A checkpoint runs the conversion once per batch.

Invariant: a tuple that `check` returned converts to Arrow and back to an equal tuple. So a restored operator sees what
the running one saw. A value that could not be stored is rejected at the update, by name, and not at the checkpoint.
"""

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.state.types.arrow_values import NAN, UTC_NAMES, encodes, needs_rebuilding, python_values, rebuilt
from millpond.state.types.row_bytes import RowBytes, holds_containers

Row = tuple[Any, ...]

_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class RowCodec:
    """Checks and converts the tuples of one schema. `what` names them in errors ("state 'count'")."""

    __slots__ = ("_plain", "check", "copy", "dumps", "loads", "mutable", "names", "schema", "what")

    def __init__(self, schema: pa.Schema, what: object) -> None:
        self.schema = schema
        self.what = what
        self.names = tuple(schema.names)
        self.mutable = any(holds_containers(field.type) for field in schema)
        self._plain = tuple(not needs_rebuilding(field.type) for field in schema)
        self.check: Callable[[Any], Row] = _compile_check(schema, self._normalise)
        as_bytes = RowBytes(schema)
        self.dumps: Callable[[Row], bytes] = as_bytes.dumps
        self.loads: Callable[[bytes], Row] = as_bytes.loads
        self.copy: Callable[[Row], Row] = as_bytes.copy

    def columns(self, rows: Sequence[Row]) -> list[pa.Array]:
        """Return one Arrow array per field, in the schema's order."""
        return [
            pa.array(list(map(itemgetter(position), rows)), type=field.type)
            for position, field in enumerate(self.schema)
        ]

    def rows(self, columns: Sequence[pa.Array]) -> Iterator[Row]:
        """Return the tuples from which `columns` was made."""
        lists: list[Iterable[Any]] = []
        for column, field, plain in zip(columns, self.schema, self._plain, strict=True):
            values = python_values(column)
            lists.append(values if plain else [rebuilt(value, field.type) for value in values])
        return zip(*lists, strict=True)

    def _normalise(self, value: Any) -> Row:
        """Do the slow part of `check`: convert what loses nothing, and reject the rest by name."""
        if is_bare(value):
            if len(self.names) == 1 and value is not None:
                return self._single(value)
            raise DataError(
                f"{self.what}: expected a tuple of {len(self.names)} fields {self.names}, got "
                f"{type(value).__name__} {value!r}. A single value is written with a comma: (value,)."
            )
        if len(value) != len(self.names):
            raise DataError(
                f"{self.what}: expected {len(self.names)} fields {self.names}, got {len(value)}: {tuple(value)!r}."
            )
        return tuple(self._normalised(item, field) for item, field in zip(value, self.schema, strict=True))

    def _single(self, value: Any) -> Row:
        """Return a bare value as a row of one field, if it has that very type. Another type is probably a mistake."""
        given = value.item() if type(value).__module__ == "numpy" else value
        try:
            row = (self._normalised(given, self.schema[0]),)
        except DataError:
            row = (None,)
        if type(row[0]) is not type(given):
            raise DataError(
                f"{self.what}: expected a tuple of one field {self.names}, or its value alone as "
                f"{self.schema[0].type}; got {type(value).__name__} {value!r}. A single value is written with a comma: "
                "(value,)."
            )
        return row

    def _normalised(self, item: Any, field: pa.Field) -> Any:
        item = item.item() if type(item).__module__ == "numpy" and hasattr(item, "item") else item
        try:
            zone = _zone(field.type)
            if type(item) is dt.datetime and item.tzinfo and zone and item.tzinfo is not zone:
                item = item.astimezone(zone)
                if field.type.tz in UTC_NAMES and field.type.unit == "us":
                    return item
            exact = pa.scalar(item, type=field.type).as_py(maps_as_pydicts="strict")
            fits = not loses(item, field.type)
        except MISFITS as error:
            fits, cause = False, error
        else:
            cause = None
        if not fits:
            raise DataError(
                f"{self.what}: field {field.name!r} is {field.type}, got {type(item).__name__} {item!r}. "
                "Convert the value, or declare the field with a type that holds it."
            ) from cause
        return rebuilt(exact, field.type)

    def check_key(self) -> Callable[[Any], Row]:
        """Return `check` for tuples that are keys of a map: every NaN is one key, and so are 0.0 and -0.0.

        An OptionError names a field whose values cannot be keys.
        """
        for field in self.schema:
            if not _hashable(field.type):
                raise OptionError(
                    f"{self.what}: field {field.name!r} is {field.type}, whose values cannot be keys. "
                    "Use atomic fields, or a text made of the value."
                )
        check, floats = self.check, [pa.types.is_floating(field.type) for field in self.schema]
        if not any(floats):
            return check
        return lambda key: tuple(
            _grouping_float(item) if is_float else item for item, is_float in zip(check(key), floats, strict=True)
        )


def is_bare(value: Any) -> bool:
    """Return whether a value is no row: it has no order of fields.

    >>> is_bare("ab"), is_bare({"a": 1}), is_bare(3), is_bare((3,)), is_bare([3])
    (True, True, True, False, False)
    """
    return isinstance(value, str | bytes | dict | set | frozenset) or not hasattr(value, "__len__")


MISFITS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
    UnicodeEncodeError,
    KeyError,
)
"""Errors that Arrow raises for a value that a type cannot hold."""


def loses(value: Any, kind: pa.DataType) -> bool:
    """Return whether Arrow would accept the value for this type and silently cut it: a fraction, or a time of day.

    >>> loses(1.5, pa.int64()), loses(2.0, pa.int64()), loses([1.5], pa.list_(pa.int64()))
    (True, False, True)
    """
    if value is None:
        return False
    if pa.types.is_integer(kind):
        return bool(value % 1 != 0)
    if pa.types.is_date(kind):
        return isinstance(value, dt.datetime)
    if pa.types.is_list(kind):
        return any(loses(item, kind.value_type) for item in value)
    if pa.types.is_map(kind):
        entries = value.items() if isinstance(value, dict) else value
        return any(loses(at, kind.key_type) or loses(item, kind.item_type) for at, item in entries)
    if pa.types.is_struct(kind):
        items = dict(value) if not isinstance(value, tuple) else dict(zip(kind.names, value, strict=True))
        return any(loses(items.get(field.name), field.type) for field in kind)
    return False


def grouping_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a key column's values as Spark groups by them: every NaN is one key, and so are 0.0 and -0.0."""
    values = python_values(column)
    return list(map(_grouping_float, values)) if pa.types.is_floating(column.type) else values


def _grouping_float(value: float | None) -> float | None:
    if value is None:
        return None
    return NAN if math.isnan(value) else value + 0.0


def _hashable(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_hashable(field.type) for field in kind)
    return not pa.types.is_nested(kind)


def _compile_check(schema: pa.Schema, normalise: Callable[[Any], Row]) -> Callable[[Any], Row]:
    """Return one expression that lets an exactly typed tuple pass as it is, and sends others to `normalise`.

    It is generated, because a loop over the fields would cost several times the update itself. Its source consists of
    positions, numbers and fixed words only, never of names.
    """
    tests = [f"type(v) is tuple and len(v) == {len(schema)}"]
    for position, field in enumerate(schema):
        test = _exact_test(f"v[{position}]", field.type, f"zone{position}")
        if test is None:
            return normalise
        tests.append(f"(v[{position}] is None or {test})")
    scope = {"normalise": normalise, "date": dt.date, "datetime": dt.datetime, "encodes": encodes}
    scope |= {f"zone{position}": _zone(field.type) for position, field in enumerate(schema)}
    check: Callable[[Any], Row] = eval(f"lambda v: v if {' and '.join(tests)} else normalise(v)", scope)  # noqa: S307
    return check


def _exact_test(item: str, kind: pa.DataType, zone: str) -> str | None:
    """Return the source of a test that `item` is already what Arrow would return; None if there is no cheap test."""
    if kind in _INTEGER_BITS:
        bound = 1 << (_INTEGER_BITS[kind] - 1)
        return f"(type({item}) is int and {-bound} <= {item} < {bound})"
    if kind == pa.string():
        return f"(type({item}) is str and ({item}.isascii() or encodes({item})))"
    # In other zones one hour is missing and one occurs twice. What was meant there is for Arrow to decide.
    if pa.types.is_timestamp(kind) and kind.unit == "us" and (kind.tz is None or kind.tz in UTC_NAMES):
        return f"(type({item}) is datetime and {item}.tzinfo is {zone} and not {item}.fold)"
    simple = {pa.float64(): "float", pa.bool_(): "bool", pa.binary(): "bytes", pa.date32(): "date"}
    return f"type({item}) is {simple[kind]}" if kind in simple else None


@lru_cache
def _zone(kind: pa.DataType) -> dt.tzinfo | None:
    """Return the zone of Arrow's values of a timestamp type; None if it has none."""
    is_aware = pa.types.is_timestamp(kind) and kind.tz is not None
    zone: dt.tzinfo | None = pa.lib.string_to_tzinfo(kind.tz) if is_aware else None
    return zone
