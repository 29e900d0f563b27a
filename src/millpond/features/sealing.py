"""The seal of a stored value: what every row that a reader takes begins with.

    format version (1 byte), CRC-32 (4 bytes), body

The checksum covers the body, and begins from the row's address: its key, and what the value is (a batch
row, a tile, a marker). So a value with a bit out of place is refused before any of it is believed, and
so is a whole one that a store gave out under another key.
"""

import struct
import zlib
from collections.abc import Sequence

import msgspec

from millpond.errors import CorruptionError

HEADER = struct.Struct(">BI")

DECODE_ERRORS = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    IndexError,
    OverflowError,
    RecursionError,
    struct.error,
)
"""What reading a body can raise that is not what was written; lists may be nested deeper than Python reads."""


def seal(version: int, body: bytes, address: bytes = b"") -> bytes:
    """Give a value's bytes: version and checksum, then its body.

    >>> unseal(2, seal(2, b"body", b"key"), "tile", b"key")
    b'body'
    """
    return HEADER.pack(version, zlib.crc32(body, zlib.crc32(address))) + body


def seal_all(version: int, addresses: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """Give the bytes of many values, each sealed under the address in its place.

    >>> seal_all(2, [b"key"], [b"body"]) == [seal(2, b"body", b"key")]
    True
    """
    pack, crc32 = HEADER.pack, zlib.crc32
    return [pack(version, crc32(body, crc32(address))) + body for address, body in zip(addresses, bodies, strict=True)]


def unseal(version: int, data: bytes, what: str, address: bytes = b"") -> bytes:
    """Give the body of a value.

    Args:
        version: the format version that is read.
        data: the stored bytes.
        what: names the value in an error.
        address: as given to `seal`.

    Raises:
        CorruptionError: the bytes are torn or altered, of another format, or of another address.

    >>> unseal(2, seal(2, b"body", b"key"), "tile", b"other")
    Traceback (most recent call last):
    millpond.errors.CorruptionError: a stored tile cannot be read: its checksum does not fit (its bytes are ...
    """
    if len(data) < HEADER.size:
        raise unreadable(what, f"{len(data)} bytes are shorter than the header of {HEADER.size}")
    found, checksum = HEADER.unpack_from(data)
    if found != version:
        raise unreadable(what, f"format version {found}, this Millpond reads {version}")
    body = data[HEADER.size :]
    if zlib.crc32(body, zlib.crc32(address)) != checksum:
        raise unreadable(what, "its checksum does not fit (its bytes are torn or altered, or of another key)")
    return body


def unreadable(what: str, reason: str) -> CorruptionError:
    """Make the error of a stored value that cannot be read.

    >>> str(unreadable("tile", "it is empty"))
    'a stored tile cannot be read: it is empty; upload the batch again, and restart the stream from it'
    """
    return CorruptionError(
        f"a stored {what} cannot be read: {reason}; upload the batch again, and restart the stream from it"
    )
