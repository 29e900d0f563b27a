"""The layout of the LMDB store's rows in its one B+tree: their addresses, and their catalogue.

Place on the data path: between `LmdbStore`, which runs transactions, and the bytes. Every function here
works inside a transaction that it is given.

Invariant: addresses sort in the order in which rows are read. So a range of tiles is one cursor walk, and a
batch row of a `rows="one"` dataset is one look-up. This is layout 3:

    0x00 format           -> version of this layout (1 byte) *
    0x01 dataset name     -> dataset id (4 bytes) *
    0x02 dataset id       -> nothing: the dataset was dropped, and its rows are still being removed *
    0x03                  -> the last dataset id that was given *
    0x04 dataset id       -> the declaration: ttl_ms (8; 0 is none), and whether it ever was above 0 (1)
    0x05 dataset id       -> layout 2 only: the 0x12 address where the next clean-up begins
    0x10 dataset id, length of key (2), key, time_ms (8, sign bit flipped) -> value *
    0x11 dataset id, length of key (2), key -> time_ms (8, sign bit flipped), value
    0x12 dataset id, the rest of a row's address after its id -> layout 2 only: when it expires
    0x13 dataset id, when to look at rows (8), number (4) -> their addresses (`expiry`)

All numbers are big-endian. The length keeps the rows of key "a" together though "ab" exists. Ids are
never used twice. The highest bit of an id says that a key has one row, under 0x11. The next bit says that the dataset
is *timed*: what 0x10 or 0x11 holds of a row begins with when it expires (8, ms since 1970; 0 is never). So a read looks
up only the name.

Layout 1 had only the kinds marked *, and layout 2 no timed datasets. An environment is in layout 1 until a dataset is
declared, and in layout 2 until one has a time to live. The first write to a dataset of layout 2 that has one, and a
declaration that gives one to a dataset without, copies its rows to a timed dataset of the same name.

Trade-off: LMDB's named databases would drop faster. But each is a handle in every process that ever
saw it, up to a limit fixed at opening, and a fetcher meets a new dataset with every upload.
"""

import operator
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from millpond.errors import CorruptionError
from millpond.kv.lmdb.expiry import DUE, NEVER, packed_expiry, put_timed, remove_due
from millpond.kv.store import (
    MAX_KEY_BYTES,
    MAX_TIME_MS,
    Get,
    Put,
    TimedValue,
    check_get,
    check_same_rows,
    encode_dataset,
)

FORMAT_KEY = b"\x00format"
LAYOUT_1 = b"\x01"
LAYOUT_2 = b"\x02"
LAYOUT_3 = b"\x03"
NAME = b"\x01"
DROPPED = b"\x02"
LAST_ID = b"\x03"
DECLARED = b"\x04"
LOOKED_UP_TO = b"\x05"
ROW = b"\x10"
ONLY_ROW = b"\x11"
EXPIRY = b"\x12"

_ONE_BIT = 1 << 31
_ONE_BYTE = 0x80
"""`_ONE_BIT` in the first byte of an id."""
_TIMED_BIT = 1 << 30
_TIMED_BYTE = 0x40
_EXPIRY_BYTES = len(NEVER)

_ID = struct.Struct(">I")
_LENGTH = struct.Struct(">H")
_TIME = struct.Struct(">Q")
_DECLARATION = struct.Struct(">QB")
_TIME_BYTES = _TIME.size
_TIME_BIAS = 1 << 63
_PAST_ALL_TIMES = b"\xff" * 9
ROWS_PER_SWEEP = 20_000

Transaction = Any
"""A transaction of py-lmdb, which has no types."""


class Dataset(NamedTuple):
    """A dataset as the catalogue knows it."""

    id: bytes
    ttl_ms: int | None = None
    expires_by_index: bool = False
    """Whether its rows expire as in layout 2."""

    @property
    def timed(self) -> bool:
        """Whether its rows begin with when they expire."""
        return bool(self.id[0] & _TIMED_BYTE)

    @property
    def rows(self) -> str:
        """How many rows a key has, "one" or "many"."""
        return "one" if self.id[0] & _ONE_BYTE else "many"


@lru_cache(maxsize=4096)
def catalogue_key(dataset: str) -> bytes:
    """Return the address of a dataset's entry in the catalogue."""
    return NAME + encode_dataset(dataset)


def check_format(transaction: Transaction, path: str) -> None:
    """Refuse an environment that something other than Millpond wrote, before a row is added to it."""
    found = transaction.get(FORMAT_KEY)
    if found not in (LAYOUT_1, LAYOUT_2, LAYOUT_3) and transaction.stat()["entries"]:
        raise CorruptionError(
            f"{path} holds an LMDB environment that is not Millpond's layout 1, 2 or 3 (format {found!r}). "
            "Choose another path, or the version of Millpond that wrote it."
        )


