"""Maps the result of a key function to shard, key group and key tuple.

This runs before every record, and hashing a key costs more than counting it. So places are cached, in a dictionary of
bounded size that is emptied when it is full. Frequent keys of a stream are back at once. A stream of ever new keys pays
for a hash each, as it must.

Python's True equals 1, so a dictionary that has the key 1 would let True pass unchecked. Keys that are equal to a bool
are therefore cached with their types, in a dictionary of their own.

Invariant: one key has one place, however it was written. 1.0 for an integer key is 1, every NaN is one key, and 0.0 and
-0.0 are one key. A value that is no key of the schema has no place, whatever came before it.
"""

from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from millpond.errors import DataError
from millpond.state.types.key_groups import key_group_of, shard_of
from millpond.state.types.key_types import given_form
from millpond.state.types.rows import Row, RowCodec

REMEMBERED_KEYS = 1 << 16

S = TypeVar("S")


Place: TypeAlias = tuple[S, int, Row, Any]
"""Where one key belongs: the given object of its shard, its key group, the key as backends know it (a tuple), and as
users know it (the only element of a tuple of one). It is a plain tuple because it is unpacked for every record."""


class KeyPlaces(Generic[S]):
    """The places of keys under one key schema, over one list of shards.

    >>> places = KeyPlaces(pa.schema([("user", pa.string())]), ["first", "second"], max_parallelism=128)
    >>> places.find("ann")
    ('second', 75, ('ann',), 'ann')
    """

    def __init__(self, schema: pa.Schema, shards: list[S], max_parallelism: int) -> None:
        self._types = [field.type for field in schema]
        self._check = RowCodec(schema, "the key of a record").check_key()
        self._shards = shards
        self._max_parallelism = max_parallelism
        self.remembered: dict[Any, Place[S]] = {}
        """Places by the key function's result, if no bool equals it. Looking here first saves the call of `find`."""
        self._typed: dict[tuple[Any, tuple[type, ...]], Place[S]] = {}

    def find(self, given: Any) -> Place[S]:
        """Return the place of a key. A DataError says why it is no key."""
        try:
            known = self.remembered.get(given)
        except TypeError as error:
            raise DataError(
                f"the key of a record is {type(given).__name__} {given!r}, which cannot be a key. Give an atomic "
                "value, or a tuple of them."
            ) from error
        if known is not None:
            return known
        fields = given if type(given) is tuple else (given,)
        if not _equals_a_bool(fields):
            return self._remembered(self.remembered, given, given)
        typed = (given, tuple(map(type, fields)))
        return self._typed.get(typed) or self._remembered(self._typed, typed, given)

    def _remembered(self, places: dict[Any, Place[S]], at: Any, given: Any) -> Place[S]:
        key = self._check((given,) if len(self._types) == 1 and type(given) is not tuple else given)
        key_group = key_group_of(key, self._types, self._max_parallelism)
        shard = self._shards[shard_of(key_group, len(self._shards), self._max_parallelism)]
        place = (shard, key_group, key, given_form(key))
        if len(places) >= REMEMBERED_KEYS:
            places.clear()
        places[at] = place
        return place


def _equals_a_bool(fields: tuple[Any, ...]) -> bool:
    return any(field in {0, 1} for field in fields)
