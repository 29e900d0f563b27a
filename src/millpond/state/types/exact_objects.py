"""Tests whether an object would come back from bytes unchanged, by one generated expression per type.

Every update asks this. A round trip through bytes would answer, at the cost of encoding and decoding the object. The
expression saves that for atoms, and for tuples and classes of atoms, because msgspec's result is known for these. If
the expression is false, or cannot be generated, the round trip decides. For collections the round trip always decides:
msgspec encodes and decodes a list faster than Python checks its items.

The source consists of fixed words, numbers, field names (which are identifiers) and names that were numbered here.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from millpond.state.types.arrow_values import encodes
from millpond.state.types.object_types import LIMITS

# The range of integers in msgpack.
_LOW, _HIGH = -(1 << 63), 1 << 64

_SIMPLE_TESTS: dict[type[inspect.Type], str] = {
    inspect.NoneType: "{v} is None",
    inspect.IntType: f"type({{v}}) is int and {_LOW} <= {{v}} < {_HIGH}",
    inspect.FloatType: "type({v}) is float",
    inspect.BoolType: "type({v}) is bool",
    inspect.BytesType: "type({v}) is bytes",
    inspect.StrType: "type({v}) is str and ({v}.isascii() or encodes({v}))",
    inspect.DateType: "type({v}) is date",
    inspect.TimeDeltaType: "type({v}) is timedelta",
    inspect.UUIDType: "type({v}) is UUID",
    inspect.DecimalType: "type({v}) is Decimal and {v}.is_finite()",
    inspect.DateTimeType: "type({v}) is datetime and not {v}.fold and ({v}.tzinfo is None or {v}.tzinfo is UTC)",
}
_SCOPE: dict[str, Any] = {
    "date": dt.date,
    "timedelta": dt.timedelta,
    "datetime": dt.datetime,
    "UTC": dt.UTC,
    "UUID": uuid.UUID,
    "Decimal": decimal.Decimal,
    "encodes": encodes,
}


def compiled(info: inspect.Type, slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of an object: the object itself if it is exact and not None, else the result of `slow`.

    >>> check = compiled(inspect.type_info(tuple[int, str]), lambda other: f"not exact: {other}")
    >>> check((1, "a")), check((True, "a"))
    ((1, 'a'), "not exact: (True, 'a')")
    """
    scope = {**_SCOPE, "slow": slow}
    test = _test(info, "v", scope, frozenset())
    if test is None:
        return slow
    check: Callable[[Any], Any] = eval(f"lambda v: v if v is not None and ({test}) else slow(v)", scope)  # noqa: S307
    return check


def _test(info: inspect.Type, v: str, scope: dict[str, Any], within: frozenset[Any]) -> str | None:
    """Return the source of a test of the expression `v`; None if only a round trip can tell, or tells faster."""
    if any(getattr(info, limit, None) is not None for limit in LIMITS):
        return None
    if type(info) in _SIMPLE_TESTS:
        return _SIMPLE_TESTS[type(info)].format(v=v)
    if isinstance(info, inspect.UnionType):
        return _joined(" or ", [_test(member, v, scope, within) for member in info.types])
    if isinstance(info, inspect.TupleType):
        items = [_test(item, f"{v}[{at}]", scope, within) for at, item in enumerate(info.item_types)]
        return _joined(" and ", [f"type({v}) is tuple and len({v}) == {len(items)}", *items])
    if isinstance(info, inspect.EnumType) and not issubclass(info.cls, enum.Flag):
        return f"type({v}) is {_named(info.cls, scope)}"
    if isinstance(info, inspect.StructType | inspect.DataclassType) and _is_plain(info) and info.cls not in within:
        fields = [_test(field.type, f"{v}.{field.name}", scope, within | {info.cls}) for field in info.fields]
        return _joined(" and ", [f"type({v}) is {_named(info.cls, scope)}", *fields])
    return None


def _joined(word: str, sources: list[str | None]) -> str | None:
    found = [f"({source})" for source in sources if source is not None]
    return word.join(found) if len(found) == len(sources) else None


def _named(value: Any, scope: dict[str, Any]) -> str:
    name = f"named_{len(scope)}"
    scope[name] = value
    return name


def _is_plain(info: inspect.StructType | inspect.DataclassType) -> bool:
    """Return whether msgspec recreates an object by setting its fields, without any other effect."""
    if hasattr(info.cls, "__post_init__") or hasattr(info.cls, "__attrs_attrs__"):
        return False
    return isinstance(info, inspect.StructType) or all(field.init for field in dataclasses.fields(info.cls))


def same(one: Any, other: Any) -> bool:
    """Return whether two objects are equal: NaN equals NaN, times are compared in UTC, classes by their fields."""
    if one == other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return bool(one != one and other != other)  # noqa: PLR0124
    if isinstance(one, dt.datetime) and one.tzinfo is not None and other.tzinfo is not None:
        return bool(one.astimezone(dt.UTC) == other.astimezone(dt.UTC))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[at]) for at, item in one.items())
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    return False
