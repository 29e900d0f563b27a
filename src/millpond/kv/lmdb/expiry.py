r"""When the rows of the LMDB store expire: a row says it itself, and a log says which rows to look at.

Place on the data path: beside `layout`, which gives rows their addresses. Every function here works inside a
transaction that it is given.

A row of a *timed* dataset begins with the time at which it expires. The log has the addresses of rows by time:

    0x13 dataset id, when to look (8, ms since 1970), number (4) -> MessagePack list of addresses

So the log is in the order of time, and a write finds what is due at its beginning. A row that is written again, to
expire later, stays where it is in the log. When it is looked at, it is logged again, under its own time.

Invariant: each row that expires is in the log, at the time at which it expires or before. So the log grows with the
rows, and not with how often they are written.

Trade-off: an index with one entry for each row would need no second look at a row. But the entries of a write lie as
far apart as its rows, so LMDB would rewrite a page for almost every entry. A piece of the log is one value.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from millpond.errors import CorruptionError
from millpond.kv.store import expires_ms

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


def packed_expiry(keep_until_ms: int, now_ms: int, ttl_ms: int | None) -> bytes:
    r"""Return the packed time at which a row expires that is written now into a timed dataset.

    >>> packed_expiry(0, 240_000, ttl_ms=60_000), packed_expiry(0, 240_000, ttl_ms=None) == NEVER
    (b'\x00\x00\x00\x00\x00\x04\x93\xe0', True)
    """
    return NEVER if ttl_ms is None else packed_time(expires_ms(keep_until_ms, now_ms, ttl_ms))


def put_timed(
    transaction: Any, dataset_id: bytes, addresses: Sequence[bytes], rows: Sequence[bytes], expiries: Sequence[bytes]
) -> None:
    """Write rows, each of which begins with its packed expiry, and log those that the log does not have in time."""
    former = map(transaction.cursor().replace, addresses, rows)
    size = _TIME.size
    unlogged = [
        (expires, address)
        for expires, address, row in zip(expiries, addresses, former, strict=True)
        if row is None or not NEVER < row[:size] <= expires
    ]
    log_expiries(transaction, dataset_id, unlogged)


def log_expiries(transaction: Any, dataset_id: bytes, expiring: Iterable[tuple[bytes, bytes]]) -> None:
    """Append rows to the log, given as (packed time, address). Rows that never expire are left out."""
    by_time: dict[bytes, list[bytes]] = {}
    for expires, address in expiring:
        if expires in by_time:
            by_time[expires].append(address)
        else:
            by_time[expires] = [address]
    by_time.pop(NEVER, None)
    cursor = transaction.cursor()
    for expires, addresses in by_time.items():
        prefix = DUE + dataset_id + expires
        number, left = _next_number(cursor, prefix), iter(addresses)
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
        later = []
        for address in addresses:
            row = transaction.get(address)
            if row is None:
                continue
            expires = row[: _TIME.size]
            if expires > now:
                later.append((expires, address))
            elif expires > NEVER:
                transaction.delete(address)
        transaction.delete(place)
        log_expiries(transaction, dataset_id, later)
        looks -= len(addresses)
