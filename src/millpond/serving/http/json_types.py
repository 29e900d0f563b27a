"""The Python types with which msgspec reads Millpond's types from JSON.

Place on the data path: the HTTP service reads keys with them, and its client reads features.

Values are written as msgspec writes their Python types: a binary as base64, a date and a timestamp as ISO 8601, a
decimal as text, a map with its keys as text. The types made here read them back, so a client gets objects equal to
those that the fetcher returned.

| type          | Python                     | JSON                                    |
|---------------|----------------------------|-----------------------------------------|
| boolean       | bool                       | true, false                             |
| int, long     | int                        | number without a fraction               |
| float, double | float                      | number                                  |
| string        | str                        | string                                  |
| binary        | bytes                      | string, base64                          |
| date          | date                       | string, "2013-01-31"                    |
| timestamp     | datetime with a time zone  | string, "2013-01-31T12:00:00Z"          |
| decimal(p,s)  | Decimal                    | string, "12.50"; read from a number too |
| array<T>      | list                       | array                                   |
| map<K,T>      | dict                       | object, whose names are the keys        |
"""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec

from millpond.features.types import DataType, parse_type

Int = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_SCALARS: dict[str, Any] = {
    "boolean": bool,
    "int": Int,
    "long": Long,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp": Annotated[datetime, msgspec.Meta(tz=True)],
    "decimal": Decimal,
}


def given_values(name: str, columns: Mapping[str, str], *, all_of_them: bool) -> Any:
    """Return the type of an object with a value or null for each column, or, unless `all_of_them`, for some columns.

    >>> route = given_values("RouteKeys", {"origin": "string", "day": "date"}, all_of_them=True)
    >>> msgspec.json.decode('{"origin": null, "day": "2013-01-31"}', type=route)
    {'origin': None, 'day': datetime.date(2013, 1, 31)}
    """
    types = {column: _python(parse_type(kind)) | None for column, kind in columns.items()}
    return TypedDict(name, types, total=all_of_them)  # type: ignore[operator]


def feature_values(name: str, features: Mapping[str, str]) -> Any:
    """Return the type of an object with some of the features. An integer may have any size, because a sum may.

    >>> msgspec.json.decode('{"total": 18446744073709551616}', type=feature_values("Route", {"total": "long"}))
    {'total': 18446744073709551616}
    """
    types = {feature: _python(parse_type(kind), {"long": int}) | None for feature, kind in features.items()}
    return TypedDict(name, types, total=False)  # type: ignore[operator]


def _python(data_type: DataType, instead: Mapping[str, Any] | None = None) -> Any:
    if data_type.key is not None and data_type.element is not None:
        return dict[_python(data_type.key), _python(data_type.element, instead) | None]  # type: ignore[misc]
    if data_type.element is not None:
        return list[_python(data_type.element, instead) | None]  # type: ignore[misc]
    return (instead or {}).get(data_type.kind, _SCALARS[data_type.kind])
