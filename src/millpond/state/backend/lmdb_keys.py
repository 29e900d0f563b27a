"""LMDB keys of the cells in a spill file: tuples to bytes, and back.

    state (2 bytes) | key                                        of value and list states
    state (2 bytes) | length of the key (2 bytes) | key | map key    of an entry of a map state

Tuples are encoded as for RocksDB (`millpond.state.types.ordered_keys`). LMDB limits the length of keys. So a long
tuple is replaced by its digest, after a byte with which no tuple begins, and the full tuple stands in front of the
value.

Invariants: decoding a place and what is stored there gives back key and data. All places under a prefix belong to
one state, or to one key.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from itertools import compress, count, repeat
from operator import is_, itemgetter, ne
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from millpond.state.backend.protocols import ABSENT
from millpond.state.types.key_types import as_row, given_form
from millpond.state.types.ordered_keys import decode_key, encode_key
from millpond.state.types.rows import Row

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The entries of a key that has none."""

_pack = msgspec.msgpack.Encoder().encode
_STATE = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_SHORT = struct.Struct(">H")
STATE_BYTES = _STATE.size
_LONG = 0xC1
"""MessagePack never begins with this byte."""
_TUPLE_OF_ONE = bytes([0x91])
"""What MessagePack writes before the only element of a one-element tuple."""
_MARK = bytes([_LONG])
_DIGEST_BYTES = 32
_EIGHT_BYTES = np.dtype(">u8")
_COMPARED = 32
"""Number of places sampled to find the first byte at which the places differ."""
_LONGEST = 240
"""Longest key, and longest map key, in bytes, that an LMDB key holds in full."""


class Entry(NamedTuple):
    """One cell: its tuples, and the bytes of its value."""

    key: Row
    map_key: Row
    data: bytes


def state_prefix(number: int) -> bytes:
    """Return the beginning of the places of a state's cells."""
    return _STATE.pack(number)


def is_long(at: bytes, start: int = STATE_BYTES) -> bool:
    """Return whether the tuple at this position of a place is a digest."""
    return at[start] == _LONG


class LongPlace(bytes):
    """A place that holds a digest of its key.

    Attributes:
        original: the key's bytes.
    """

    original: bytes

    def __new__(cls, at: bytes, original: bytes) -> Self:
        """Create a place, with the bytes of its key."""
        made = super().__new__(cls, at)
        made.original = original
        return made


def flat_place(prefix: bytes) -> Callable[[Any], bytes]:
    """Return a function that gives a key's place, from the key's given form: a `LongPlace` if the key is long."""
    start, before_text = len(prefix), prefix + _TUPLE_OF_ONE
    longest = start + _LONGEST

    def place(key: Any) -> bytes:
        # A single string needs no encoding by type.
        at = before_text + _pack(key) if type(key) is str else prefix + encode_key(as_row(key))
        if len(at) <= longest:
            return at
        encoded = at[start:]
        return LongPlace(prefix + _digest(encoded), encoded)

    return place


def flat_columns(
    where: list[bytes], values: list[Any], dumps: Callable[[Any], bytes]
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Encode values or lists. Return the places to put, the bytes to put there, and the places of ABSENT values."""
    gone: list[bytes] = []
    if any(map(is_, values, repeat(ABSENT))):
        there = [value is not ABSENT for value in values]
        gone = [at for at, is_there in zip(where, there, strict=True) if not is_there]
        where, values = list(compress(where, there)), list(compress(values, there))
    stored = list(map(dumps, values))
    if LongPlace in set(map(type, where)):
        stored = [
            _with_original(at.original, data) if type(at) is LongPlace else data
            for at, data in zip(where, stored, strict=True)
        ]
    return where, stored, gone


def in_order(where: list[bytes], values: list[Any]) -> tuple[list[bytes], list[Any]]:
    """Return the cells of one state roughly in the order of their places, so that those of a page are written together.

    If all places are equally long, they are compared by eight bytes, from the first byte that differs among a sample.
    Comparing them as numbers takes a third of the time. Places that are equal in these bytes come in any order.
    """
    if len(where) < 2:  # noqa: PLR2004 - one is in order
        return where, values
    lengths = set(map(len, where))
    if len(lengths) > 1 or min(lengths) < _EIGHT_BYTES.itemsize:
        order = sorted(range(len(where)), key=where.__getitem__)
    else:
        (length,) = lengths
        some = where[:: 1 + len(where) // _COMPARED]
        differs = map(ne, min(some), max(some))
        first = min(next(compress(count(), differs), length), length - _EIGHT_BYTES.itemsize)
        begins = np.ndarray(len(where), _EIGHT_BYTES, b"".join(where), first, length)
        order = begins.astype(np.uint64).argsort().tolist()
    ordered = itemgetter(*order)
    return list(ordered(where)), list(ordered(values))


def key_of(place: bytes) -> Any:
    """Return the key of a place, in its given form."""
    return given_form(decode_key(place.original if type(place) is LongPlace else place[STATE_BYTES:]))


def flat_data(at: bytes, stored: bytes) -> bytes:
    """Return the value's bytes of what is stored at a place."""
    return _split(stored)[1] if is_long(at) else stored


def flat_key(at: bytes, stored: bytes) -> Row:
    """Return the key whose value is stored at a place."""
    return decode_key(_split(stored)[0] if is_long(at) else at[STATE_BYTES:])


def entries_prefix(prefix: bytes, key: Row) -> bytes:
    """Return the beginning of the places of one key's entries."""
    encoded = encode_key(key)
    if len(encoded) > _LONGEST:
        encoded = _digest(encoded)
    return prefix + _SHORT.pack(len(encoded)) + encoded


def entry_place(entries: bytes, map_key: Row) -> bytes:
    """Return the place of an entry, from its key's prefix."""
    encoded = encode_key(map_key)
    return entries + (encoded if len(encoded) <= _LONGEST else _digest(encoded))


def entry_stored(at: bytes, key: Row, map_key: Row, data: bytes) -> bytes:
    """Return the bytes to store for an entry: the data, after each tuple of which the place holds only a digest."""
    start = _map_key_start(at)
    if is_long(at, start):
        data = _with_original(encode_key(map_key), data)
    return _with_original(encode_key(key), data) if is_long(at, STATE_BYTES + _SHORT.size) else data


def entry(at: bytes, stored: bytes) -> Entry:
    """Decode the key and map key of the cell at a place."""
    first, start = STATE_BYTES + _SHORT.size, _map_key_start(at)
    key, map_key, data = at[first:start], at[start:], stored
    if is_long(at, first):
        key, data = _split(data)
    if is_long(at, start):
        map_key, data = _split(data)
    return Entry(decode_key(key), decode_key(map_key), data)


def entry_data(at: bytes, stored: bytes) -> bytes:
    """Return the value's bytes of the cell at a place."""
    first, start = STATE_BYTES + _SHORT.size, _map_key_start(at)
    for each in (first, start):
        if is_long(at, each):
            stored = _split(stored)[1]
    return stored


def _map_key_start(at: bytes) -> int:
    length: int = _SHORT.unpack_from(at, STATE_BYTES)[0]
    return STATE_BYTES + _SHORT.size + length


def _digest(encoded: bytes) -> bytes:
    return _MARK + hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()


def _with_original(encoded: bytes, data: bytes) -> bytes:
    return _LENGTH.pack(len(encoded)) + encoded + data


def _split(stored: bytes) -> tuple[bytes, bytes]:
    end = _LENGTH.size + _LENGTH.unpack_from(stored)[0]
    return stored[_LENGTH.size : end], stored[end:]
