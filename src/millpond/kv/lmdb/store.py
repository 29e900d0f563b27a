"""The key-value store in LMDB: one memory-mapped file that many processes read and write.

Place on the data path: Spark workers write uploads and tiles from their own processes, and the fetcher reads in
another. No server is needed between them.

Invariant: one `put_many` is one LMDB transaction, and one `get_many` reads one snapshot. A dataset's name leaves the
catalogue in one transaction before its rows are removed. This is more than the contract of `KVStore` requires.
`layout` defines how rows are stored.

Trade-off: `drop` removes rows in steps, between which others can write. If its process dies, the next `drop` goes on.
py-lmdb takes a lock around every call within a process, and the lock is not fair. Threads that read without pause can
block a writer in the same process for seconds. Write from another process.

Durability: with `sync=True`, a `put_many` that returned survives a power cut. With `sync=False`, the operating system
chooses when to write. A killed process then loses nothing. A power cut may lose the last writes or, on a file system
that reorders writes, the file. That suits rows that can be uploaded again.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millpond.errors import OptionError, UnavailableError
from millpond.kv.arrow_puts import ArrowPuts
from millpond.kv.expiry import wall_ms
from millpond.kv.lmdb import layout
from millpond.kv.lmdb.environment import Environment, lease
from millpond.kv.lmdb.layout import Dataset, EncodedRows
from millpond.kv.store import Get, Put, Rows, TimedValue, check_declaration, checked_puts

_MIN_MAP_BYTES = 1 << 20
_ROWS_A_BULK_WRITE = 100_000
_BYTES_A_BULK_WRITE = 64 << 20
"""The most bytes in one transaction of a bulk write. A transaction rewrites every page it touches, so a few large ones
write random keys twice as fast as many small ones."""

_LEAST_LOOKS = 16
"""The least number of due rows that a write looks at; a larger write looks at twice as many rows as it wrote."""


class LmdbStore:
    """A `KVStore` in the folder `path`, shared by threads and processes of one machine.

    A store can be pickled, and can be used after a fork: every process opens its own handle at first use.
    `map_bytes` is the initial size of the memory map, which grows by itself. The map takes address space, not memory.
    `sync` sets the durability, see the module docstring. `clock` returns the time by which rows expire.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with LmdbStore(folder.name) as store:
    ...     store.put_many("tiles", [Put(b"EWR", b"later", 300_000), Put(b"EWR", b"early", 0)])
    ...     store.get_many([Get("tiles", b"EWR", start_ms=0, end_ms=300_000), Get("tiles", b"JFK")])
    ...     store.datasets()
    [[TimedValue(time_ms=0, value=b'early')], []]
    ['tiles']
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        map_bytes: int = 1 << 28,
        sync: bool = True,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        if map_bytes < _MIN_MAP_BYTES:
            raise OptionError(f"map_bytes is {map_bytes}; the map starts with {_MIN_MAP_BYTES} bytes or more.")
        self.path = str(Path(path).resolve())
        self._map_bytes = map_bytes
        self._sync = sync
        self._clock = clock
        self._closed = False
        self._environment: Environment | None = None
        self._give_back: deque[Callable[[], object]] = deque()

    def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare how many rows a key has, and their time to live."""
        check_declaration(dataset, rows, ttl_ms)
        self._open().write(lambda transaction: layout.declare(transaction, dataset, rows, ttl_ms))

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows in one transaction; `DataError`, with nothing written, for a row beyond the limits.

        Raises `UnavailableError` naming the path if the disk is full or fails.
        """
        encode, size = _encoder(dataset, puts)
        now_ms, environment = self._clock(), self._open()
        # One process writes at a time, so the rows are encoded before. A dataset rarely changes in between.
        expected = environment.read(lambda transaction: layout.known(transaction, dataset))
        encoded = None if expected is None else encode(expected, now_ms)

        def write(transaction: Any) -> None:
            found = layout.entered(transaction, dataset)
            current = encoded if encoded is not None and encoded.dataset == found else None
            layout.write_rows(transaction, current or encode(found, now_ms))
            layout.remove_expired(transaction, found, max(_LEAST_LOOKS, 2 * size), now_ms)

        environment.write(write)

    def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write many rows, in transactions of up to 100,000 rows. Sorted rows are written about four times as fast."""
        self.put_many(dataset, [])
        for piece in _pieces(puts):
            self.put_many(dataset, piece)

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time, all from one snapshot."""
        return (self._environment or self._open()).read_with(layout.read_many, gets)

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys after a key, with their rows, shorter keys first; all from one snapshot."""
        return self._open().read(lambda transaction: layout.next_keys(transaction, dataset, after, most))

    def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys, in one transaction."""
        removed = list(keys)
        self._open().write(lambda transaction: layout.delete_keys(transaction, dataset, removed))

    def drop(self, dataset: str) -> None:
        """Remove a dataset. Readers miss it at once; its rows are then removed in steps. An unknown one is no error."""
        environment = self._open()
        environment.write(lambda transaction: layout.forget_name(transaction, dataset))
        while environment.write(layout.sweep):
            pass

    def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        return self._open().read(layout.names)

    def close(self) -> None:
        """Release the environment; the last store of a path in this process closes the files. May be called twice."""
        self._closed = True
        environment, self._environment = self._environment, None
        while self._give_back:
            self._give_back.pop()()
        if environment is not None:
            environment.close_if_unused()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., "LmdbStore"], tuple[str, int, bool, Callable[[], int]]]:
        return _rebuild, (self.path, self._map_bytes, self._sync, self._clock)

    def __repr__(self) -> str:
        return f"LmdbStore({self.path!r})"

    def _open(self) -> Environment:
        if self._environment is not None:
            return self._environment
        if self._closed:
            raise UnavailableError(f"the store {self.path} is closed. Make a new LmdbStore.")
        # Threads that open the store at the same time take a lease each.
        environment, give_back = lease(self, self.path, map_bytes=self._map_bytes, sync=self._sync)
        self._give_back.append(give_back)
        environment.read(lambda transaction: layout.check_format(transaction, self.path))
        self._environment = environment
        return environment


def _encoder(dataset: str, puts: Iterable[Put]) -> tuple[Callable[[Dataset, int], EncodedRows], int]:
    """Check the rows to write. Return the function that encodes them for a dataset at a time, and their number."""
    if isinstance(puts, ArrowPuts):
        from millpond.kv.lmdb import arrow_rows  # who has columns has imported Arrow

        columns = puts
        arrow_rows.check_columns(dataset, columns)
        return lambda found, now_ms: arrow_rows.encoded_columns(found, columns, now_ms), len(columns)
    rows = checked_puts(dataset, puts)
    return lambda found, now_ms: layout.encoded_rows(found, rows, now_ms), len(rows)


def _rebuild(path: str, map_bytes: int, sync: bool, clock: Callable[[], int]) -> LmdbStore:
    return LmdbStore(path, map_bytes=map_bytes, sync=sync, clock=clock)


def _pieces(puts: Iterable[Put]) -> Iterator[list[Put]]:
    piece: list[Put] = []
    size = 0
    for put in puts:
        piece.append(put)
        size += len(put.value)
        if len(piece) >= _ROWS_A_BULK_WRITE or size >= _BYTES_A_BULK_WRITE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
