"""The columns of a GroupBy in a DataFrame: checked by name and type, and brought into the plan's order.

Every computation of features on Spark begins here, before anything is written. A column is accepted if its type is
equal or widens without loss (int to long, float to double, a shorter decimal to a longer one). Whole numbers are
accepted for double too. Any other type is refused, with the conversion to write. Zeros in keys lose their sign here, as
in the encoded key, so that rows with equal keys share a partition.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millpond.errors import DataError
from millpond.features import Field, GroupBy
from millpond.features.types import DataType, parse_type

TIME = "time_ms"
"""The name of the time column that `plan_columns` returns."""

_WHOLE = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_ACCEPTED = {
    "boolean": ("boolean",),
    "int": ("tinyint", "smallint", "int"),
    "long": tuple(_WHOLE),
    "float": ("float", "tinyint", "smallint"),
    "double": ("double", "float", *_WHOLE),
    "string": ("string",),
    "binary": ("binary",),
    "date": ("date",),
    "timestamp": ("timestamp",),
}
_TIME_HINT = "times are milliseconds since the epoch, UTC: use unix_millis(column) on a timestamp"


def plan_columns(rows: DataFrame, group_by: GroupBy, time_column: str, whose: str | None = None) -> list[Column]:
    """Return the keys, the time and the inputs of a GroupBy as columns of ``rows``, in this order.

    They are named ``key_0``, …, ``time_ms``, ``input_0``, …, so that a column may be both a key and an input.

    Args:
        rows: a DataFrame with these columns.
        group_by: the GroupBy that they are for.
        time_column: the event time, a column of milliseconds since the epoch, UTC.
        whose: the name in errors; the GroupBy if None.

    Raises:
        DataError: a column is missing or of another type.
    """
    whose = whose or f"GroupBy {group_by.name!r}"
    return [
        *(
            checked_column(rows, field, "key", whose).alias(name)
            for field, name in zip(group_by.keys, key_names(group_by), strict=True)
        ),
        checked_column(rows, Field(time_column, "long"), "time column", whose, _TIME_HINT).alias(TIME),
        *(
            checked_column(rows, field, "input", whose).alias(name)
            for field, name in zip(group_by.inputs, input_names(group_by), strict=True)
        ),
    ]


def key_names(group_by: GroupBy) -> list[str]:
    """Return the names of the key columns that `plan_columns` returns."""
    return [f"key_{n}" for n in range(len(group_by.keys))]


def input_names(group_by: GroupBy) -> list[str]:
    """Return the names of the input columns that `plan_columns` returns."""
    return [f"input_{n}" for n in range(len(group_by.inputs))]


def has_key(names: Sequence[str]) -> Column:
    """Return the condition that no part of the key is null. A row with a null part belongs to no key."""
    condition = F.lit(True)
    for name in names:
        condition &= F.col(name).isNotNull()
    return condition


def checked_column(rows: DataFrame, field: Field, what: str, whose: str, hint: str | None = None) -> Column:
    """Return the column of a field, cast to the field's type.

    Args:
        rows: the DataFrame that has it.
        field: its name and type.
        what: its name in errors, such as ``"key"``.
        whose: the beginning of errors, such as ``"GroupBy 'route'"``.
        hint: how to mend a wrong type; a cast if None.

    Raises:
        DataError: the column is missing, or of a type that does not fit.
    """
    found = {column.name: column.dataType for column in rows.schema.fields}
    if field.name not in found:
        raise DataError(
            f"{whose}: {what} {field.name!r} is not among the columns {sorted(found)}; "
            "add it to the DataFrame, or correct its name"
        )
    wanted = parse_type(field.type)
    if not _fits(wanted, found[field.name]):
        hint = hint or f'use col("{field.name}").cast("{wanted.spark_name}")'
        raise DataError(
            f"{whose}: {what} {field.name!r} must be of type {wanted.spark_name}, "
            f"got {found[field.name].simpleString()}; {hint}"
        )
    column = rows[quoted(field.name)].cast(wanted.spark_name)
    # Adding 0 turns -0.0 into 0.0.
    return column + F.lit(0.0).cast(wanted.spark_name) if wanted.kind in ("float", "double") else column


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark's expressions.

    >>> quoted("a.b")
    '`a.b`'
    """
    return f"`{name.replace('`', '``')}`"


def comparable(value: Column, type_: DataType) -> Column:
    """Return a value in a form that Spark can compare: maps become their sorted entries."""
    if type_.element is None:
        return value
    element = type_.element
    if type_.key is None:
        return value if element.element is None else F.transform(value, lambda one: comparable(one, element))
    if element.element is not None:
        value = F.transform_values(value, lambda _, one: comparable(one, element))
    return F.array_sort(F.map_entries(value))


def _fits(wanted: DataType, found: T.DataType) -> bool:
    if wanted.kind == "decimal":
        digits = (found.precision, found.scale) if isinstance(found, T.DecimalType) else None
        if digits is None and found.simpleString() in _WHOLE:
            digits = (_WHOLE[found.simpleString()], 0)
        if digits is None:
            return False
        return bool(digits[0] - digits[1] <= wanted.precision - wanted.scale and digits[1] <= wanted.scale)
    if wanted.element is None:
        return found.simpleString() in _ACCEPTED[wanted.kind]
    if wanted.key is None:
        return isinstance(found, T.ArrayType) and _fits(wanted.element, found.elementType)
    return isinstance(found, T.MapType) and _fits(wanted.key, found.keyType) and _fits(wanted.element, found.valueType)