def declare(transaction: Transaction, dataset: str, rows: str, ttl_ms: int | None) -> None:
    """Enter a dataset into the catalogue, or change when rows expire that are written from now on."""
    found = known(transaction, dataset)
    if found is None:
        flags = (_ONE_BIT if rows == "one" else 0) | (0 if ttl_ms is None else _TIMED_BIT)
        found = Dataset(_enter(transaction, dataset, flags))
    check_same_rows(dataset, found.rows, rows)
    if not found.timed and (ttl_ms is not None or found.expires_by_index):
        found = _made_timed(transaction, dataset, found)
    _declare(transaction, found, ttl_ms)


def _declare(transaction: Transaction, dataset: Dataset, ttl_ms: int | None) -> None:
    _raise_layout(transaction, LAYOUT_3 if dataset.timed else LAYOUT_2)
    transaction.put(DECLARED + dataset.id, _DECLARATION.pack(ttl_ms or 0, dataset.timed))


def _raise_layout(transaction: Transaction, least: bytes) -> None:
    transaction.put(FORMAT_KEY, max(least, transaction.get(FORMAT_KEY)))


def entered(transaction: Transaction, dataset: str) -> Dataset:
    """Return the dataset of a name, for a write; a new one is entered as undeclared."""
    found = known(transaction, dataset) or Dataset(_enter(transaction, dataset, 0))
    return _made_timed(transaction, dataset, found) if found.expires_by_index else found


def _made_timed(transaction: Transaction, dataset: str, former: Dataset) -> Dataset:
    """Copy the rows of a dataset, with their expiries, to a timed one that takes its name. `sweep` removes the former.

    Rows without an expiry stay without.
    """
    made = Dataset(_enter(transaction, dataset, _TIMED_BIT | (_ONE_BIT if former.rows == "one" else 0)), former.ttl_ms)
    _declare(transaction, made, former.ttl_ms)
    prefix, new_prefix = _rows_prefix(former.id), _rows_prefix(made.id)
    cursor = transaction.cursor()
    found = cursor.set_range(prefix)
    while found and cursor.key().startswith(prefix):
        copied = list(islice(cursor.iternext(), ROWS_PER_SWEEP))
        last = copied[-1][0]
        rests = [(address[len(prefix) :], value) for address, value in copied if address.startswith(prefix)]
        addresses, values = [new_prefix + rest for rest, _ in rests], [value for _, value in rests]
        expiries = [transaction.get(EXPIRY + former.id + rest, NEVER) for rest, _ in rests]
        put_timed(transaction, made.id, addresses, list(map(operator.add, expiries, values)), expiries)
        found = cursor.set_range(last + b"\x00")
    _forget_id(transaction, former.id)
    return made


class EncodedRows(NamedTuple):
    """Rows of a dataset as LMDB takes them, in the order of their addresses.

    Args:
        dataset: the dataset.
        addresses: the address of each row.
        values: what is stored of each row; in a timed dataset it begins with the expiry.
        expiries: the packed expiry of each row; empty if the dataset is not timed.
    """

    dataset: Dataset
    addresses: list[bytes]
    values: list[bytes]
    expiries: list[bytes]


def encoded_rows(dataset: Dataset, puts: Sequence[Put], now_ms: int) -> EncodedRows:
    """Encode rows for `write_rows`; of rows with equal addresses the last is the one that stays."""
    unsorted = _addresses(dataset, puts)
    # The sort is stable: of equal addresses the last comes last, and replaces the others.
    order = sorted(range(len(puts)), key=unsorted.__getitem__)
    addresses, puts = [unsorted[place] for place in order], [puts[place] for place in order]
    if dataset.rows == "one":
        time = _TIME.pack
        values = [time(put.time_ms + _TIME_BIAS) + put.value for put in puts]
    else:
        values = [put.value for put in puts]
    if not dataset.timed:
        return EncodedRows(dataset, addresses, values, [])
    expiries = _expiries(puts, now_ms, dataset.ttl_ms)
    return EncodedRows(dataset, addresses, list(map(operator.add, expiries, values)), expiries)


def write_rows(transaction: Transaction, rows: EncodedRows) -> None:
    """Write rows into their dataset."""
    if rows.dataset.timed:
        put_timed(transaction, rows.dataset.id, rows.addresses, rows.values, rows.expiries)
    else:
        transaction.cursor().putmulti(zip(rows.addresses, rows.values, strict=True))


