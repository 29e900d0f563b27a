"""Where a key's state lies: what a key function gives, to shard, key group and key tuple.

This stands before every record, and hashing a key costs more than counting it. So places are
remembered, in a dictionary of bounded size that is emptied when it is full: the keys of a stream that
come often are back at once, and a stream of ever new keys pays for a hash each, as it must.

Invariant: one key has one place, however it was written: 1.0 of an integer key is 1, every NaN is one
key, and so are 0.0 and -0.0.
"""

import datetime as dt
import decimal
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.state.keygroups import key_group_of, shard_of
from millpond.state.rows import Row, RowCodec

REMEMBERED_KEYS = 1 << 16

S = TypeVar("S")

_ARROW = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}


Place: TypeAlias = tuple[S, int, Row, Any]
"""Where one key belongs: what was given for its shard, its key group, the key as backends know it (a tuple), and as
users know it (the only element of a tuple of one). A plain tuple, since it is taken apart for every record."""


class KeyPlaces(Generic[S]):
    """The places of keys under one key schema, over one list of shards.

    >>> places = KeyPlaces(key_schema(str), ["first", "second"], max_parallelism=128)
    >>> places.find("ann")
    ('second', 75, ('ann',), 'ann')
    """

    def __init__(self, schema: pa.Schema, shards: list[S], max_parallelism: int) -> None:
        self._types = [field.type for field in schema]
        self._check = RowCodec(schema, "the key of a record").check_key()
        self._shards = shards
        self._max_parallelism = max_parallelism
        self.remembered: dict[Any, Place[S]] = {}
        """By what the key function gave. Who looks here first saves the call of `find`."""

    def find(self, given: Any) -> Place[S]:
        """The place of a key; a DataError says why it is none."""
        try:
            known = self.remembered.get(given)
        except TypeError as error:
            raise DataError(
                f"the key of a record is {type(given).__name__} {given!r}, which cannot be a key. Give an atomic "
                "value, or a tuple of them."
            ) from error
        if known is not None:
            return known
        key = self._check((given,) if len(self._types) == 1 and type(given) is not tuple else given)
        key_group = key_group_of(key, self._types, self._max_parallelism)
        shard = self._shards[shard_of(key_group, len(self._shards), self._max_parallelism)]
        place = (shard, key_group, key, given_form(key))
        if len(self.remembered) >= REMEMBERED_KEYS:
            self.remembered.clear()
        self.remembered[given] = place
        return place


def given_form(key: Row) -> Any:
    """A key as users know it.

    >>> given_form(("ann",)), given_form(("ann", 7))
    ('ann', ('ann', 7))
    """
    return key[0] if len(key) == 1 else key


def key_schema(kind: Any) -> pa.Schema:
    """The key schema for a Python type, or a tuple of them; a schema is given back as it is.

    >>> key_schema(tuple[str, int])
    0: string
    1: int64
    """
    if isinstance(kind, pa.Schema):
        return kind
    kinds = get_args(kind) if get_origin(kind) is tuple else (kind,)
    unknown = [each for each in kinds if each not in _ARROW]
    if unknown or not kinds:
        known = ", ".join(each.__name__ for each in _ARROW)
        raise OptionError(
            f"key_type is {kind!r}; expected one of {known}, a tuple of them as in tuple[str, int], or an Arrow schema."
        )
    names = ["key"] if len(kinds) == 1 else [str(position) for position in range(len(kinds))]
    return pa.schema([pa.field(name, _ARROW[each]) for name, each in zip(names, kinds, strict=True)])
