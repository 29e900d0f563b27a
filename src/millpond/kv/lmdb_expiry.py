r"""When the rows of the LMDB store expire: a row says it itself, and a log says which rows to look at.

Place on the data path: beside `lmdb_layout`, which gives rows their addresses. Every function here works inside a
transaction that it is given.

A row of a *timed* dataset begins with the time at which it expires. Each write appends to the log, under that time,
the addresses of the rows that it wrote:

    0x13 dataset id, when they expire (8, ms since 1970), number (4) -> MessagePack list of addresses

So the log is in the order of time, and a write finds what is due at its beginning. A row may have been written again
since, with another time. So only a row whose own time has come is removed.

Trade-off: an index with one entry for each row would need no second look at the row. But the entries of a write lie as
far apart as its rows, so LMDB would rewrite a page for almost every entry. A piece of the log is one value.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from millpond.errors import CorruptionError

DUE = b"\x13"

NEVER = bytes(8)
"""The time of a row that does not expire."""

_TIME = struct.Struct(">Q")
_NUMBER = struct.Struct(">I")
_PAST_ALL_NUMBERS = b"\xff" * (_NUMBER.size + 1)
_ADDRESSES_A_PIECE = 1_000
"""A write that finds a piece due looks at all of its rows."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


def packed_time(time_ms: int) -> bytes:
    r"""Return the time of a row's expiry as the row and the log have it. Packed times sort like times.

    >>> packed_time(300_000)
    b'\x00\x00\x00\x00\x00\x04\x93\xe0'
    """
    return _TIME.pack(time_ms)


def log_expiries(transaction: Any, dataset_id: bytes, addresses: Sequence[bytes], expiries: Iterable[bytes]) -> None:
    """Append rows to the log.

    Args:
        transaction: writes.
        dataset_id: the id of the rows' dataset.
        addresses: the address of each row.
        expiries: the packed time of each row.
    """
    by_time: dict[bytes, list[bytes]] = {}
    for address, expires in zip(addresses, expiries, strict=True):
        if expires in by_time:
            by_time[expires].append(address)
        else:
            by_time[expires] = [address]
    by_time.pop(NEVER, None)
    cursor = transaction.cursor()
    for expires, expiring in by_time.items():
        prefix = DUE + dataset_id + expires
        number, left = _next_number(cursor, prefix), iter(expiring)
        while piece := list(islice(left, _ADDRESSES_A_PIECE)):
            transaction.put(prefix + _NUMBER.pack(number), _encode(piece))
            number += 1


def _next_number(cursor: Any, prefix: bytes) -> int:
    """Return a number after those of the log's pieces with this prefix."""
    found = cursor.prev() if cursor.set_range(prefix + _PAST_ALL_NUMBERS) else cursor.last()
    if not found or not cursor.key().startswith(prefix):
        return 0
    number: int = _NUMBER.unpack(cursor.key()[len(prefix) :])[0]
    return number + 1


def remove_due(transaction: Any, dataset_id: bytes, looks: int, now_ms: int) -> None:
    """Look at the rows of due pieces of the log, at `looks` of them or some more, and remove those that have expired.

    Raises:
        CorruptionError: a piece of the log cannot be read.
    """
    prefix, now = DUE + dataset_id, packed_time(now_ms)
    cursor = transaction.cursor()
    while looks > 0 and cursor.set_range(prefix):
        place, data = cursor.item()
        if not place.startswith(prefix) or place[len(prefix) : len(prefix) + _TIME.size] > now:
            return
        try:
            addresses = _decode(data)
        except msgspec.MsgspecError as cause:
            raise CorruptionError(
                f"the log of expiries in an LMDB store cannot be read: {cause}. Upload the batch into another store, "
                "and restart the stream from it."
            ) from cause
        for address in addresses:
            row = transaction.get(address)
            if row is not None and NEVER < row[: _TIME.size] <= now:
                transaction.delete(address)
        transaction.delete(place)
        looks -= len(addresses)
