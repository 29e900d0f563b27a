"""The header of each stored value: its format version and its checksum.

    format version (1 byte), CRC-32 (4 bytes), body

The checksum covers the row's address (its key, and what the value is: a batch row, a tile, a marker) and
then the body. So a value with a wrong bit is refused before any of it is used. So is an unaltered
one that a store returned under another key.
"""

import operator
import struct
import zlib
from collections.abc import Sequence
from itertools import repeat

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
"""The errors that decoding an altered body can raise; lists may be nested deeper than Python reads."""


def with_header(version: int, body: bytes, address: bytes = b"") -> bytes:
    """Return a value's bytes: version and checksum, then its body.

    >>> checked_body(2, with_header(2, b"body", b"key"), "tile", b"key")
    b'body'
    """
    return HEADER.pack(version, zlib.crc32(body, zlib.crc32(address))) + body


def with_headers(version: int, addresses: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of many values, each with the checksum of the address at the same position.

    >>> with_headers(2, [b"key"], [b"body"]) == [with_header(2, b"body", b"key")]
    True
    """
    if len(addresses) != len(bodies):
        raise ValueError(f"there are {len(addresses)} addresses for {len(bodies)} bodies")
    checksums = map(zlib.crc32, bodies, map(zlib.crc32, addresses))
    return list(map(operator.add, map(HEADER.pack, repeat(version), checksums), bodies))


def checked_body(version: int, data: bytes, what: str, address: bytes = b"") -> bytes:
    """Return the body of a value.

    Args:
        version: the format version that is read.
        data: the stored bytes.
        what: the name of the value in an error.
        address: as given to `with_header`.

    Raises:
        CorruptionError: the bytes are torn or altered, of another format, or of another address.

    >>> checked_body(2, with_header(2, b"body", b"key"), "tile", b"other")
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