def address_prefix(dataset_id: bytes, key_bytes: int) -> bytes:
    """Return what precedes the key in the address of a row whose key has so many bytes."""
    return _rows_prefix(dataset_id) + _LENGTH.pack(key_bytes)


def _addresses(dataset: Dataset, puts: Sequence[Put]) -> list[bytes]:
    # Many rows share few key lengths and times, so each of these is packed once.
    keys = [put.key for put in puts]
    prefixes = {size: address_prefix(dataset.id, size) for size in set(map(len, keys))}
    addresses = map(operator.add, map(prefixes.__getitem__, map(len, keys)), keys)
    if dataset.rows == "one":
        return list(addresses)
    times_ms = [put.time_ms for put in puts]
    times = {time_ms: _TIME.pack(time_ms + _TIME_BIAS) for time_ms in set(times_ms)}
    return list(map(operator.add, addresses, map(times.__getitem__, times_ms)))


def _expiries(puts: Sequence[Put], now_ms: int, ttl_ms: int | None) -> list[bytes]:
    """Return the packed time at which each row expires."""
    kept = [put.keep_until_ms for put in puts]
    expiries = {keep_until_ms: packed_expiry(keep_until_ms, now_ms, ttl_ms) for keep_until_ms in set(kept)}
    return list(map(expiries.__getitem__, kept))


def read_many(transaction: Transaction, gets: Sequence[Get]) -> list[list[TimedValue]]:
    """Return the rows of each get."""
    places: dict[tuple[str, int | None, int | None], _Place | None] = {}
    cursor = transaction.cursor()
    set_range, time_of = cursor.set_range, _TIME.unpack_from
    found: list[list[TimedValue]] = []
    dataset, start_ms, end_ms, place, length = None, None, None, None, -1
    for get in gets:
        if get.dataset is not dataset or get.start_ms != start_ms or get.end_ms != end_ms:
            asked = dataset, start_ms, end_ms = (get.dataset, get.start_ms, get.end_ms)
            if asked in places:
                place = places[asked]
            else:
                place = places[asked] = _place(transaction, get)
            if place is not None:
                is_one, skipped, number, start, end = place
                length = -1
        rows: list[TimedValue] = []
        found.append(rows)
        if place is None:
            continue
        key = get.key
        if len(key) != length:
            if len(key) > MAX_KEY_BYTES:
                continue
            length = len(key)
            prefix_of_length = number + _LENGTH.pack(length)
        prefix = prefix_of_length + key
        if is_one:
            row = transaction.get(prefix)
            if row is not None and skipped:
                row = row[skipped:]
            if row is not None and start <= row[:_TIME_BYTES] < end:
                rows.append(TimedValue(time_of(row)[0] - _TIME_BIAS, row[_TIME_BYTES:]))
        elif set_range(prefix + start):
            last, time_at = prefix + end, len(prefix)
            for address, value in cursor:
                if address >= last:
                    break
                rows.append(TimedValue(time_of(address, time_at)[0] - _TIME_BIAS, value[skipped:]))
    return found


_Place = tuple[bool, int, bytes, bytes, bytes]
"""Whether a key has one row; the bytes of a row's expiry; the prefix of the dataset's addresses; the first time and the
end of a get, encoded as in addresses."""


def _place(transaction: Transaction, get: Get) -> _Place | None:
    """Return where the rows of a get lie; None if it can have none."""
    start_ms = -MAX_TIME_MS if get.start_ms is None else get.start_ms
    end_ms = MAX_TIME_MS if get.end_ms is None else get.end_ms
    if start_ms < -MAX_TIME_MS or start_ms > MAX_TIME_MS or end_ms < -MAX_TIME_MS or end_ms > MAX_TIME_MS:
        check_get(get)
    number = transaction.get(catalogue_key(get.dataset))
    if number is None or start_ms >= end_ms:
        return None
    prefix, skipped = _rows_prefix(number), _EXPIRY_BYTES if number[0] & _TIMED_BYTE else 0
    start, end = _TIME.pack(start_ms + _TIME_BIAS), _TIME.pack(end_ms + _TIME_BIAS)
    return prefix.startswith(ONLY_ROW), skipped, prefix, start, end


