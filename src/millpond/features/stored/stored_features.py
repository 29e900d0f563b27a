"""Finished values in a stored row: of snapshots, and of GroupBys without aggregations.

A feature's value is turned into what MessagePack has: dates and timestamps become whole numbers, a
decimal becomes its unscaled number, and a map is written in the order of its keys. So equal values have equal
bytes. A ``long`` may have more than 64 bits, as an exact sum of longs may.
"""

from typing import Any

from millpond.features.cells.stored_values import decode_int, encode_int
from millpond.features.types import DataType

_LONG_BYTES = 32
"""More bytes than any sum of longs can need."""

_MAP_KEYS = {"string": str, "int": int, "long": int}


def to_stored(type_: DataType, value: Any) -> Any:
    """Return the form of a feature's value that MessagePack can write; the value is not None.

    >>> from millpond.features.types import parse_type
    >>> to_stored(parse_type("map<string,date>"), {"a": __import__("datetime").date(1970, 1, 2)})
    {'a': 1}
    """
    if type_.element is not None:
        element = type_.element
        if type_.kind == "array":
            return [None if one is None else to_stored(element, one) for one in value]
        return {key: None if value[key] is None else to_stored(element, value[key]) for key in sorted(value)}
    if type_.kind in ("long", "int"):
        return encode_int(value)
    if type_.kind in ("date", "timestamp"):
        return type_.inward([value])[0]
    if type_.kind == "decimal":
        return encode_int(type_.inward([value])[0])
    return value


def from_stored(type_: DataType, stored: Any) -> Any:
    """Return the feature's value that was stored; it is not None.

    Raises:
        TypeError, ValueError: the stored form cannot be a value of this type.

    >>> from millpond.features.types import parse_type
    >>> from_stored(parse_type("decimal(5,2)"), 1250)
    Decimal('12.50')
    """
    if type_.element is not None:
        element = type_.element
        if type_.kind == "array":
            if type(stored) is not list:
                raise TypeError(f"expected a list, found {type(stored).__name__}")
            return [None if one is None else from_stored(element, one) for one in stored]
        return _map(type_, element, stored)
    if type_.kind in ("long", "int"):
        return decode_int(stored, _LONG_BYTES)
    if type_.kind in ("double", "float"):
        if type(stored) is not float:
            raise TypeError(f"expected a float, found {type(stored).__name__}")
        return stored
    if type_.kind == "decimal":
        stored = decode_int(stored, 17)
    return type_.outward(type_.form.checked(stored))


def _map(type_: DataType, element: DataType, stored: Any) -> dict[Any, Any]:
    if type(stored) is not dict:
        raise TypeError(f"expected a map, found {type(stored).__name__}")
    kind = _MAP_KEYS[type_.key.kind] if type_.key is not None else str
    if not set(map(type, stored)) <= {kind}:
        raise TypeError(f"a map's keys are not all of type {kind.__name__}")
    return {key: None if one is None else from_stored(element, one) for key, one in stored.items()}
