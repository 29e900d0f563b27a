"""The Arrow types of SQL types.

The invariant: a type that would lose information has no Arrow type here, and the error names it.
"""

from typing import Any

import pyarrow as pa

from millpond.errors import OptionError


def arrow_type(where: str, name: str, sql_type: Any) -> pa.DataType:
    """Return the Arrow type for a column's SQLAlchemy type. An `OptionError` names a column without one."""
    from sqlalchemy import types

    if isinstance(sql_type, types.Numeric) and not isinstance(sql_type, types.Float):
        if sql_type.precision is not None:
            return pa.decimal128(sql_type.precision, sql_type.scale or 0)
    else:
        for known, known_type in (
            (types.Boolean, pa.bool_()),
            (types.Integer, pa.int64()),
            (types.Float, pa.float64()),
            (types.DateTime, pa.timestamp("us", "UTC" if getattr(sql_type, "timezone", False) else None)),
            (types.Date, pa.date32()),
            (types.LargeBinary, pa.binary()),
            (types.String, pa.string()),
        ):
            if isinstance(sql_type, known):
                return known_type
    raise OptionError(
        f"{where}, column {name!r}: SQL type {sql_type!r} has no Arrow type here; look up through a view that casts it "
        "to text, a number, a date or a timestamp"
    )