def next_keys(
    transaction: Transaction, dataset: str, after: bytes | None, most: int
) -> list[tuple[bytes, list[TimedValue]]]:
    """Return up to `most` keys with their rows, shorter keys first, beginning after the key `after`."""
    walked = known(transaction, dataset)
    if walked is None:
        return []
    prefix, one = _rows_prefix(walked.id), walked.rows == "one"
    time_size, skipped = 0 if one else _TIME.size, _EXPIRY_BYTES if walked.timed else 0
    cursor = transaction.cursor()
    found: list[tuple[bytes, list[TimedValue]]] = []
    if cursor.set_range(prefix if after is None else prefix + _LENGTH.pack(len(after)) + after + _PAST_ALL_TIMES):
        for address, value in cursor:
            if not address.startswith(prefix):
                break
            key = address[len(prefix) + _LENGTH.size : len(address) - time_size]
            if key == after:
                continue
            if not found or found[-1][0] != key:
                if len(found) == most:
                    break
                found.append((key, []))
            value = value[skipped:]  # noqa: PLW2901 - without its expiry
            time = value if one else address[-_TIME.size :]
            row = TimedValue(_TIME.unpack_from(time)[0] - _TIME_BIAS, value[8:] if one else value)
            found[-1][1].append(row)
    return found


def delete_keys(transaction: Transaction, dataset: str, keys: Iterable[bytes]) -> None:
    """Remove all rows of some keys."""
    if known(transaction, dataset) is None:
        return
    found = entered(transaction, dataset)
    cursor = transaction.cursor()
    for key in keys:
        if len(key) > MAX_KEY_BYTES:
            continue
        prefix = _rows_prefix(found.id) + _LENGTH.pack(len(key)) + key
        for address in _addresses_of(cursor, prefix):
            transaction.delete(address)


def remove_expired(transaction: Transaction, dataset: Dataset, looks: int, now_ms: int) -> None:
    """Remove rows that have expired. Look at `looks` of those that are due, or some more."""
    if dataset.timed:
        remove_due(transaction, dataset.id, looks, now_ms)


def forget_name(transaction: Transaction, dataset: str) -> None:
    """Take a dataset out of the catalogue; `sweep` removes its rows."""
    number = transaction.pop(catalogue_key(dataset))
    if number is not None:
        _forget_id(transaction, number)


def _forget_id(transaction: Transaction, number: bytes) -> None:
    transaction.delete(DECLARED + number)
    transaction.delete(LOOKED_UP_TO + number)
    transaction.put(DROPPED + number, b"")


def sweep(transaction: Transaction) -> bool:
    """Remove some rows of dropped datasets; return True while there may be more."""
    cursor = transaction.cursor()
    if not cursor.set_range(DROPPED) or not cursor.key().startswith(DROPPED):
        return False
    marker = cursor.key()
    number = marker[len(DROPPED) :]
    left = ROWS_PER_SWEEP
    for prefix in (_rows_prefix(number), EXPIRY + number, DUE + number):
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            if left == 0:
                return True
            cursor.delete()
            left -= 1
    transaction.delete(marker)
    return True


def names(transaction: Transaction) -> list[str]:
    """Return the names of all datasets, sorted."""
    cursor = transaction.cursor()
    found: list[str] = []
    if cursor.set_range(NAME):
        for key in cursor.iternext(keys=True, values=False):
            if not key.startswith(NAME):
                break
            found.append(key[len(NAME) :].decode())
    return found


def known(transaction: Transaction, dataset: str) -> Dataset | None:
    """Return the dataset of a name; None if the catalogue does not have it."""
    number = transaction.get(catalogue_key(dataset))
    if number is None:
        return None
    declared = transaction.get(DECLARED + number)
    if declared is None:
        return Dataset(number)
    ttl_ms, may_expire = _DECLARATION.unpack(declared)
    return Dataset(number, ttl_ms or None, bool(may_expire) and not number[0] & _TIMED_BYTE)


def _enter(transaction: Transaction, dataset: str, flags: int) -> bytes:
    last = transaction.get(LAST_ID)
    number = 1 if last is None else _ID.unpack(last)[0] + 1
    found = _ID.pack(number | flags)
    if transaction.get(FORMAT_KEY) is None:
        transaction.put(FORMAT_KEY, LAYOUT_1)
    transaction.put(LAST_ID, _ID.pack(number))
    transaction.put(catalogue_key(dataset), found)
    return found


def _rows_prefix(number: bytes) -> bytes:
    return (ONLY_ROW if number[0] & _ONE_BYTE else ROW) + number


def _addresses_of(cursor: Any, prefix: bytes) -> list[bytes]:
    """Return the addresses that begin with the prefix of a key; addresses of other keys never do."""
    found: list[bytes] = []
    if cursor.set_range(prefix):
        for address in cursor.iternext(keys=True, values=False):
            if not address.startswith(prefix):
                break
            found.append(address)
    return found
