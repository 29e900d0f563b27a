"""The key-value store in LMDB: one memory-mapped file that many processes read and write.

Place on the data path: Spark workers write uploads and tiles from their own processes, the fetcher
reads in another; no server stands between them.

Invariant: one `put_many` is one LMDB transaction, one `get_many` is one snapshot, and a dataset's name
leaves the catalogue in one transaction before its rows are removed.

Idea: everything lies in one B+tree under one-byte kinds, so that a row's address sorts as it is read:

    0x00 format           -> version of this layout (1 byte)
    0x01 dataset name     -> dataset id (4 bytes)
    0x02 dataset id       -> nothing: dropped, its rows are still being removed
    0x03                  -> last dataset id given
    0x10 dataset id (4), length of key (2), key, time_ms (8, sign bit flipped) -> value

All numbers are big-endian. The length keeps the rows of key "a" together though "ab" exists, so the
tiles of a time range are one cursor walk. Ids are never used twice.

Trade-off: LMDB's named databases would drop faster, but each is a handle in every process that ever
saw it, up to a limit fixed at opening, and a fetcher meets a new dataset with every upload. Here drop
removes rows in steps, between which others can write; if its process dies, the next drop goes on.
py-lmdb takes a lock around every call within a process and does not hand it out in turn: threads that
read without any pause can hold up a writer in the same process for seconds. Write from another one.

Durability: with `sync=True` a `put_many` that returned survives a power cut. With `sync=False` the
operating system writes when it likes: a killed process loses nothing, a power cut may lose the last
writes or, on a file system that reorders writes, the file. Right for what can be uploaded again.
"""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.kv.lmdb_environment import Environment, lease
from millpond.kv.store import Get, Put, TimedValue, check_get, check_put, encode_dataset

_FORMAT_KEY = b"\x00format"
_FORMAT = b"\x01"
_NAME = b"\x01"
_DROPPED = b"\x02"
_LAST_ID = b"\x03"
_ROW = b"\x10"

_ID = struct.Struct(">I")
_LENGTH = struct.Struct(">H")
_TIME = struct.Struct(">Q")
_TIME_BIAS = 1 << 63
_PAST_ALL_TIMES = b"\xff" * 9

_ROWS_PER_SWEEP = 20_000
_MIN_MAP_BYTES = 1 << 20


