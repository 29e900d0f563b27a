"""Random values of each scalar type, as a user gives them, and short stand-ins for columns of them."""

import decimal
from datetime import UTC, date, datetime

from hypothesis import strategies as st

_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)

SCALARS = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": _FLOATS,
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(max_size=4),
    "binary": st.binary(max_size=4),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "decimal(9,2)": st.decimals(-9_999_999, 9_999_999, places=2),
    "decimal(38,10)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda unscaled: decimal.Decimal(unscaled).scaleb(-10, decimal.Context(prec=60))
    ),
}

FEW = {
    "boolean": (False, True),
    "int": (-3, 0, 1, 7),
    "long": (-3, 0, 1, 1 << 40),
    "float": (-1.5, 0.0, -0.0, 0.25),
    "double": (-1.5, 0.0, -0.0, 0.1, 1e300),
    "string": ("", "a", "ä", "zebra"),
    "binary": (b"", b"\x00", b"\xff"),
    "date": (date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29)),
    "timestamp": (datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2024, 2, 29, tzinfo=UTC)),
    "decimal(9,2)": (decimal.Decimal("-0.01"), decimal.Decimal("0.00"), decimal.Decimal("12.50")),
    "decimal(38,10)": (decimal.Decimal("-1E-10"), decimal.Decimal(0), decimal.Decimal(10**27)),
}
"""A few values of each type, so that equal ones meet."""


def scalars(type_):
    return st.sampled_from(FEW[type_]) | SCALARS[type_]
