"""One spill file: the spilled key groups of a backend on one path, as bytes.

Place on the data path: under the tables of spilled key groups, which encode and decode the bytes. The file is an LMDB
file: a memory map for reading, a space allocator, and a copy-on-write tree. So a write that fails leaves everything as
it was. Each key group is a database in the file, which can be emptied in one call.

The file is never written through the map, where a full disk would raise SIGBUS. Pages are written by `pwrite`, which
reports errors. The file grows in steps of `chunk_bytes`, and the free space of the disk is checked before each step.

The checksum of each page is kept in memory (`page_seals`), and compared before LMDB uses the page. A page that was
written or compared is not compared again for `CHECKED_AGAIN_MS`: it is hardly dropped from memory and read again
meanwhile.

The file is a cache of the checkpoint, so nothing is synced. Its name is removed as soon as the file is open, so its
space is freed when the process ends, however it ends. If a process is killed before it removed the name, no process
holds the lock of the file. The next process to open a file in this folder then removes it.

Invariant: LMDB is used by one thread at a time, under `lock`, and no read transaction is open during a write. So freed
pages are reused at once. What a checkpoint must read of an earlier version is in the undo maps
(`millpond.state.heap.tables`), whatever is in the file.

Pages of the file that were read count as the process's memory while they are mapped. Each read may map a window of
`FAULT_BYTES`. The file counts *touches*: places that a read or write may map. After `most_touches` it calls its owner,
and no read or write touches more at once. So the memory mapped between two checks is bounded.

Source: http://www.lmdb.tech/doc/ (Caveats).
"""

import contextlib
import fcntl
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice, takewhile
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from millpond.errors import MillpondError, MissingDependencyError, UnavailableError
from millpond.state.backend.pairs import Pairs
from millpond.state.spillable.page_seals import LARGE_BYTES, PageSeals, opened, sealed
from millpond.state.spillable.page_sums import damaged

FAULT_BYTES = 64 << 10
"""The bytes that Linux maps around a page that is read, if the page cache has them."""

LONGEST_KEY_BYTES = 511
"""The longest key of LMDB."""

SCANNED_AT_ONCE = 4_000
"""Cells that a scan reads at once under the lock. A scan in another thread delays the stream for that long."""

_SCANNED_AT_FIRST = 4
"""Cells that a scan reads before it checks whether it has left its prefix."""

_TOUCHED_BY_GET = 3
"""Places that a read of one cell touches: a leaf, and the branches that lead to it. In a large file, hardly two reads
share a branch. Cells that are written or scanned together are adjacent."""

CHECKED_AGAIN_MS = 60_000
"""How long pages that were written or compared with their checksums are used without another comparison, at most."""

_KIND = "millpond-spill"
_first, _second = itemgetter(0), itemgetter(1)
_Result = TypeVar("_Result")
_Stored = TypeVar("_Stored", bytes, bytes | None)


