"""How rows are stored in Redis: the names of keys, the bytes of a row, the script that writes tiles.

Place on the data path: under `operations`. Pure functions, no IO.

With the prefix `millpond`, a dataset `route.batch` and a key `EWR`:

    millpond:{EWR}:route.batch      a string (`rows="one"`): the row of the key
                                    a sorted set (`rows="many"`): its rows, each with its time as score
    millpond:keys:{017}:route.batch a sorted set: keys of the dataset; the score is the time until which to keep
                                    them. 128 of these registers share the keys of a dataset.
    millpond:datasets               a hash: the declaration of each dataset as JSON. This is the catalogue.

`{EWR}` is the hash tag, so all rows of a key are on one node of a cluster. In a tag, `%` is written `%25`, `}` is
written `%7D`, and an empty key is written `%`, because a brace would end the tag.

A row is a version byte, its time_ms (8 bytes, big-endian, signed), and the value. Version 2 has the time at which the
row expires (8 bytes, big-endian) before the value, because elements of a sorted set cannot expire by themselves. The
time is both in the row and in the score, for two reasons. Equal elements would be one element. And a row stored at
another time than its own can be rejected.
"""

import struct
from binascii import crc_hqx
from zlib import crc32

from millpond.errors import CorruptionError
from millpond.kv.store import Get, TimedValue

SLOTS = 16_384
REGISTERS = 128

_HEADER = struct.Struct(">Bq")
_EXPIRING_HEADER = struct.Struct(">BqQ")
_TIME = struct.Struct(">q")
HEADER_BYTES, EXPIRING_HEADER_BYTES = _HEADER.size, _EXPIRING_HEADER.size
"""The length of the header before the value, in rows of version 1 and of version 2."""

WRITE_ROWS = b"""
-- Write rows of one key: ttl_ms (0 is none), now_ms, a random number, then time_ms and row of each.
-- Adding comes first: if memory is full it fails, and nothing has changed.
local key, ttl, now = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local kept = redis.call('PTTL', key)
for i = 4, #ARGV, 2 do
  redis.call('ZADD', key, ARGV[i], ARGV[i + 1])
  local present = redis.call('ZRANGEBYSCORE', key, ARGV[i], ARGV[i])
  for _, row in ipairs(present) do
    if row ~= ARGV[i + 1] then redis.call('ZREM', key, row) end
  end
end
-- Look at a few rows, beginning anywhere, and remove those that have expired.
if ttl > 0 then
  local rank = tonumber(ARGV[3])
  for _ = 1, #ARGV do
    rank = rank % redis.call('ZCARD', key)
    local row = redis.call('ZRANGE', key, rank, rank)[1]
    local expires = 0
    if string.byte(row, 1) == 2 then
      for at = 10, 17 do expires = expires * 256 + string.byte(row, at) end
    end
    if expires > 0 and expires <= now then redis.call('ZREM', key, row) else rank = rank + 1 end
  end
end
-- A key of which some rows stay for ever stays, and no key goes earlier than it would have.
if ttl == 0 then
  redis.call('PERSIST', key)
elseif kept ~= -1 then
  redis.call('PEXPIRE', key, math.max(ttl, kept))
end
return #ARGV
"""


def tag_of(key: bytes) -> bytes:
    """Return the hash tag of a key, without its braces.

    >>> tag_of(b"EWR"), tag_of(b"100%}"), tag_of(b"")
    (b'EWR', b'100%25%7D', b'%')
    """
    if b"}" in key or b"%" in key:
        return key.replace(b"%", b"%25").replace(b"}", b"%7D")
    return key or b"%"


def slot_of(tag: bytes) -> int:
    """Return the slot of a cluster that has the names with this hash tag."""
    return crc_hqx(tag, 0) % SLOTS


def register_of(key: bytes) -> int:
    """Return the number of the register that has a key."""
    return crc32(key) % REGISTERS


def encode_row(time_ms: int, value: bytes) -> bytes:
    """Encode a row without expiry.

    >>> decode_row(encode_row(-1, b"42"), Get("route.batch", b"EWR"))
    TimedValue(time_ms=-1, value=b'42')
    """
    return _HEADER.pack(1, time_ms) + value


def encode_expiring_row(time_ms: int, value: bytes, expires_ms: int) -> bytes:
    """Encode a row of a sorted set that may be removed from `expires_ms` on."""
    return _EXPIRING_HEADER.pack(2, time_ms, expires_ms) + value


def decode_row(row: bytes, get: Get) -> TimedValue:
    """Return the time and value of a row; `CorruptionError`, naming dataset and key, if the bytes are no row."""
    if len(row) >= _HEADER.size and row[0] == 1:
        return TimedValue(_TIME.unpack_from(row, 1)[0], row[_HEADER.size :])
    if len(row) >= _EXPIRING_HEADER.size and row[0] == 2:  # noqa: PLR2004 - the version byte
        return TimedValue(_TIME.unpack_from(row, 1)[0], row[_EXPIRING_HEADER.size :])
    raise CorruptionError(
        f"dataset {get.dataset!r}, key {get.key[:24]!r}: Redis holds {row[:24]!r}..., which is no row of version 1 or "
        "2. Something else writes under this prefix, or a newer Millpond: give the store another prefix, or drop the "
        "dataset and upload it again."
    )


def misplaced(row: TimedValue, get: Get) -> CorruptionError:
    """Return the error for a row that is stored at another time than its own."""
    return CorruptionError(
        f"dataset {get.dataset!r}, key {get.key[:24]!r}: Redis answered a row of time_ms {row.time_ms} for the range "
        f"{get.start_ms} to {get.end_ms}. Something else writes under this prefix: give the store another prefix, or "
        "drop the dataset and write it again."
    )
