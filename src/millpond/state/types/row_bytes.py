"""Encodes and copies tuples under an Arrow schema, for backends that keep bytes.

A row is one msgpack array, encoded and decoded by msgspec with a type made from the schema. Fields whose Python value
msgspec would not return exactly (a time in its zone, a duration, a map) take a *detour*: they are converted to plain
values before encoding, and back after decoding. The functions are generated once per schema, as one expression over the
fields, since they run for every get and put.

Invariant: `loads(dumps(row))` is what a segment would return for the row (`RowCodec.columns` and `rows`), NaN and time
zone included. Types without a plain form are encoded by Arrow itself.
"""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Union

import msgspec
import pyarrow as pa

from millpond.state.types.arrow_values import NAN, python_values, rebuilt

_Convert = Callable[[Any], Any]
_Detour = tuple[Any, _Convert | None, _Convert | None]  # msgspec's type, outward, inward

_ATOMIC_KINDS: list[tuple[Callable[[pa.DataType], bool], Any]] = [
    (pa.types.is_integer, int),
    (pa.types.is_boolean, bool),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_fixed_size_binary, bytes),
]
_MICROSECOND = dt.timedelta(microseconds=1)


class RowBytes:
    """`dumps`, `loads` and `copy` for the rows of one schema."""

    __slots__ = ("copy", "dumps", "loads")

    def __init__(self, schema: pa.Schema) -> None:
        kind, outward, inward = _of_fields([field.type for field in schema])
        encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
        self.dumps: _Convert = encode if outward is None else _chain(outward, encode)
        self.loads: _Convert = decode if inward is None else _chain(decode, inward)
        self.copy: _Convert = _by_field([_copier(field.type) for field in schema]) or _itself


def holds_containers(kind: pa.DataType) -> bool:
    """Return whether values of the type can be changed in place: lists and maps can, tuples of other values cannot."""
    if pa.types.is_struct(kind):
        return any(holds_containers(field.type) for field in kind)
    return bool(pa.types.is_nested(kind))


def _detour(kind: pa.DataType) -> _Detour:
    for is_kind, plain in _ATOMIC_KINDS:
        if is_kind(kind):
            return plain, None, None
    if pa.types.is_floating(kind):
        return float, None, _one_nan
    if pa.types.is_decimal(kind):
        return str, str, Decimal
    if kind == pa.date32():
        return int, dt.date.toordinal, dt.date.fromordinal
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _timestamp(kind)
    if pa.types.is_duration(kind) and kind.unit != "ns":
        return int, lambda span: span // _MICROSECOND, lambda count: dt.timedelta(0, 0, count)
    if pa.types.is_struct(kind):
        return _of_fields([field.type for field in kind])
    if pa.types.is_list(kind):
        return _of_list(kind)
    if pa.types.is_map(kind):
        return _of_map(kind)
    return bytes, lambda value: _through_arrow(value, kind), lambda data: _from_arrow(data, kind)


def _of_fields(kinds: list[pa.DataType]) -> _Detour:
    detours = [_detour(kind) for kind in kinds]
    plain = tuple[tuple(Union[inner, None] for inner, _, _ in detours)] if detours else tuple[()]  # type: ignore[misc] # noqa: UP007
    return plain, _by_field([outward for _, outward, _ in detours]), _by_field([inward for _, _, inward in detours])


def _of_list(kind: pa.DataType) -> _Detour:
    inner, outward, inward = _detour(kind.value_type)
    return list[inner | None], outward and _by_item(outward), inward and _by_item(inward)  # type: ignore[valid-type]


def _of_map(kind: pa.DataType) -> _Detour:
    """Encode a map as pairs: msgspec decodes a map's keys into fewer types than Arrow has."""
    pair, outward, inward = _of_fields([kind.key_type, kind.item_type])
    pairs_of: _Convert = dict.items if outward is None else lambda entries: map(outward, entries.items())
    return (
        list[pair],  # type: ignore[valid-type]
        lambda entries: list(pairs_of(entries)),
        dict if inward is None else lambda pairs: dict(map(inward, pairs)),
    )


def _timestamp(kind: pa.DataType) -> _Detour:
    if kind.tz is None:
        naive = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a zone
        return int, lambda at: (at - naive) // _MICROSECOND, lambda count: naive + dt.timedelta(0, 0, count)
    zone = pa.lib.string_to_tzinfo(kind.tz)
    utc_epoch, epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, tzinfo=zone)
    return (
        int,
        lambda at: (at - utc_epoch) // _MICROSECOND,
        # The sum is the UTC time labelled with the zone, which is what `fromutc` expects.
        lambda count: zone.fromutc(epoch + dt.timedelta(0, 0, count)),
    )


def _through_arrow(value: Any, kind: pa.DataType) -> bytes:
    batch = pa.record_batch([pa.array([value], type=kind)], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_arrow(data: bytes, kind: pa.DataType) -> Any:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return rebuilt(python_values(reader.read_all()["value"])[0], kind)


def _copier(kind: pa.DataType) -> _Convert | None:
    """Return a function that deep-copies values of the type; None if the value itself will do."""
    if not holds_containers(kind):
        return None
    if pa.types.is_struct(kind):
        return _by_field([_copier(field.type) for field in kind])
    if pa.types.is_map(kind):
        item = _copier(kind.item_type)
        if item is None:
            return dict.copy
        return lambda entries: {at: None if value is None else item(value) for at, value in entries.items()}
    inner = _copier(kind.value_type)
    return list.copy if inner is None else _by_item(inner)


def _by_item(convert: _Convert) -> _Convert:
    return lambda items: [None if item is None else convert(item) for item in items]


def _by_field(converts: list[_Convert | None]) -> _Convert | None:
    """Return one expression over a tuple's fields; None if nothing needs converting. Its source has only positions."""
    if not any(converts):
        return None
    fields = [
        f"v[{at}]" if convert is None else f"None if v[{at}] is None else f{at}(v[{at}])"
        for at, convert in enumerate(converts)
    ]
    scope = {f"f{at}": convert for at, convert in enumerate(converts)}
    by_field: _Convert = eval(f"lambda v: ({', '.join(fields)},)", scope)  # noqa: S307
    return by_field


def _chain(first: _Convert, then: _Convert) -> _Convert:
    return lambda value: then(first(value))


def _itself(value: Any) -> Any:
    return value


def _one_nan(value: float) -> float:
    return NAN if value != value else value  # noqa: PLR0124
