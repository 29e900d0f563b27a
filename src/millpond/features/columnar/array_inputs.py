"""The inputs of a whole Arrow table, as arrays of what cells hold.

Numbers, booleans, dates, timestamps and decimals of up to 18 digits become numpy arrays. Texts and binaries
become the ranks of their distinct values, so that ranks compare as values do. Longer decimals, arrays and maps
become lists, as ``inputs`` makes them. So does what numpy or Arrow cannot convert exactly: then every fault is
reported in the same words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError
from millpond.features.definitions import Field
from millpond.features.inputs import Column, EventColumns, unfit_input
from millpond.features.scalar_values import OUTSIDE_YEARS, YEARS, UnfitError
from millpond.features.types import DataType, parse_type

_LONG_DIGITS = 18
_RANKED = ("string", "binary")


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """One input of all rows: an inside value for each row, and which rows have one (None: all).

    ``ranked`` is None, or has the distinct values in order; then ``values`` are positions in it.
    """

    valid: Any
    values: Any
    ranked: list[Any] | None = None

    def listed(self) -> list[Any]:
        """Return the value of each row that has one."""
        values: list[Any] = (self.values if self.valid is None else self.values[self.valid]).tolist()
        ranked = self.ranked
        return values if ranked is None else [ranked[place] for place in values]


class TableInputs:
    """The inputs of a GroupBy in a table; each is converted once, when it is asked for."""

    def __init__(self, group_by: str, fields: Sequence[Field], table: pa.Table) -> None:
        self._group_by = group_by
        self._fields = tuple(fields)
        self._types = tuple(parse_type(field.type) for field in fields)
        self._events = EventColumns(group_by, fields)
        self._arrays: dict[int, ArrayColumn | None] = {}
        self._given = tuple(map(self._column_of(table), self._fields, self._types))

    def array(self, position: int) -> ArrayColumn | None:
        """Return an input as an array; None if its values have no array form."""
        if position not in self._arrays:
            given = self._given[position]
            check_years(f"GroupBy {self._group_by!r}", self._fields[position], given)
            self._arrays[position] = _as_array(given, self._types[position])
        return self._arrays[position]

    @cached_property
    def columns(self) -> list[Column]:
        """Every input as a column of Python values."""
        return list(map(self._listed, range(len(self._fields))))

    def _listed(self, position: int) -> Column:
        found = self.array(position)
        if found is None:
            values = in_utc(self._given[position], self._types[position]).to_pylist(maps_as_pydicts="strict")
            return self._events.column(position, values)
        return Column(None if found.valid is None else found.valid.tolist(), found.listed())

    def _column_of(self, table: pa.Table) -> Callable[[Field, DataType], pa.Array]:
        def column_of(field: Field, type_: DataType) -> pa.Array:
            if field.name not in table.column_names:
                raise DataError(
                    f"GroupBy {self._group_by!r}: input {field.name!r} is not among the columns {table.column_names}; "
                    "add it to the table, or correct its name"
                )
            column = table.column(field.name)
            column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if not _fits(column.type, type_):
                raise DataError(
                    f"GroupBy {self._group_by!r}: input {field.name!r} must be of type {type_.name}, "
                    f"got a column of {column.type}; cast it to {type_.arrow()}"
                )
            return column

        return column_of


def _fits(given: pa.DataType, wanted: DataType) -> bool:
    """Return whether a type of column can hold values of a declared type; each value is checked as well."""
    if pa.types.is_null(given):
        return True
    if wanted.element is not None:
        if wanted.key is not None:
            return (
                pa.types.is_map(given) and _fits(given.key_type, wanted.key) and _fits(given.item_type, wanted.element)
            )
        is_list = pa.types.is_list(given) or pa.types.is_large_list(given) or pa.types.is_fixed_size_list(given)
        return is_list and _fits(given.value_type, wanted.element)
    return any(test(given) for test in _FITTING[wanted.kind])


def _is_zoned(given: pa.DataType) -> bool:
    return pa.types.is_timestamp(given) and given.tz is not None


_NUMBERS = (pa.types.is_floating, pa.types.is_integer)
_FITTING: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "boolean": (pa.types.is_boolean,),
    "int": (pa.types.is_integer,),
    "long": (pa.types.is_integer,),
    "float": _NUMBERS,
    "double": _NUMBERS,
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "date": (pa.types.is_date,),
    "timestamp": (_is_zoned,),
    "decimal": (pa.types.is_decimal,),
}


def check_years(whose: str, field: Field, column: pa.Array | pa.ChunkedArray) -> None:
    """Check that the dates and timestamps of an input, also in arrays and maps, are of years that Python has.

    Args:
        whose: the beginning of the error, such as ``"GroupBy 'route'"``.
        field: the input.
        column: its values.

    Raises:
        DataError: one of them is not.
    """
    unfit = outside_years(parse_type(field.type), column)
    if unfit is not None:
        raise unfit_input(whose, field, unfit)


def outside_years(type_: DataType, column: pa.Array | pa.ChunkedArray) -> UnfitError | None:
    """Return what is wrong with a date or timestamp, also in arrays and maps, of years that Python does not have.

    >>> outside_years(parse_type("date"), pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()))
    UnfitError('10183-09-21', 'it is not between the years 1 and 9999 in UTC')
    """
    if type_.scalar.kind not in YEARS or not len(column) or pa.types.is_null(column.type):
        return None
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if type_.key is not None:
        # The items of a slice are those of the whole column.
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        column = column.items.slice(begin, end - begin)
    elif type_.element is not None:
        column = column.flatten()
    arrow = type_.scalar.arrow()
    values = column.cast(arrow, safe=False).cast(pa.int32() if type_.scalar.kind == "date" else pa.int64())
    least, greatest = YEARS[type_.scalar.kind]
    for found in pc.min_max(values).as_py().values():
        if found is not None and not least <= found <= greatest:
            text = pa.scalar(found, values.type).cast(arrow).cast(pa.string()).as_py()
            return UnfitError(text, OUTSIDE_YEARS)
    return None


def in_utc(column: Any, type_: DataType) -> Any:
    """Return a column of timestamps, also in arrays and maps, with the time zone UTC, and any other as it is.

    Python's years end in local time: the last hours of the year 9999 have no datetime in a zone east of UTC.
    """
    return column.cast(type_.arrow()) if type_.scalar.kind == "timestamp" else column


def _as_array(column: pa.Array, type_: DataType) -> ArrayColumn | None:
    if type_.kind in _RANKED:
        return _as_ranks(column, type_)
    convert = _CONVERTERS.get(type_.kind)
    if convert is None or (type_.kind == "decimal" and type_.precision > _LONG_DIGITS):
        return None
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    try:
        values = convert(column.cast(type_.arrow()), type_)
    except pa.ArrowInvalid:
        return None
    checked = values if valid is None else values[valid]
    if checked.dtype == np.float64 and not np.isfinite(checked).all():
        return None
    return ArrayColumn(valid, values)


def _as_ranks(column: pa.Array, type_: DataType) -> ArrayColumn | None:
    """Replace values by their ranks among the distinct values. Texts sort by code point, as their UTF-8 bytes do."""
    try:
        encoded = column.cast(type_.arrow()).dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary)
        ranked = list(type_.inward(encoded.dictionary.take(order).to_pylist()))
    except (pa.ArrowInvalid, UnfitError):
        return None
    ranks = np.empty(len(order), np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    values = ranks[_filled(encoded.indices)] if len(ranks) else np.zeros(len(column), np.int64)
    return ArrayColumn(valid, values, ranked)


def _filled(column: pa.Array) -> Any:
    return (column.fill_null(0) if column.null_count else column).to_numpy()


def _whole(column: pa.Array, _: DataType) -> Any:
    return _filled(column).astype(np.int64)


def _fraction(column: pa.Array, _: DataType) -> Any:
    # Adding 0.0 turns -0.0 into 0.0, as in single events.
    return _filled(column).astype(np.float64) + 0.0


def _boolean(column: pa.Array, _: DataType) -> Any:
    return _filled(column.cast(pa.int8())).astype(np.bool_)


def _days(column: pa.Array, _: DataType) -> Any:
    return _whole(column.cast(pa.int32()), _)


def _microseconds(column: pa.Array, _: DataType) -> Any:
    return _whole(column.cast(pa.int64()), _)


def _unscaled(column: pa.Array, type_: DataType) -> Any:
    """Return the low 64 bits of each decimal: with up to 18 digits they are the whole number."""
    column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(type_.arrow())) if column.null_count else column
    words = np.frombuffer(column.buffers()[1], np.int64)
    return words[2 * column.offset : 2 * (column.offset + len(column)) : 2]


_CONVERTERS: dict[str, Callable[[pa.Array, DataType], Any]] = {
    "boolean": _boolean,
    "int": _whole,
    "long": _whole,
    "float": _fraction,
    "double": _fraction,
    "date": _days,
    "timestamp": _microseconds,
    "decimal": _unscaled,
}