class KeysAndValues(Protocol):
    """A sized iterable of pairs of key and value."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...


class GroupSize(NamedTuple):
    """The number of cells of a key group in a file, and the bytes of their pages."""

    cells: int
    bytes: int


class SpillFile:
    """An LMDB file in `folder`.

    Args:
        folder: the folder of the file; created if it does not exist.
        chunk_bytes: the step by which the file grows.
        key_groups: the largest number of key groups in the file.
        free_bytes: returns the free space of the disk of an open file.
        most_touches: the number of touched places after which `on_many_touches` is called.
        on_many_touches: called after many touches; it may call `forget_pages`.
        clock_ms: monotonic milliseconds, for `CHECKED_AGAIN_MS`.

    Raises:
        UnavailableError: the folder cannot be written, or the disk has no room for the first step.
        MissingDependencyError: lmdb is not installed.
    """

    def __init__(
        self,
        folder: Path,
        chunk_bytes: int,
        key_groups: int,
        free_bytes: Callable[[int], int] = lambda file: os.fstatvfs(file).f_bavail * os.fstatvfs(file).f_frsize,
        most_touches: int = sys.maxsize,
        on_many_touches: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self.folder = folder
        self.most_touches = most_touches
        self._touches_left = most_touches
        self._on_many_touches = on_many_touches
        self._clock_ms = clock_ms
        self._checked_ms = clock_ms()
        self.lock = threading.Lock()
        self._acquire, self._release = self.lock.acquire, self.lock.release
        self._lmdb = import_lmdb()
        self._chunk_bytes = chunk_bytes
        self._free_bytes = free_bytes
        self._reader: Any = None
        self._read: Callable[[bytes, None, Any], bytes | None] = self._read_first
        self._databases: dict[int, Any] = {}
        self._has_large = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_abandoned(folder)
            self._environment: Any = self._opened(key_groups)
            self._seals = PageSeals(self._pages.fileno(), self._environment.stat()["psize"], folder)
            self._unchecked = self._seals.unchecked
        except (OSError, self._lmdb.Error) as error:
            raise UnavailableError(
                f"no spill file can be made in {folder}: {error}. Mend that, or let state.backend.spillable.paths name "
                "a folder that can be written to."
            ) from error

    def _opened(self, key_groups: int) -> Any:
        path = self.folder / f"{_KIND}-{secrets.token_hex(8)}"
        self._file = path.open("xb")
        try:
            # If a process that removes abandoned files came first, the name is gone. `open` below creates it again.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._check_space()
            environment = self._lmdb.open(
                str(path),
                mode=0o600,
                subdir=False,
                map_size=self._chunk_bytes,
                max_dbs=key_groups,
                sync=False,
                metasync=False,
                lock=False,
                readahead=False,
                meminit=False,
            )
            self._pages = path.open("rb", buffering=0)
        except BaseException:
            self._file.close()
            raise
        else:
            return environment
        finally:
            path.unlink(missing_ok=True)

    def database(self, key_group: int) -> Any:
        """Return the handle of a key group's database, for the calls below."""
        with self.lock:
            if key_group not in self._databases:
                self._end_reading()
                self._databases[key_group] = self._tried(self._open_database, b"%d" % key_group)
            return self._databases[key_group]

    def _open_database(self, name: bytes) -> Any:
        self._seals.before_transaction()
        database = self._environment.open_db(name)
        self._seals.add(database, name)
        return database

    def get(self, database: Any, at: bytes) -> bytes | None:
        """Return the value under a key, or None."""
        # A `with` statement would take twice as long, for each record that is read.
        self._acquire()
        try:
            if database in self._unchecked:
                self._seals.before_get(database, at)
            found = self._read(at, None, database)
        except self._lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            self._release()
        left = self._touches_left = self._touches_left - _TOUCHED_BY_GET
        if left < 0 or (found is not None and len(found) >= LARGE_BYTES):
            found = self._opened_value(found)
            self._touched(0 if found is None else len(found) // FAULT_BYTES)
        return found

    def scan(
        self, database: Any, prefix: bytes, after: bytes = b"", most: int = SCANNED_AT_ONCE
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `most` pairs, in order, whose keys begin with `prefix` and come after the key `after`."""
        most = min(most, self.most_touches)
        with self.lock:
            is_checked = database not in self._unchecked
            try:
                if not is_checked:
                    self._seals.before_scan(database, after or prefix, prefix, most)
                with self._reading().cursor(database) as cursor:
                    if not (cursor.set_range(after or prefix) if after or prefix else cursor.first()):
                        return []
                    if after and cursor.key() == after and not cursor.next():
                        return []
                    if is_checked:
                        found = _begun(cursor.iternext(), prefix, most)
                    else:
                        begin = takewhile(lambda pair: pair[0].startswith(prefix), cursor.iternext())
                        found = list(islice(begin, most))
            except self._lmdb.Error as error:
                raise self._failure(error) from error
        self._touched(len(found))
        if found and not found[-1][0].startswith(prefix):
            found = [pair for pair in found if pair[0].startswith(prefix)]
        if self._has_large:
            found = [(at, self._opened_value(stored)) for at, stored in found]
        return found

    def write(self, database: Any, kept: KeysAndValues, gone: Collection[bytes] = (), *, append: bool = False) -> int:
        """Put and delete cells, all or none. Return by how much the number of cells grew.

        With `append`, the cells to put must be in order, and come after all keys of the database.

        Raises:
            UnavailableError: the disk is full, or failed.
        """
        lengths = map(len, kept.stored if isinstance(kept, Pairs) else map(_second, kept))
        if max(lengths, default=0) >= LARGE_BYTES:
            self._has_large = True
            kept = [(at, sealed(stored) if len(stored) >= LARGE_BYTES else stored) for at, stored in kept]
        # Appended cells all come after the last leaf's.
        most = 1 if append else len(kept)
        more = self._write(
            database,
            lambda: self._seals.before_write(database, islice(map(_first, kept), most), gone, most),
            lambda transaction: self._put_and_delete(transaction, database, kept, gone, append=append),
        )
        # Appended cells fill the last page, which is mapped already.
        self._touched(1 if append else len(kept) + len(gone))
        return more

    def empty(self, database: Any) -> None:
        """Delete every cell of a key group."""
        self._write(
            database,
            lambda: self._seals.before_drop(database),
            lambda transaction: transaction.drop(database, delete=False),
        )

    def size(self, database: Any) -> GroupSize:
        """Return the number of cells of a key group, and the bytes of their pages."""
        with self.lock:
            found = self._reading().stat(database)
        pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return GroupSize(found["entries"], pages * found["psize"])

    def forget_pages(self) -> None:
        """Unmap all pages, so that they do not count as this process's memory. The page cache may keep them."""
        with self.lock:
            if self._file.closed:
                return
            self._end_reading()
            self._seals.before_transaction()
            # Setting the map's size makes a new map, even if the size is the same.
            self._tried(self._environment.set_mapsize, self._environment.info()["map_size"])

    def check_again_if_due(self) -> None:
        """Have all pages compared with their checksums again before they are used, if the last time was long ago."""
        with self.lock:
            self._check_again_if_due()

    def close(self) -> None:
        """Close the file, which frees its space. Idempotent."""
        with self.lock:
            self._end_reading()
            self._databases.clear()
            self._environment.close()
            self._file.close()
            self._pages.close()

    def _touched(self, places: int) -> None:
        """Count touched places, and call the owner after many. Not under the lock, which `forget_pages` takes."""
        self._touches_left -= places
        if self._touches_left < 0:
            self._touches_left = self.most_touches
            self._on_many_touches()

    def _write(self, database: Any, check: Callable[[], None], body: Callable[[Any], _Result]) -> _Result:
        def transact(_: None) -> _Result:
            self._seals.before_transaction()
            check()
            with self._environment.begin(write=True) as transaction:
                return body(transaction)

        with self.lock:
            self._end_reading()
            written: _Result = self._tried(transact, None)
            self._seals.committed(database)
            return written

    def _put_and_delete(
        self, transaction: Any, database: Any, kept: KeysAndValues, gone: Iterable[bytes], *, append: bool
    ) -> int:
        cells: int = transaction.stat(database)["entries"]
        for at in gone:
            transaction.delete(at, db=database)
        with transaction.cursor(database) as cursor:
            _, added = cursor.putmulti(kept, append=append)
        if append and added != len(kept):
            out_of_order = len(kept) - added
            raise damaged(self.folder, f"{out_of_order} of {len(kept)} cells did not come in order to an empty place")
        now: int = transaction.stat(database)["entries"]
        return now - cells

    def _tried(self, act: Callable[[Any], Any], argument: Any) -> Any:
        """Call `act`, and let the file grow as often as it is full. LMDB undoes a failed call."""
        while True:
            try:
                return act(argument)
            except self._lmdb.MapFullError:
                self._grow()
            except self._lmdb.Error as error:
                raise self._failure(error) from error

    def _grow(self) -> None:
        try:
            self._check_space()
            self._environment.set_mapsize(self._environment.info()["map_size"] + self._chunk_bytes)
        except (OSError, self._lmdb.Error) as error:
            raise UnavailableError(f"the spill file in {self.folder} cannot grow: {error}.") from error

    def _check_space(self) -> None:
        free = self._free_bytes(self._file.fileno())
        if free < self._chunk_bytes:
            raise UnavailableError(
                f"no room for state in {self.folder}: the next step of state.backend.spillable.chunk-size is "
                f"{self._chunk_bytes:,} bytes, and {free:,} are free. Make room, or name further folders in "
                "state.backend.spillable.paths."
            )

    def _reading(self) -> Any:
        """Return the open read transaction; open one if there is none."""
        if self._reader is None:
            self._seals.before_transaction()
            self._reader = self._environment.begin()
            self._read = self._reader.get
        return self._reader

    def _read_first(self, at: bytes, _: None, database: Any) -> bytes | None:
        self._reading()
        return self._read(at, None, database)

    def _check_again_if_due(self) -> None:
        now_ms = self._clock_ms()
        if now_ms - self._checked_ms >= CHECKED_AGAIN_MS:
            self._checked_ms = now_ms
            self._seals.check_again()

    def _end_reading(self) -> None:
        self._check_again_if_due()
        if self._reader is not None:
            self._reader.abort()
            self._reader, self._read = None, self._read_first

    def _opened_value(self, stored: _Stored) -> _Stored:
        if stored is None or len(stored) < LARGE_BYTES:
            return stored
        return opened(stored, self.folder)

    def _failure(self, error: Exception) -> MillpondError:
        lmdb = self._lmdb
        # No other process writes the file. So a file of another size, version or format is damaged.
        damage = (
            lmdb.CorruptedError,
            lmdb.PageNotFoundError,
            lmdb.InvalidError,
            lmdb.PanicError,
            lmdb.MapResizedError,
            lmdb.VersionMismatchError,
            lmdb.IncompatibleError,
        )
        if isinstance(error, damage):
            return damaged(self.folder, error)
        return UnavailableError(
            f"the spill file in {self.folder} could not be used: {error}. What should have been written is still on "
            "the heap. Make room, or see to that disk."
        )


def remove_abandoned(folder: Path) -> list[Path]:
    """Remove the files in a folder whose process was killed before it removed their names. Return their paths."""
    removed = []
    for path in sorted(folder.glob(f"{_KIND}-*")):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
    return removed


def _begun(pairs: Iterator[tuple[bytes, bytes]], prefix: bytes, most: int) -> list[tuple[bytes, bytes]]:
    """Return the first pairs, up to `most`, and perhaps some after the prefix.

    Few pairs are read at first, because most keys have few entries.
    """
    found: list[tuple[bytes, bytes]] = []
    wanted = _SCANNED_AT_FIRST
    while len(found) < most:
        piece = list(islice(pairs, min(wanted, most - len(found))))
        found += piece
        if not piece or not piece[-1][0].startswith(prefix):
            break
        wanted *= 4
    return found


def import_lmdb() -> ModuleType:
    """Return the module lmdb; a MissingDependencyError says how to install it."""
    try:
        import lmdb
    except ImportError as error:
        raise MissingDependencyError(
            "the state backend 'spillable' needs lmdb: pip install 'millpond[spillable]'"
        ) from error
    module: ModuleType = lmdb
    return module