class LmdbStore:
    """A `KVStore` in the folder `path`, shared by threads and processes of one machine.

    A store may be pickled, and used on after a fork: every process opens its own handle when it first
    needs one. `map_bytes` is the size of the memory map to start with; it grows by itself. The map counts
    as address space, not as memory. `sync` is the durability, see the module's text.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = LmdbStore(folder.name)
    >>> store.put_many("tiles", [Put(b"EWR", b"later", 300_000), Put(b"EWR", b"early", 0)])
    >>> store.get_many([Get("tiles", b"EWR", start_ms=0, end_ms=300_000), Get("tiles", b"JFK")])
    [[TimedValue(time_ms=0, value=b'early')], []]
    >>> store.datasets()
    ['tiles']
    >>> store.close()
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str], *, map_bytes: int = 1 << 28, sync: bool = True) -> None:
        if map_bytes < _MIN_MAP_BYTES:
            raise OptionError(f"map_bytes is {map_bytes}; the map starts with {_MIN_MAP_BYTES} bytes or more.")
        self.path = str(Path(path).resolve())
        self._map_bytes = map_bytes
        self._sync = sync
        self._closed = False
        self._environment: Environment | None = None
        self._give_back: Callable[[], object] | None = None

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows in one transaction; `DataError`, with nothing written, for a row beyond the limits.

        Raises `UnavailableError` naming the path if the disk is full or fails.
        """
        name = encode_dataset(dataset)
        rows: dict[bytes, bytes] = {}
        for put in puts:
            check_put(dataset, put)
            rows[_key_prefix(put.key) + _encode_time(put.time_ms)] = put.value
        ordered = sorted(rows.items())

        def write(transaction: Any) -> None:
            prefix = _ROW + _dataset_id(transaction, name)
            for suffix, value in ordered:
                transaction.put(prefix + suffix, value)

        self._open().write(write)

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """The rows of each get, in the order of the gets, each sorted by time, all of one snapshot."""
        return self._open().read(lambda transaction: _read(transaction, gets))

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Up to `most` keys with their rows, shorter keys first, beginning after a key; all of one snapshot."""
        return self._open().read(lambda transaction: _next_keys(transaction, encode_dataset(dataset), after, most))

    def drop(self, dataset: str) -> None:
        """Remove a dataset: at once for readers, its rows then in steps. An unknown one is no error."""
        environment = self._open()
        name = encode_dataset(dataset)
        environment.write(lambda transaction: _forget_name(transaction, name))
        while environment.write(_sweep):
            pass

    def datasets(self) -> list[str]:
        """The names of all datasets, sorted."""
        return self._open().read(_names)

    def close(self) -> None:
        """Give the environment back; the last store on a path closes the files. May be called twice."""
        self._closed = True
        if self._give_back is not None:
            self._give_back()
        self._environment = None

    def __reduce__(self) -> tuple[Callable[..., "LmdbStore"], tuple[str, int, bool]]:
        return _rebuild, (self.path, self._map_bytes, self._sync)

    def __repr__(self) -> str:
        return f"LmdbStore({self.path!r})"

    def _open(self) -> Environment:
        if self._environment is not None:
            return self._environment
        if self._closed:
            raise UnavailableError(f"the store {self.path} is closed. Make a new LmdbStore.")
        environment, self._give_back = lease(self, self.path, map_bytes=self._map_bytes, sync=self._sync)
        environment.read(lambda transaction: _check_format(transaction, self.path))
        self._environment = environment
        return environment


def _rebuild(path: str, map_bytes: int, sync: bool) -> LmdbStore:
    return LmdbStore(path, map_bytes=map_bytes, sync=sync)


def _key_prefix(key: bytes) -> bytes:
    return _LENGTH.pack(len(key)) + key


def _encode_time(time_ms: int) -> bytes:
    return _TIME.pack(time_ms + _TIME_BIAS)


def _check_format(transaction: Any, path: str) -> None:
    """Refuse an environment that something else wrote, before adding a row to it."""
    found = transaction.get(_FORMAT_KEY)
    if found != _FORMAT and transaction.stat()["entries"]:
        raise CorruptionError(
            f"{path} holds an LMDB environment that is not Millpond's layout 1 (format {found!r}). "
            "Choose another path, or the version of Millpond that wrote it."
        )


def _dataset_id(transaction: Any, name: bytes) -> bytes:
    """The id of a dataset, which is entered in the catalogue if it is new."""
    found: bytes | None = transaction.get(_NAME + name)
    if found is not None:
        return found
    last = transaction.get(_LAST_ID)
    new = _ID.pack(_ID.unpack(last)[0] + 1 if last is not None else 1)
    transaction.put(_FORMAT_KEY, _FORMAT)
    transaction.put(_LAST_ID, new)
    transaction.put(_NAME + name, new)
    return new


def _read(transaction: Any, gets: Sequence[Get]) -> list[list[TimedValue]]:
    ids: dict[str, bytes | None] = {}
    cursor = transaction.cursor()
    answers = []
    for get in gets:
        check_get(get)
        if get.dataset not in ids:
            ids[get.dataset] = transaction.get(_NAME + encode_dataset(get.dataset))
        dataset_id = ids[get.dataset]
        answers.append([] if dataset_id is None else _walk(cursor, dataset_id, get))
    return answers


def _walk(cursor: Any, dataset_id: bytes, get: Get) -> list[TimedValue]:
    prefix = _ROW + dataset_id + _key_prefix(get.key)
    first = prefix if get.start_ms is None else prefix + _encode_time(get.start_ms)
    end = prefix + (_PAST_ALL_TIMES if get.end_ms is None else _encode_time(get.end_ms))
    rows: list[TimedValue] = []
    if first < end and cursor.set_range(first):
        for key, value in cursor:
            if key >= end:
                break
            rows.append(TimedValue(_TIME.unpack_from(key, len(key) - 8)[0] - _TIME_BIAS, value))
    return rows


def _next_keys(transaction: Any, name: bytes, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
    dataset_id = transaction.get(_NAME + name)
    if dataset_id is None:
        return []
    prefix = _ROW + dataset_id
    cursor = transaction.cursor()
    found: list[tuple[bytes, list[TimedValue]]] = []
    if cursor.set_range(prefix if after is None else prefix + _key_prefix(after) + _PAST_ALL_TIMES):
        for address, value in cursor:
            if not address.startswith(prefix):
                break
            key = address[len(prefix) + _LENGTH.size : -_TIME.size]
            if not found or found[-1][0] != key:
                if len(found) == most:
                    break
                found.append((key, []))
            found[-1][1].append(TimedValue(_TIME.unpack_from(address, len(address) - 8)[0] - _TIME_BIAS, value))
    return found


def _forget_name(transaction: Any, name: bytes) -> None:
    dataset_id = transaction.pop(_NAME + name)
    if dataset_id is not None:
        transaction.put(_DROPPED + dataset_id, b"")


def _sweep(transaction: Any) -> bool:
    """Remove some rows of dropped datasets; True while there may be more."""
    cursor = transaction.cursor()
    if not cursor.set_range(_DROPPED) or not cursor.key().startswith(_DROPPED):
        return False
    marker = cursor.key()
    prefix = _ROW + marker[len(_DROPPED) :]
    if cursor.set_range(prefix):
        for _ in range(_ROWS_PER_SWEEP):
            if not cursor.key().startswith(prefix):
                break
            cursor.delete()
        else:
            return True
    transaction.delete(marker)
    return True


def _names(transaction: Any) -> list[str]:
    cursor = transaction.cursor()
    names: list[str] = []
    if cursor.set_range(_NAME):
        for key in cursor.iternext(keys=True, values=False):
            if not key.startswith(_NAME):
                break
            names.append(key[len(_NAME) :].decode())
    return names
